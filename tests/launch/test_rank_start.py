"""Between torchrun and each rank: its core on the host backend, equal numbers of ranks on several nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from collbench.launch import rank_start
from collbench.launch.rank_start import core_of, options_and_program

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


def variables(*numbers: object) -> dict[str, str]:
    return dict(zip(NAMES, map(str, numbers), strict=True))


@pytest.mark.parametrize(
    ("title", "numbers"),
    [
        ("the first of two nodes with four each", (0, 8, 4, 0, 2)),
        ("the last rank of the second", (7, 8, 4, 1, 2)),
        ("one node, as others have not come yet", (1, 2, 2, 0, 1)),
        ("one rank a node", (2, 3, 1, 2, 3)),
    ],
)
def test_equal_nodes_pass(title: str, numbers: tuple[int, ...]) -> None:
    assert rank_start.node_mismatch(variables(*numbers)) == "", title


@pytest.mark.parametrize(
    ("title", "numbers", "message"),
    [
        ("two here, four there", (0, 6, 2, 0, 2), "node 0 of 2 has 2, and all together have 6"),
        ("four here, two there", (2, 6, 4, 1, 2), "node 1 of 2 has 4, and all together have 6"),
        (
            "three on the middle one of two, three and four",
            (2, 9, 3, 1, 3),
            "node 1 of 3 has 3, and all together have 9",
        ),
        ("a launcher that is not torchrun", (0, 2, "", 0, 1), "cannot compare the nodes: torchrun sets"),
    ],
)
def test_unequal_nodes_are_one_line(title: str, numbers: tuple[object, ...], message: str) -> None:
    line = rank_start.node_mismatch(variables(*numbers))
    assert message in line, title
    assert line.startswith("collbench: ")
    assert "\n" not in line


def started(local_rank: int, *program: str, local: int = 2) -> subprocess.Popen[str]:
    """Start a local rank of the first of two nodes, which has `local` ranks; the other has two."""
    environment = os.environ | variables(local_rank, local + 2, local, 0, 2) | {"LOCAL_RANK": str(local_rank)}
    args = [sys.executable, "-I", "-S", rank_start.__file__, "--compare-nodes", "--", *program]
    return subprocess.Popen(args, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_program_gets_its_arguments_and_keeps_its_status() -> None:
    code = "import sys; print(sys.argv[1:]); sys.exit(7)"
    done = started(1, sys.executable, "-c", code, "-h", "--", "a b")
    assert (done.communicate(timeout=60)[0], done.returncode) == (f"{['-h', '--', 'a b']}\n", 7)


def test_the_first_rank_reports_and_the_others_wait_silently_to_be_ended() -> None:
    second, first = started(1, "true", local=4), started(0, "true", local=4)
    try:
        _, stderr = first.communicate(timeout=60)
        assert (first.returncode, stderr.count("\n")) == (1, 1)
        assert stderr.startswith("collbench: the nodes disagree on the number of ranks: node 0 of 2 has 4")
        assert second.poll() is None
        second.send_signal(signal.SIGTERM)  # as torchrun does
        assert second.communicate(timeout=60) == ("", "")
    finally:
        second.kill()


def test_a_program_that_is_not_there_is_one_line() -> None:
    done = started(0, "/no/such/program")
    assert done.communicate(timeout=60)[1] == (
        "collbench: cannot start '/no/such/program': No such file or directory: check its path\n"
    )


REFUSED = {
    "no words": ([], "0", "usage"),
    "no program": (["--cores=1", "--"], "0", "usage"),
    "no end of the options": (["true"], "0", "usage"),
    "no rank": (["--cores=1", "--", "a"], "", "local rank ''"),
    "more ranks than cores": (["--cores=1,2", "--", "a"], "2", "local rank '2'"),
}


def core_and_program(args: list[str], rank: str) -> tuple[int, list[str]]:
    options, program = options_and_program(args)
    return core_of(options["--cores"], {"LOCAL_RANK": rank}), program


@pytest.mark.parametrize(("args", "rank", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_pinned_is_one_line(args: list[str], rank: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        core_and_program(args, rank)


def test_each_rank_gets_its_core_and_the_same_program() -> None:
    args = ["--cores=7,3", "--", "a", "--", "--cores", "x"]
    programs = [core_and_program(args, rank) for rank in ("0", "1")]
    assert programs == [(7, ["a", "--", "--cores", "x"]), (3, ["a", "--", "--cores", "x"])]
    args = ["--cores=7,3", "--program=py", "--", "-u", "a", "--", "x"]
    assert core_and_program(args, "1") == (3, ["py", "-u", "a", "--", "x"])


def pinned(core: int, *program: str) -> subprocess.CompletedProcess[str]:
    args = [sys.executable, "-I", "-S", rank_start.__file__, f"--cores={core}", "--", *program]
    return subprocess.run(args, env={**os.environ, "LOCAL_RANK": "0"}, capture_output=True, text=True, check=False)


def test_the_program_runs_on_that_core_with_its_own_status() -> None:
    core = max(os.sched_getaffinity(0))
    code = "import os, sys; print(os.sched_getaffinity(0), sys.argv[1:]); sys.exit(7)"
    done = pinned(core, sys.executable, "-c", code, "-h", "a b")
    assert (done.stdout, done.returncode) == (f"{{{core}}} {['-h', 'a b']}\n", 7)


def test_a_core_that_is_not_there_is_one_line() -> None:
    done = pinned(99999, "true")
    assert done.stderr.splitlines() == ["collbench: cannot pin to core 99999: Invalid argument: choose other --devices"]


def test_the_launch_room_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, collbench.launch.rank_start, collbench.launch.torchrun, collbench.choose.freshness, "
        "collbench.launch.torchrun, collbench.launch.torchrun, collbench.choose.freshness; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "collbench.launch.torchrun" in loaded
    assert not {"torch", "numpy", "click", "rich"} & set(loaded)
