"""`collbench check --quick`: isolated trials of few sizes, and a failure for everything that could not be checked."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.model.errors import FailureKind
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run, SkipKind, Skipped
from collbench.runfile import run_file
from collbench.sim.fabrics import Fault
from tests.cli.program import Program, Result
from tests.judge.checked import failed, h200, pcie
from tests.sim.made import faulty_file


def quick(program: Program, *faults: Fault) -> Result:
    """Run `check --quick` on a simulated HGX with these faults; the run is saved as run.json."""
    return program("check", "--quick", *faulty_file("hgx-h200", *faults), "--seed", "3", "-o", "run.json")


def test_a_healthy_machine_passes_and_every_pair_was_isolated(program: Program) -> None:
    result = quick(program)
    assert (result.status, result.err) == (0, "")
    assert result.out.endswith("\nsaved     run.json\n")
    run = run_file.load(Path("run.json"))
    assert {measurement.point.variant for measurement in run.measurements} == {Variant.PLAIN}
    assert {measurement.point.size_bytes for measurement in run.measurements} == {64 * 2**20}
    assert not any(sample.concurrent for measurement in run.measurements for sample in measurement.samples)
    assert {len(measurement.samples) for measurement in run.measurements} == {3}
    assert sum(measurement.point.operation is Operation.ALLREDUCE for measurement in run.measurements) == 8 * 7 // 2


@pytest.mark.parametrize("backend", [(), ("--backend", "auto")])
def test_a_machine_without_a_gpu_fails_instead_of_passing_by_its_cores(
    program: Program, monkeypatch: pytest.MonkeyPatch, backend: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = program("check", "--quick", *backend)
    assert (result.status, result.out) == (2, "")
    assert result.line.startswith("no GPU to check: CUDA_VISIBLE_DEVICES hides every GPU")
    simulated = program("check", "--fabric", "dgx-1v")  # not advice for CPU cores
    assert simulated.status == 2
    assert simulated.line.startswith("--fabric dgx-1v is a machine to simulate: add --backend sim")


def test_a_log_of_both_streams_says_once_what_is_missing(tmp_path: Path) -> None:
    run_file.save(h200(), tmp_path / "run.json")
    command = [sys.executable, "-m", "collbench", "check", "run.json", "--expect", "8"]
    log = subprocess.run(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    assert log.returncode == 1
    assert " ".join(log.stdout.split()).count("--expect requires 8") == 1, log.stdout


@pytest.mark.parametrize(("gbs", "strict"), [(24.0, 0), (9.0, 3)])
def test_strict_does_not_pass_what_is_far_below_theory_without_a_contradiction(
    program: Program, gbs: float, strict: int
) -> None:
    run = pcie({}, lambda _work, _members: gbs)
    kept = [found for found in run.measurements if found.point.variant is Variant.PLAIN]
    run_file.save(replace(run, measurements=kept), Path("run.json"))
    assert (program("check", "run.json").status, program("check", "run.json", "--strict").status) == (0, strict)
    answer = json.loads(program("check", "run.json", "--strict", "--json").out)
    said = "Nothing contradicts the labels, but P2P may be slower than host memory." if strict else "Labels, tools and"
    assert (answer["exit_status"], answer["verdicts"], answer["conclusion"].startswith(said)) == (strict, [], True)


def without(run: Run, pair: set[int]) -> Run:
    """Return the run as if one pair had been left out."""
    measured_pairs = [measurement for measurement in run.measurements if set(measurement.point.members) != pair]
    first, second = sorted(pair)
    why = Skipped(SkipKind.OTHER, Work(Operation.CE_WRITE), (first, second), detail="no room")
    return replace(run, measurements=measured_pairs, skipped=[why])


@pytest.mark.parametrize(
    ("case", "run", "reported"),
    [
        ("a pair left out", without(h200(), {0, 1}), "GPU0-GPU1 was not judged: no room; 5 of 6 pairs were judged"),
        (
            "a failed data point",
            failed(h200(), Operation.CE_READ, (2, 3), "CUDA error 719", FailureKind.ERROR),
            "GPU2-GPU3 was not judged: failed; 5 of 6 pairs were judged",
        ),
    ],
)
def test_a_pair_that_was_not_judged_fails_where_all_are_expected(
    program: Program, case: str, run: Run, reported: str
) -> None:
    run_file.save(run, Path("run.json"))
    result = program("check", "run.json", "--expect", "4")
    assert (result.status, result.line.startswith(reported)) == (1, True), (case, result.err)
    assert result.out.count("FAILED") == (1 if case == "a pair left out" else 2), (
        case
    )  # in the first line, and the verdict
    page = program("check", "run.json").out
    assert "Labels, tools and measurement agree." not in page, case
    assert "agree     6 of 6" not in page, case
    data = json.loads(program("check", "run.json", "--expect", "4", "--json").out)
    assert data["exit_status"] == 1, case
