"""Which changes of a module's code do its tests miss? Mutation testing, run by hand, on one core.

cosmic-ray makes the mutants. It is no dependency of the project: give it a folder of its own, and run with the
project's interpreter, from the root of the checkout:

    python3 -m venv /tmp/mutants && /tmp/mutants/bin/pip install cosmic-ray
    export PYTHONPATH=$(/tmp/mutants/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    .venv/bin/python benchmarks/mutants.py src/collbench/judge/stats.py tests/judge/test_stats.py -o stats.json

--output keeps one table for each module. --sample N runs N random mutants, chosen with a fixed seed.
The checkout is copied, and only the copy is changed. Each mutant is tested in a fork of this process, which has already
loaded pytest and numpy, until the first test fails or the time is up. Property tests draw the same examples each time.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", "results", "__pycache__", ".*_cache", ".hypothesis")
# Each operator is replaced by the one that it is most likely confused with, not by all others. cosmic-ray can also make
# loops that never run and exceptions that are never caught, but no test can miss those.
_BINARY = (
    *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul", "BitOr_BitAnd"),
    *("BitAnd_BitOr", "LShift_RShift", "RShift_LShift", "BitXor_BitAnd"),
)
_COMPARED = (
    *("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_GtE", "LtE_Gt", "Gt_LtE", "GtE_Lt"),
    *("Is_IsNot", "IsNot_Is"),
)
OPERATORS = (
    *(f"core/ReplaceBinaryOperator_{name}" for name in _BINARY),
    *(f"core/ReplaceComparisonOperator_{name}" for name in _COMPARED),
    *(f"core/{name}" for name in ("NumberReplacer", "AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd")),
    *(f"core/{name}" for name in ("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceBreakWithContinue")),
    *(f"core/{name}" for name in ("ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not")),
)
# A mutant is killed after this many times the tests' normal duration, but not before this many seconds.
_TIMEOUT_FACTOR, _MIN_TIMEOUT_S = 5.0, 15.0
_SEED = 7


@dataclass(frozen=True)
class Mutant:
    """One change: cosmic-ray's name for it, the line, and the module's text with it."""

    operator: str
    line: int
    text: str


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test noticed."""

    operator: str
    line: int
    diff: list[str]


def mutants(text: str) -> list[Mutant]:
    """Return every mutant of a module's text by line, without those that change only annotations and the like."""
    ignored, texts, all_mutants = set(_without_effect(ast.parse(text))), {text}, []
    for name, line, column, mutated in (*_by_cosmic_ray(text), *_membership_mutants(text)):
        if mutated and mutated not in texts and (line, column) not in ignored and _compiles(mutated):
            texts.add(mutated)
            all_mutants.append(Mutant(name.removeprefix("core/"), line, mutated))
    return sorted(all_mutants, key=lambda mutant: mutant.line)


def _by_cosmic_ray(text: str) -> Iterator[tuple[str, int, int, str | None]]:
    import parso
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    nodes, lines = list(_nodes(parso.parse(text))), text.splitlines()
    for name in OPERATORS:
        operator = get_operator(name)()
        positions = [position for node in nodes for position in operator.mutation_positions(node)]
        for number, ((line, column), _) in enumerate(positions):
            if not lines[line - 1].startswith("*,", column):  # the * of a signature is not a multiplication
                yield name, line, column, mutate_code(text, operator, number)


def _membership_mutants(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield `in` for `not in` and the reverse, which cosmic-ray lacks."""
    in_prose = {
        (token.start[0], column) for token in _tokens(text) for column in range(token.start[1], token.end[1])
    }  # in comments and strings
    for match in re.finditer(r"\b(?:not )?in\b", text):
        replacement = "in" if match[0] == "not in" else "not in"
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start()) - 1
        if (line, column) not in in_prose:
            yield "In_NotIn", line, column, text[: match.start()] + replacement + text[match.end() :]


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    prose = (tokenize.COMMENT, tokenize.STRING)
    yield from (t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type in prose)


def _nodes(tree: Any) -> Iterator[Any]:
    yield tree
    for child in getattr(tree, "children", ()):
        yield from _nodes(child)


def _without_effect(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield all positions without effect: in annotations, docstrings and decorators."""
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            yield from ((decorator.lineno, column) for column in range(200))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from (
                (line, column) for line in range(node.lineno, (node.end_lineno or 0) + 1) for column in range(200)
            )
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(annotation, ast.expr) and annotation.lineno == annotation.end_lineno:
                yield from (
                    (annotation.lineno, column)
                    for column in range(annotation.col_offset, annotation.end_col_offset or 0)
                )


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


class Tests:
    """Runs test files in forks of this process, against a copy of the checkout."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self._folder, self._files = folder, files
        shutil.copytree(ROOT, folder, ignore=_LEFT_OUT, dirs_exist_ok=True)
        (folder / "benchmarks" / "results").symlink_to(ROOT / "benchmarks" / "results")
        sys.dont_write_bytecode = True  # a mutant may have the size and the time of the one before
        sys.path[:0] = [str(folder / "src"), str(folder)]
        os.chdir(folder)
        for name in ("pytest", "hypothesis", "numpy", "scipy.optimize"):
            importlib.import_module(name)

    def write(self, module: str, text: str) -> None:
        """Write this text into the module's file in the copy."""
        (self._folder / module).write_text(text, encoding="utf-8")

    def tests_pass(self, limit_s: float) -> bool | None:
        """Return whether all tests pass; None if the time was up."""
        child = os.fork()
        if child == 0:
            os._exit(self._run())
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status) == 0
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def _run(self) -> int:
        import pytest

        os.setpgid(0, 0)
        null_device = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null_device, stream)
        plugins = ("no:cacheprovider", "no:randomly", "no:xdist")
        arguments = [
            *self._files,
            "-x",
            "-q",
            "--hypothesis-seed=0",
            *(word for name in plugins for word in ("-p", name)),
        ]
        try:
            code = int(pytest.main(arguments))
            import collbench

            return code if str(collbench.__file__).startswith(str(self._folder)) else 99
        except BaseException:  # noqa: BLE001  # whatever a mutant does is noticed
            return 98


def main() -> int:
    options = _arguments()
    text = (ROOT / options.module).read_text(encoding="utf-8")
    to_run, output = mutants(text), options.output and options.output.resolve()
    tables: dict[str, Any] = json.loads(output.read_text(encoding="utf-8")) if output and output.exists() else {}
    table: dict[str, Any] = {"tests": options.tests, "mutants": len(to_run), "ends": {}}
    if options.sample and options.sample < len(to_run):
        table["drawn"] = options.sample
        to_run = sorted(random.Random(_SEED).sample(to_run, options.sample), key=lambda mutant: mutant.line)
    if options.again:
        table = tables[options.module] | {"mutants": len(to_run)}
        table["tests"] = [*dict.fromkeys([*table["tests"], *options.tests])]
        diffs_left = [survivor["diff"] for survivor in table["survivors"]]
        to_run = [mutant for mutant in to_run if _take(diffs_left, _diff(text, mutant.text))]
        table["ends"].pop("survived", None)
    with tempfile.TemporaryDirectory() as folder:
        ends, survivors, seconds = _run(options, text, to_run, Path(folder))
    if ends is None:
        print("the tests fail without any mutant", file=sys.stderr)
        return 1
    table["ends"] = dict(Counter(table["ends"]) + ends)
    caught, survived = (
        sum(table["ends"].get(end, 0) for end in endings) for endings in (("killed", "timed out"), ("survived",))
    )
    share = caught / max(1, caught + survived)
    drawn = f"{table['drawn']} of " if "drawn" in table else ""
    print(f"{options.module}: {drawn}{table['mutants']} mutants, {table['ends']}: {share:.1%} killed, {seconds:.0f} s")
    table |= {"killed_share": round(share, 4), "survivors": [asdict(survivor) for survivor in survivors]}
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        tables[options.module] = table
        output.write_text(json.dumps(tables, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help="the module's file, from the root of the checkout")
    parser.add_argument("tests", nargs="+", help="the test files that should notice")
    parser.add_argument("-o", "--output", type=Path, help="where the module's table is kept, as JSON")
    parser.add_argument(
        "--again", action="store_true", help="run the survivors of --output's table alone, and renew it"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="run N mutants of the module, always the same")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant after so many seconds")
    options = parser.parse_args()
    if options.again and options.output is None:
        parser.error("--again needs --output: the table with the survivors")
    return options


def _run(
    options: argparse.Namespace, text: str, to_run: list[Mutant], folder: Path
) -> tuple[Counter[str] | None, list[Survivor], float]:
    """Return counts of how mutants ended (None if the tests fail without any), the survivors, and the seconds."""
    tests, begin = Tests(folder, options.tests), time.monotonic()
    if not tests.tests_pass(600.0):
        return None, [], 0.0
    limit = max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * (time.monotonic() - begin))
    ends, survivors = Counter[str](), list[Survivor]()
    for mutant in to_run:
        if time.monotonic() - begin > options.seconds:
            ends["not run"] += 1
            continue
        tests.write(options.module, mutant.text)
        passed = tests.tests_pass(limit)
        if passed is None:
            print(f"{options.module}:{mutant.line} {mutant.operator}: timed out", flush=True)
        ends["survived" if passed else "killed" if passed is False else "timed out"] += 1
        if passed:
            survivors.append(Survivor(mutant.operator, mutant.line, _diff(text, mutant.text)))
            print(f"{options.module}:{mutant.line} {mutant.operator}", *survivors[-1].diff, sep="\n  ", flush=True)
    return ends, survivors, time.monotonic() - begin


def _take(diffs_left: list[list[str]], diff: list[str]) -> bool:
    """Remove a diff from the list once, as a module may have a line twice; return whether it was there."""
    if diff in diffs_left:
        diffs_left.remove(diff)
        return True
    return False


def _diff(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


if __name__ == "__main__":
    sys.exit(main())
