"""Rules that no source may break, checked in the sources. Rules for imports are in pyproject.toml (import-linter)."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "collbench"
SOURCES = sorted(PACKAGE.rglob("*.py"))
NATIVE = sorted(path for path in (ROOT / "csrc").iterdir() if path.suffix in {".cpp", ".hpp", ".cu", ".cuh"})

# Packages without I/O: a Run in, results or text out.
PURE = ("model/", "judge/", "choose/", "report/")  # their imports are limited in pyproject.toml
READS_ITS_OWN = {"judge/references.py", "judge/registration.py"}  # the published figures that they ship
IMPURE_CALLS = {"open", "print", "input", "read_text", "write_text", "read_bytes", "write_bytes", "exists", "is_file"}
IMPURE_CALLS |= {"is_dir", "iterdir", "glob", "mkdir", "unlink", "stat", "now", "today", "utcnow", "cwd"}

# Torch takes seconds to load, so only what runs in the worker processes loads it at once.
LOADS_TORCH = {
    "jobs/replay/worker.py",
    "measurement/backends/gloo_worker.py",
    "measurement/backends/torch_rank.py",
    "overlaps/streams.py",
    "overlaps/worker.py",
}


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def texts() -> dict[Path, str]:
    """Return all sources of the package."""
    return {path: path.read_text(encoding="utf-8") for path in SOURCES}


def module_path(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the full dotted name of everything imported anywhere in a tree, relative imports as '.…'."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


# Trees take ten seconds of a core for all sources, so each check looks into those whose text may have what it seeks.
MAY_BE_IMPURE = re.compile(rf"\b({'|'.join(sorted(IMPURE_CALLS))})\(")


def impurities(source: str) -> list[str]:
    """Return the names of a source's calls that do I/O."""
    if not MAY_BE_IMPURE.search(source):
        return []
    calls = (node for node in ast.walk(parsed(source)) if isinstance(node, ast.Call))
    return [name for node in calls if (name := ast.unparse(node.func).split(".")[-1]) in IMPURE_CALLS]


def loads_torch(source: str) -> bool:
    """True when importing a module with this source imports torch: functions and TYPE_CHECKING blocks do not count."""
    pending: list[ast.AST] = [parsed(source)] if "torch" in source else []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom) and "torch" in {name.split(".")[0] for name in imports(node)}:
            return True
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not typing_only and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += ast.iter_child_nodes(node)
    return False


# Which algorithm NCCL takes is the user's business: what we time must be what the training job will get.
TOUCHES_NCCL = re.compile(
    r"""["']NCCL_\w+["']\s*\]\s*=(?!=)       # environ["NCCL_X"] = …
      | ["']NCCL_\w+["']\s*:               # {"NCCL_X": …}
      | (?:setdefault|pop|setenv|unsetenv|putenv)\(\s*["']NCCL_
      | \bdel\b.*["']NCCL_""",
    re.VERBOSE,
)
# For a process that asks NCCL which transport it takes, for `--map-p2p`; it times nothing.
MAY_SET = {("transports.py", f'"NCCL_DEBUG{rest}":') for rest in ("", "_SUBSYS", "_FILE")}
# The plugin that `record` gives the job's NCCL.
MAY_SET |= {("recording.py", '"NCCL_PROFILER_PLUGIN":')}
# What `ablate --without p2p` and the like ask for by name, for the children of one arm.
MAY_SET |= {("ablation.py", f'"NCCL_{what}_DISABLE":') for what in ("P2P", "SHM", "IB")}
MAY_SET |= {("replay.py", '"NCCL_P2P_DISABLE":')}  # and `replay --without p2p`


def test_a_pure_package_has_no_io() -> None:
    pure = {module_path(path): text for path, text in texts().items() if module_path(path).startswith(PURE)}
    assert {module for module, text in pure.items() if impurities(text)} == READS_ITS_OWN


def test_torch_is_loaded_late() -> None:
    assert {module_path(path) for path, text in texts().items() if loads_torch(text)} == LOADS_TORCH


@pytest.mark.parametrize("module", ["collbench.cli.program", "collbench.measurement.backends.host"])
def test_what_is_slow_or_may_be_missing_is_not_loaded_with(module: str) -> None:
    code = f"import sys, {module}; print({{'torch', 'collbench._native', 'pynvml'}} & set(sys.modules) or 'none')"
    started = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert started.stdout == "none\n"


def test_no_writer_of_json_writes_what_json_has_not() -> None:
    for path, text in texts().items():
        for node in ast.walk(parsed(text)) if "json." in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"json.dump", "json.dumps", "json.JSONEncoder"}:
                strict = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "allow_nan"]
                assert strict == ["False"], f"{path}:{node.lineno} could write NaN: add allow_nan=False"


# "g" writes 1.09e+03 for a rate of NVSwitches. `units.fixed` does not; nccl-tests' own lines have C's %g.
MAY_WRITE_EXPONENTS = {"model/units.py", "report/nccl_tests.py", "ablations/ablation.py", "report/rows.py"}
MAY_WRITE_EXPONENTS |= {"report/html.py", "measurement/sweep.py"}  # rounded numbers
MAY_WRITE_EXPONENTS |= {
    "measurement/backends/cuda.py",
    "measurement/backends/host.py",
    "sim/fabrics.py",
}  # what may be any number


def exponents(source: str) -> list[str]:
    """Return the formats of a source that write large numbers with an exponent."""
    if not re.search(r"[eEgG]\}", source):
        return []
    values = (node for node in ast.walk(parsed(source)) if isinstance(node, ast.FormattedValue) and node.format_spec)
    formats = (ast.unparse(node.format_spec) for node in values if node.format_spec)
    return [spec for spec in formats if re.search(r"[eEgG]['\"]$", spec)]


def test_figures_are_written_in_fixed_notation() -> None:
    assert {module_path(path) for path, text in texts().items() if exponents(text)} <= MAY_WRITE_EXPONENTS


def test_the_kind_of_a_run_is_compared_by_its_value() -> None:
    """It may be an annex's command, so a run file gives it as a text, which is no member of CommandKind."""
    assert [path for path, text in texts().items() if re.search(r"\bis (not )?CommandKind\.", text)] == []


def test_no_source_sets_or_hides_what_nccl_reads_nor_uses_multicast() -> None:
    for path in [*SOURCES, *NATIVE]:
        source = path.read_text(encoding="utf-8")
        assert [hit for hit in TOUCHES_NCCL.findall(source) if (path.name, hit) not in MAY_SET] == [], path
        assert "cuMulticast" not in source, path


# A thread whose job was given up must not return from a library call (csrc/library.hpp).
DIRECT_CALL = re.compile(r"(?:driver\(\)|nccl_?)\.(?:cu|nccl)\w+\(")


def test_every_call_of_a_library_can_be_abandoned() -> None:
    calls = {path.name: DIRECT_CALL.findall(path.read_text()) for path in NATIVE}
    assert not {name: found for name, found in calls.items() if found}


def test_the_native_side_neither_prints_nor_reads_the_environment() -> None:
    acts = re.compile(r"\bgetenv\b|\b(?:f|v)?printf\(|\bputs\(|std::c(?:out|err|log)\b")
    assert {path.name: hits for path in NATIVE if (hits := acts.findall(path.read_text(encoding="utf-8")))} == {}


def test_a_numbered_core_has_the_name_that_pages_give_it() -> None:
    """ "CPU3", as Device.tag has it."""
    numbered = re.compile(r"\bcores? (?:\{|\d|numbers?\b|\"(?: \+|,| <<))")
    for path in [*SOURCES, *NATIVE]:
        texts = [line for line in path.read_text(encoding="utf-8").splitlines() if '"' in line]
        assert [line for line in texts if numbered.search(line)] == [], path


@pytest.mark.parametrize(
    ("what", "hits"),
    [
        ("a file", impurities("def f(p): return p.read_text()")),
        ("torch under a condition", [loads_torch("if True:\n    from torch import cuda")]),
        ("a variable set", TOUCHES_NCCL.findall("os.environ['NCCL_ALGO'] = 'Ring'")),
        ("a variable added", TOUCHES_NCCL.findall('{**env, "NCCL_P2P_DISABLE": "1"}')),
        ("a variable hidden", TOUCHES_NCCL.findall('env.pop("NCCL_DEBUG", None)')),
        ("a variable set in C++", TOUCHES_NCCL.findall('setenv("NCCL_ALGO", "Ring", 1)')),
    ],
)
def test_these_checks_see(what: str, hits: list[object]) -> None:
    assert any(hits), what


@pytest.mark.parametrize(
    ("what", "hits"),
    [
        ("torch inside a function", [loads_torch("def f():\n    import torch")]),
        ("torch for types alone", [loads_torch("if TYPE_CHECKING:\n    import torch")]),
        ("a variable read", TOUCHES_NCCL.findall("os.environ['NCCL_ALGO'] == 'Ring'")),
        ("advice in a message", TOUCHES_NCCL.findall('"compare with NCCL_P2P_DISABLE=1"')),
    ],
)
def test_these_checks_let_pass(what: str, hits: list[object]) -> None:
    assert not any(hits), what
