"""`--backend sim --fabric NAME|FILE`: the whole pipeline on a simulated machine, and "sim" on every page."""

import pathlib
import re
from itertools import combinations

import pytest

from collbench.runfile import run_file
from collbench.sim.fabrics import Fault, FaultKind
from tests.cli.program import RANK_0, Program
from tests.sim.made import faulty_file

SIM = ("--backend", "sim", "--fabric", "dgx-1v", "--seed", "1")


def test_devices_are_named_as_pages_name_them_too(program: Program) -> None:
    assert program("topo", "GPU0", "gpu3", *SIM[:4]).out == program("topo", "0", "3", *SIM[:4]).out
    assert program("select", "2", "--exclude", "GPU9", *SIM[:4]).line.startswith(
        "device 'GPU9' is neither a device index"
    )


def test_where_every_rate_is_above_its_limit_no_rate_is_predicted(program: Program) -> None:
    faults = (Fault(FaultKind.MISTIMED, pair, factor=9.0) for pair in combinations(range(4), 2))
    program("pairs", *faulty_file("nvlink-pairs-2x2", *faults), "--sizes", "64M", "--output", "run.json")
    for count in ("2", "3"):
        page = program("select", count, "run.json", "--any-machine").out
        assert page.startswith("IMPOSSIBLE: the set includes GPU"), page  # nothing failed
        assert "with a rate above the limit" in page
        assert not re.search(r"\b0 GB/s|predicted", page), page


def test_what_failed_is_not_counted_as_measured(program: Program) -> None:
    mine = faulty_file("titan-rtx-nv2", Fault(FaultKind.HANGING_LINK, (0, 1)))
    said = program("pairs", *mine, "--sizes", "1M", "--output", "run.json")
    assert said.status == 4
    points = len(run_file.load(pathlib.Path("run.json")).measurements)
    assert points > 1
    assert said.err.splitlines()[-1].startswith(
        "collbench: nothing could be measured: GPU0-GPU1: hang: given up (5 s); "
        f"{points} data points without a result are saved "
    )


def test_several_processes_do_not_simulate(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in RANK_0.items():
        monkeypatch.setenv(name, value)
    result = program("allreduce", *SIM)
    assert result.status == 2
    assert "in one process" in result.line
