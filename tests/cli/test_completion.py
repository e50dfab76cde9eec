"""What shells complete: in bash itself, and through click's protocol."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.machine import device_names
from tests.cli.program import Program, collbench

# (complete arguments, the one being typed, completions that must be offered, completions that must not)
LINES = [
    ((), "pa", {"pairs"}, {"copies"}),
    (("pairs",), "--ba", {"--backend"}, {"--budget"}),
    (("pairs", "--backend"), "", {"auto", "cuda", "host", "sim"}, set()),
    (("select", "2", "--format"), "", {"text", "json", *device_names.ACTING}, set()),
    (("train", "--nnodes", "2", "--standalone"), "--ma", {"--max-age", "--max-restarts"}, set()),
    (("train", "--auto-select", "2", "train.py"), "--au", set(), {"--auto-select"}),
    (("no-such-command",), "--", set(), {"--sizes"}),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which `collbench` is this checkout's."""
    script = tmp_path / "bin" / "collbench"
    script.parent.mkdir()
    kept = [name for name in os.environ if name.startswith("COLLBENCH_TEST_") or name == "PYTHONPATH"]
    variables = " ".join(f"{name}={shlex.quote(os.environ[name])}" for name in kept)
    script.write_text(f'#!/bin/sh\n{variables} exec {sys.executable} -m collbench "$@"\n')
    script.chmod(0o755)
    return f"{script.parent}:{os.environ['PATH']}"


@pytest.fixture
def offered(program: Program, monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, ...], str], list[str]]:
    """Return click's answer lines for bash, such as "plain,pairs"; fails the test if stderr says anything."""

    def answer(args: tuple[str, ...], typed: str) -> list[str]:
        line = " ".join(("collbench", *args, typed))
        environment = {"COMP_WORDS": line, "COMP_CWORD": str(len(args) + 1), "_COLLBENCH_COMPLETE": "bash_complete"}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        result = program()
        assert (result.status, result.err) == (0, "")
        return result.out.split()

    return answer


Offered = Callable[[tuple[str, ...], str], list[str]]


@pytest.mark.parametrize(("args", "typed", "expected", "unexpected"), LINES)
def test_what_may_follow(
    offered: Offered, args: tuple[str, ...], typed: str, expected: set[str], unexpected: set[str]
) -> None:
    offers = {line.removeprefix("plain,") for line in offered(args, typed)}
    assert expected <= offers
    assert not offers & unexpected


@pytest.mark.parametrize(
    "args",
    [("show",), ("topo", "--topology"), ("train",), ("train", "--run-file"), ("train", "--tee", "3"),
     ("pairs", "--nccl"), ("pairs", "-o"), ("train", "--devices", "0,1", "train.py")],
)  # fmt: skip
def test_the_shell_completes_files_where_a_file_is_expected(offered: Offered, args: tuple[str, ...]) -> None:
    assert offered(args, "") == ["file,"]


@pytest.mark.parametrize("question", ["bash_complete", "nonsense"])
def test_a_malformed_completion_request_fails_silently(question: str) -> None:
    done = subprocess.run(
        collbench(), env=os.environ | {"_COLLBENCH_COMPLETE": question}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_bash_itself_completes(path: str, tmp_path: Path) -> None:
    ask = {"PATH": path, "_COLLBENCH_COMPLETE": "bash_source"}
    script = tmp_path / "completion.bash"
    script.write_bytes(subprocess.run(["collbench"], env=ask, capture_output=True, check=True).stdout)
    for args, typed, expected, unexpected in LINES[:3]:
        line = ["collbench", *args, typed]
        commands = (
            f"source {script}; complete -p collbench >&2 || exit 9; COMP_WORDS=({' '.join(line[:-1])} '{typed}');"
            f"COMP_CWORD={len(args) + 1}; _collbench_completion collbench; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", commands], env={"PATH": path}, capture_output=True, text=True, check=True
        )
        offers = set(done.stdout.split())
        assert expected <= offers, line
        assert not offers & unexpected, line
