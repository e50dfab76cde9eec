"""The collective commands in nccl-tests' layout, and their page."""

from __future__ import annotations

import shlex

from tests.cli.program import Program, on_gpus, one_line
from tests.native.fakes import Fakes

# CUDA's own needs and 9 MiB for three buffers: without collectives nothing is set aside for NCCL.
FREE_FOR_COPIES = (256 + 9) * 2**20


def test_nccl_tests_layout_leaves_stdout_to_its_parsers(fakes: Fakes, program: Program) -> None:
    args = shlex.split("gather -b 1K -e 2K -f 2 --format nccl-tests --output run.json")
    done = on_gpus(fakes, args)
    assert done.code == 0, done.stderr
    assert one_line(done.stderr) == "saved run.json"
    rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    assert [row[0] for row in rows] == ["1024", "2048"]
    assert all(row[-1] == "0" and "N/A" not in row for row in rows)  # in place was measured as well
    assert program("export", "--format", "nccl-tests", "run.json").out == done.stdout


def test_copies_show_every_pattern_and_have_no_such_layout(fakes: Fakes, program: Program) -> None:
    args = ["copies", "--sizes", "1K", "--verbose", "-o", "run.json"]
    done = on_gpus(fakes, args, free=FREE_FOR_COPIES)
    assert (done.code, done.stderr) == (0, "")
    titles = [line.partition(" at 1K, µs")[0] for line in done.stdout.splitlines() if " at 1K, µs" in line]
    copies = ["ce-write", "ce-read", "sm-write", "sm-read"]
    hosts = ["host", "host-both-ways", "host-all", "host-all-both-ways"]
    # One way, both ways, staged, …
    assert titles == [*copies, *copies, "ce-write", "one-to-all", "all-to-one", *hosts, "local"]
    assert program("show", "--verbose", "run.json").out + "\nsaved     run.json\n" == done.stdout

    result = program("export", "--format", "nccl-tests", "run.json")
    assert (result.status, result.out) == (2, "")
    assert "collectives" in result.line
