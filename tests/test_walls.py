"""The walls between the rooms of the house (DESIGN.md), read from the sources: who may import whom, what stays pure."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "collbench"
SOURCES = sorted(PACKAGE.rglob("*.py"))
NATIVE = sorted(path for path in (ROOT / "csrc").iterdir() if path.suffix in {".cpp", ".hpp", ".cu", ".cuh"})

# What a room may import of collbench, besides itself. `cli` may import everything and nobody but __main__ imports it.
NOUNS = {"operations", "model", "units", "errors", "dtypes", "stats", "outcome", "absence"}
MAY_IMPORT = {
    "errors": set(),
    "units": {"errors"},
    "operations": set(),
    "model": {"errors", "operations"},
    "outcome": {"errors", "model", "machine.impossible"},  # how a run ended
    "absence": {"model", "operations"},  # why a run lacks a figure
    "dtypes": {"errors"},
    "stats": {"model", "units"},
    "lifeline": set(),  # processes that end with their parent
    "machine": NOUNS,
    "backends": NOUNS | {"machine", "_native", "fabric", "lifeline"},
    # which paths share wires, what they can carry
    "measure": NOUNS | {"backends.protocol", "machine.labels", "machine.impossible"},
    # pure: the order of the labels, what throttling is, what a slot carries
    "affinity": NOUNS | {f"machine.{name}" for name in ("labels", "limits", "theory", "capacity", "impossible")},
    "cost": NOUNS | {"affinity", "machine.labels"},  # from curves of a run and a network to what a training step pays
    # the same training job in two arms, in turn; it starts collbench itself as a child
    "ablation": NOUNS
    | {"launch.arguments", "launch.options", "lifeline", "plain", "runfile", "versioned", "wholefile"},
    "launch": NOUNS | {"printable", "world.environment"},  # where Slurm's nodes meet
    "doctor": NOUNS | {"machine", "backends.nccl_library"},  # what a run will depend on, before it
    "reference": NOUNS | {"plain"},  # figures of healthy machines
    # a run against others, or against those figures
    "comparison": NOUNS | {"affinity.estimates", "machine.nvls", "machine.impossible", "reference.figures"},
    "exchange": NOUNS | {"machine.nvls", "machine.impossible"},  # a run as other tools read it
    # and their legend
    "report": NOUNS
    | {f"machine.{name}" for name in ("labels", "limits", "theory", "nvls", "capacity", "impossible")}
    | {"affinity", "comparison", "cost", "doctor.findings", "plain"}
    | {"ablation.model", "ablation.words"},
    # the same facts as the pages', drawn by matplotlib
    "plot": NOUNS | {"affinity", "machine.impossible", "report"},
    # a page of what they say
    "html": NOUNS | {"machine.labels", "machine.impossible", "affinity", "comparison", "report"},
    "fabric": NOUNS | {"machine.labels", "machine.theory", "plain", "printable"},  # what is simulated; `file` reads it
    "plain": set(),  # dataclasses as JSON
    "printable": set(),  # text that a terminal shows and does not obey
    "earlier_flags": NOUNS,  # flags of older run files
    "journal": NOUNS | {"earlier_flags", "plain", "printable"},
    "wholefile": {"errors"},
    "versioned": {"errors", "printable"},
    "runfile": NOUNS | {"earlier_flags", "journal", "plain", "versioned", "wholefile"},
    "keeper": NOUNS | {"journal", "runfile", "wholefile"},
    "planning": NOUNS | {"backends.protocol", "measure"},  # from a request to a plan
    # one measurement, from the request to the saved run
    "session": NOUNS
    | {"backends", "measure", "planning", "runfile", "keeper", "launch.freshness", "world"}
    | {"journal", "wholefile"},
    "simulation": NOUNS | {"backends", "fabric", "measure", "planning", "session"},  # the same in memory
    "surveying": NOUNS | {"affinity", "fabric", "measure"},  # rounds of nodes, real or simulated, and what they mean
    "world": NOUNS | {"backends", "lifeline", "machine", "plain", "planning"},  # the same backend, of many processes
    "api": NOUNS | {"affinity", "plain", "runfile", "world.environment"},  # `import collbench`; measures by the program
    "__main__": {"cli"},
}

# Rooms and files that only compute: Run in, answers or text out.
PURE = (
    *(f"{noun}.py" for noun in NOUNS),
    *(f"machine/{name}.py" for name in ("labels", "limits", "theory", "visible", "nvls", "capacity", "impossible")),
)
PURE += ("affinity/", "comparison/", "cost/", "exchange/", "report/", "plot/", "html/", "launch/")
PURE += ("reference/figures.py",)
PURE += ("world/environment.py", "world/nodelist.py", "world/hosts.py")
PURE += tuple(
    f"fabric/{name}.py"
    for name in ("model", "tree", "network", "rates", "labels", "rings", "orders", "collectives", "checks", "faults")
)
PURE += ("fabric/random_fabrics.py", "fabric/cluster.py")
PURE += ("doctor/facts.py", "doctor/findings.py", "doctor/judging", "doctor/nccl_")
PURE += tuple(f"ablation/{name}.py" for name in ("arguments", "arms", "model", "result", "steps", "words"))
MAY_ACT = {"launch/torchrun.py", "launch/agent.py", "launch/pin.py", "launch/same_count.py"}  # they become torchrun
IMPURE_MODULES = {"os", "time", "subprocess", "socket", "signal", "threading", "random", "torch", "pynvml"}
IMPURE_CALLS = {"open", "print", "input", "read_text", "write_text", "read_bytes", "write_bytes", "exists", "is_file"}
IMPURE_CALLS |= {"is_dir", "iterdir", "glob", "mkdir", "unlink", "stat", "now", "today", "utcnow", "cwd"}

# Torch takes seconds to load, so only what runs in the worker processes loads it at once.
LOADS_TORCH = {"backends/gloo_worker.py", "backends/gloo_rank.py", "backends/gloo_data.py"}


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the full dotted name of everything imported anywhere in a tree, relative imports as '.…'."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def strangers(source: str, home: str) -> list[str]:
    """Return the imports of collbench's own modules that a room's source is not allowed."""
    allowed = {f"collbench.{name}" for name in MAY_IMPORT[home] | {home}}
    ours = [name for name in imports(ast.parse(source)) if name.startswith((".", "collbench."))]
    return [name for name in ours if not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed)]


def impurities(source: str) -> list[str]:
    """Return what a source imports or calls that reaches outside the program."""
    tree = ast.parse(source)
    called = [ast.unparse(node.func).split(".")[-1] for node in ast.walk(tree) if isinstance(node, ast.Call)]
    modules = [name for name in imports(tree) if name.split(".")[0] in IMPURE_MODULES]
    return modules + [name for name in called if name in IMPURE_CALLS]


def loads_torch(source: str) -> bool:
    """True when importing a module with this source imports torch: functions and TYPE_CHECKING blocks do not count."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom) and "torch" in {name.split(".")[0] for name in imports(node)}:
            return True
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not typing_only and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += ast.iter_child_nodes(node)
    return False


def long_functions(source: str, limit: int) -> list[str]:
    """Return "name (lines)" of the functions longer than `limit` lines, docstring included."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    return [f"{name} ({lines})" for name, lines in lengths.items() if lines > limit]


# Which algorithm NCCL takes is the user's business: what we time must be what the training job will get.
TOUCHES_NCCL = re.compile(
    r"""["']NCCL_\w+["']\s*\]\s*=(?!=)       # environ["NCCL_X"] = …
      | ["']NCCL_\w+["']\s*:               # {"NCCL_X": …}
      | (?:setdefault|pop|setenv|unsetenv|putenv)\(\s*["']NCCL_
      | \bdel\b.*["']NCCL_""",
    re.VERBOSE,
)
# For a process that asks NCCL what it chose, when the user wants to know; it times nothing.
MAY_SET = {("nccl_choices.py", f'"NCCL_DEBUG{rest}":') for rest in ("", "_SUBSYS", "_FILE")}
# What `ablate --without p2p` and the like ask for by name, for the children of one arm.
MAY_SET |= {("arms.py", f'"NCCL_{what}_DISABLE":') for what in ("P2P", "SHM", "IB")}


@pytest.mark.parametrize("path", [path for path in SOURCES if room(path) not in {"cli", "__init__"}], ids=place)
def test_a_room_imports_only_what_lies_upstream(path: Path) -> None:
    assert room(path) in MAY_IMPORT, "a new room: say in MAY_IMPORT what it may import"
    assert strangers(path.read_text(encoding="utf-8"), room(path)) == []


@pytest.mark.parametrize("path", [path for path in SOURCES if place(path).startswith(PURE)], ids=place)
def test_a_pure_room_reaches_nothing_outside(path: Path) -> None:
    assert impurities(path.read_text(encoding="utf-8")) == [] or place(path) in MAY_ACT


@pytest.mark.parametrize("path", SOURCES, ids=place)
def test_torch_is_loaded_late(path: Path) -> None:
    assert not loads_torch(path.read_text(encoding="utf-8")) or place(path) in LOADS_TORCH


@pytest.mark.parametrize("module", ["collbench.cli.program", "collbench.backends.host"])
def test_what_is_slow_or_may_be_missing_is_not_loaded_with(module: str) -> None:
    code = f"import sys, {module}; print({{'torch', 'collbench._native', 'pynvml'}} & set(sys.modules) or 'none')"
    started = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert started.stdout == "none\n"


@pytest.mark.parametrize("path", [*SOURCES, *NATIVE, ROOT / "setup.py", ROOT / "csrc" / "ptx.py"], ids=lambda p: p.name)
def test_python_functions_stay_under_41_lines(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert path.suffix != ".py" or long_functions(source, limit=40) == []


# "g" writes 1.09e+03 for a rate of NVSwitches. `units.fixed` does not; nccl-tests' own lines have C's %g.
MAY_WRITE_EXPONENTS = {"units.py", "report/nccl_tests.py", "ablation/words.py", "exchange/text.py"}
MAY_WRITE_EXPONENTS |= {"html/families.py", "measure/visits.py"}  # rounded, and a number again
MAY_WRITE_EXPONENTS |= {"backends/cuda_errors.py", "backends/gloo.py", "fabric/checks.py"}  # what may be any number


@pytest.mark.parametrize("path", [path for path in SOURCES if place(path) not in MAY_WRITE_EXPONENTS], ids=place)
def test_figures_are_written_in_fixed_notation(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    formats = [
        ast.unparse(node.format_spec)
        for node in ast.walk(tree)
        if isinstance(node, ast.FormattedValue) and node.format_spec
    ]
    assert [spec for spec in formats if re.search(r"[eEgG]['\"]$", spec)] == []


@pytest.mark.parametrize("path", [*SOURCES, *NATIVE], ids=lambda path: path.name)
def test_no_source_sets_or_hides_what_nccl_reads_nor_uses_multicast(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert [found for found in TOUCHES_NCCL.findall(source) if (path.name, found) not in MAY_SET] == []
    assert "cuMulticast" not in source


@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.name)
def test_the_native_side_neither_prints_nor_reads_the_environment(path: Path) -> None:
    assert (
        re.findall(r"\bgetenv\b|\b(?:f|v)?printf\(|\bputs\(|std::c(?:out|err|log)\b", path.read_text(encoding="utf-8"))
        == []
    )


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("a plain import of another room", strangers("import collbench.report.table", "measure")),
        ("an import from another room", strangers("from collbench.cli import main", "report")),
        ("a module taken from the package", strangers("from collbench import runfile", "affinity")),
        ("a name that only starts like an allowed one", strangers("from collbench.models import x", "measure")),
        ("a relative import", strangers("from ..cli import main", "report")),
        ("an import inside a function", strangers("def f():\n    import collbench.cli", "machine")),
        ("a clock", impurities("from time import monotonic")),
        ("a file", impurities("def f(p): return p.read_text()")),
        ("torch under a condition", [loads_torch("if True:\n    from torch import cuda")]),
        ("a long function", long_functions("def f():\n" + "    pass\n" * 40, limit=40)),
        ("a variable set", TOUCHES_NCCL.findall("os.environ['NCCL_ALGO'] = 'Ring'")),
        ("a variable added", TOUCHES_NCCL.findall('{**env, "NCCL_P2P_DISABLE": "1"}')),
        ("a variable hidden", TOUCHES_NCCL.findall('env.pop("NCCL_DEBUG", None)')),
        ("a variable set in C++", TOUCHES_NCCL.findall('setenv("NCCL_ALGO", "Ring", 1)')),
    ],
)
def test_these_checks_see(what: str, found: list[object]) -> None:
    assert any(found), what


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("the room itself", strangers("from collbench.measure import plan", "measure")),
        ("an allowed noun", strangers("from collbench.errors import UsageError", "measure")),
        ("an allowed module of a room", strangers("from collbench.backends import protocol", "measure")),
        ("the world outside", strangers("import collections", "model")),
        ("torch inside a function", [loads_torch("def f():\n    import torch")]),
        ("torch for types alone", [loads_torch("if TYPE_CHECKING:\n    import torch")]),
        ("a function of 40 lines", long_functions("def f():\n" + "    pass\n" * 39, limit=40)),
        ("a variable read", TOUCHES_NCCL.findall("os.environ['NCCL_ALGO'] == 'Ring'")),
        ("advice in a message", TOUCHES_NCCL.findall('"compare with NCCL_P2P_DISABLE=1"')),
    ],
)
def test_these_checks_let_pass(what: str, found: list[object]) -> None:
    assert not any(found), what
