"""`collbench check --quick`: everything alone, a few sizes less, and whatever could not be checked fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collbench import runfile
from collbench.cli import gate
from collbench.errors import BackendError
from collbench.fabric import file as fabric_file
from collbench.fabric.model import Fault, FaultKind
from collbench.model import Run, Skipped
from collbench.operations import Operation, Variant
from tests.affinity.checked import failed, h200
from tests.cli.program import Program, Said

SLOW = Fault(FaultKind.SLOW_LINK, (0, 1), factor=0.5)


def quick(program: Program, *faults: Fault, name: str = "hgx-h200") -> Said:
    """Gate a simulated machine with these faults; the run is saved as run.json."""
    fabric = replace(fabric_file.load(name), faults=faults)
    Path("machine.json").write_text(fabric_file.dumps(fabric), encoding="utf-8")
    words = ("--backend", "sim", "--fabric", "machine.json", "--seed", "3", "-o", "run.json")
    return program("check", "--quick", *words)


def test_a_healthy_machine_passes_and_every_pair_was_alone(program: Program) -> None:
    said = quick(program)
    assert (said.status, said.err) == (0, "collbench: saved run.json\n")
    run = runfile.load(Path("run.json"))
    assert {found.cell.variant for found in run.measurements} == {Variant.PLAIN}
    assert {found.cell.size_bytes for found in run.measurements} == {64 * 2**20}
    assert not any(sample.concurrent for found in run.measurements for sample in found.samples)
    assert {len(found.samples) for found in run.measurements} == {3}
    assert sum(found.cell.operation is Operation.ALLREDUCE for found in run.measurements) == 8 * 7 // 2


def test_a_slow_link_is_a_contradiction_at_once(program: Program) -> None:
    said = quick(program, SLOW)
    assert said.status == 3
    assert "NV_DEGRADED  GPU0, GPU1" in said.out
    assert "once more" not in said.err


def test_wrong_data_is_status_4(program: Program) -> None:
    assert quick(program, Fault(FaultKind.CORRUPT_LINK, (0, 1), one_way=True)).status == 4


@pytest.mark.parametrize("backend", [(), ("--backend", "auto")])
def test_a_machine_without_a_gpu_fails_instead_of_passing_by_its_cores(
    program: Program, monkeypatch: pytest.MonkeyPatch, backend: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = program("check", "--quick", *backend)
    assert (said.status, said.out) == (2, "")
    assert said.line.startswith("no GPU to check: CUDA_VISIBLE_DEVICES hides every GPU")


@pytest.mark.parametrize(
    ("expected", "status", "told"),
    [("4", 0, ""), ("8", 1, "4 devices were checked (GPU0, GPU1, GPU2, GPU3), and --expect says 8")],
)
def test_a_missing_gpu_fails(program: Program, expected: str, status: int, told: str) -> None:
    runfile.save(h200(), Path("run.json"))
    said = program("check", "run.json", "--expect", expected)
    assert said.status == status
    assert told in said.err


def without(run: Run, pair: set[int]) -> Run:
    """Return the run as if one pair had been left out."""
    left = [found for found in run.measurements if set(found.cell.members) != pair]
    return replace(run, measurements=left, skipped=[Skipped("ce-write GPU0 → GPU1", "no room")])


def once(run: Run, pair: set[int]) -> Run:
    """Return the run with one visit to a pair's cells."""
    few = [
        replace(found, samples=found.samples[:1]) if set(found.cell.members) == pair else found
        for found in run.measurements
    ]
    return replace(run, measurements=few)


@pytest.mark.parametrize(
    ("case", "run", "told"),
    [
        ("a pair left out", without(h200(), {0, 1}), "cannot vouch for GPU0, GPU1: not measured: no room"),
        ("too few visits", once(h200(), {1, 3}), "cannot vouch for GPU1, GPU3: not measured: the run ended before"),
        (
            "a failed cell",
            failed(h200(), Operation.CE_READ, (2, 3), "CUDA error 719"),
            "cannot vouch for GPU2, GPU3: ce-read failed: CUDA error 719",
        ),
    ],
)
def test_what_was_not_measured_fails(case: str, run: Run, told: str) -> None:
    with pytest.raises(BackendError, match="cannot vouch") as raised:
        gate.require_all(run)
    assert str(raised.value) == told, case


def test_a_whole_run_passes() -> None:
    gate.require_all(h200())
