"""Copies of every pattern on simulated GPUs, and their page."""

from __future__ import annotations

from tests.cli.program import Program, on_gpus
from tests.native.fakes import Fakes

# CUDA's own needs and 9 MiB for three buffers: without collectives nothing is set aside for NCCL.
FREE_FOR_COPIES = (256 + 9) * 2**20


def test_copies_show_every_pattern(fakes: Fakes, program: Program) -> None:
    args = ["copies", "--sizes", "1K", "--verbose", "-o", "run.json"]
    done = on_gpus(fakes, args, gpus=3, free=FREE_FOR_COPIES)
    assert (done.code, done.stderr) == (0, "")
    titles = [line.partition(" at 1K, µs")[0] for line in done.stdout.splitlines() if " at 1K, µs" in line]
    copies = ["ce-write", "ce-read", "sm-write", "sm-read"]
    hosts = ["host", "host-both-ways", "host-all", "host-all-both-ways"]
    # One way, both ways, staged, …
    assert titles == [*copies, *copies, "ce-write", "one-to-all", "all-to-one", *hosts, "local"]
    assert program("show", "--verbose", "run.json").out + "\nsaved     run.json\n" == done.stdout
