"""The word between torchrun and a host rank: one core, then the program, and nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from collbench.launch import pin
from collbench.launch.pin import core_and_program

REFUSED = {
    "no words": ([], "0", "usage"),
    "no program": (["--cores=1", "--"], "0", "usage"),
    "no core": (["--program=a", "--"], "0", "usage"),
    "no rank": (["--cores=1", "--", "a"], "", "local rank ''"),
    "more ranks than cores": (["--cores=1,2", "--", "a"], "2", "local rank '2'"),
}


@pytest.mark.parametrize(("words", "rank", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_pinned_is_one_line(words: list[str], rank: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        core_and_program(words, {"LOCAL_RANK": rank})


def test_each_rank_gets_its_core_and_the_same_program() -> None:
    words = ["--cores=7,3", "--", "a", "--", "--cores", "x"]
    got = [core_and_program(words, {"LOCAL_RANK": rank}) for rank in ("0", "1")]
    assert got == [(7, ["a", "--", "--cores", "x"]), (3, ["a", "--", "--cores", "x"])]
    words = ["--cores=7,3", "--program=py", "--", "-u", "a", "--", "x"]
    assert core_and_program(words, {"LOCAL_RANK": "1"}) == (3, ["py", "-u", "a", "--", "x"])


def pinned(core: int, *program: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", "-S", pin.__file__, f"--cores={core}", "--", *program]
    return subprocess.run(words, env={**os.environ, "LOCAL_RANK": "0"}, capture_output=True, text=True, check=False)


def test_the_program_runs_on_that_core_with_its_own_status() -> None:
    core = max(os.sched_getaffinity(0))
    code = "import os, sys; print(os.sched_getaffinity(0), sys.argv[1:]); sys.exit(7)"
    done = pinned(core, sys.executable, "-c", code, "-h", "a b")
    assert (done.stdout, done.returncode) == (f"{{{core}}} {['-h', 'a b']}\n", 7)


def test_a_core_that_is_not_there_is_one_line() -> None:
    done = pinned(99999, "true")
    assert done.stderr.splitlines() == ["collbench: cannot pin to core 99999: Invalid argument: choose other --devices"]


def test_a_program_that_is_not_there_is_one_line() -> None:
    done = pinned(min(os.sched_getaffinity(0)), "/no/such/program")
    assert done.stderr.startswith("collbench: cannot start '/no/such/program'")
    assert done.stderr.count("\n") == 1


def test_the_launch_room_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, collbench.launch.pin, collbench.launch.torchrun, collbench.analysis.freshness, "
        "collbench.launch.torchrun, collbench.launch.torchrun, collbench.analysis.freshness; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "collbench.launch.torchrun" in loaded
    assert not {"torch", "numpy", "click", "rich"} & set(loaded)
