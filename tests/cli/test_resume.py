"""`--resume FILE` finishes an interrupted run: its options, its file, and nothing is measured twice."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from collbench import runfile
from collbench.model import Run, StopReason
from tests.builders import gpus
from tests.cli.program import Program, on_gpus, one_line, save_run
from tests.native.fakes import Fakes, Outcome

WORDS = ("pairs", "--sizes", "1K,4K", "--operations", "copy,broadcast", "--seed", "1", "-o", "run.json")
RESUME = ("pairs", "--resume", "run.json")


@pytest.fixture(scope="module")
def late(fakes: Fakes, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Which copy belongs to the last pass over all cells: three visits settle a cell of fake GPUs."""
    return len(on_gpus(fakes, tmp_path_factory.mktemp("whole"), WORDS).lines("cuMemcpyPeerAsync")) * 81 // 100


def interrupted(fakes: Fakes, tmp_path: Path, late: int, number: int) -> Outcome:
    settings = {"interrupt": f"cuMemcpyPeerAsync={late}", "signal_parent": 1, "signal": number}
    return on_gpus(fakes, tmp_path, WORDS, None, **settings)


def settled(run: Run) -> dict[object, object]:
    """Return the samples of the cells that need no more."""
    done = (StopReason.PRECISION, StopReason.NOISE, StopReason.BUDGET)
    return {found.cell: found.samples for found in run.measurements if found.stop in done}


def test_after_ctrl_c_the_rest_is_measured_and_nothing_twice(fakes: Fakes, tmp_path: Path, late: int) -> None:
    assert interrupted(fakes, tmp_path, late, signal.SIGINT).code == 130
    before = runfile.load(tmp_path / "run.json")
    done = on_gpus(fakes, tmp_path, RESUME)

    assert (done.code, done.stderr) == (0, "")
    assert "saved     run.json" in done.stdout
    after = runfile.load(tmp_path / "run.json")
    # 12 links × 4 kinds of copy and 6 pairs, at 2 sizes.
    assert (after.complete, len(after.measurements)) == (True, (12 * 4 + 6) * 2)
    assert {found.stop for found in after.measurements} <= {StopReason.PRECISION, StopReason.NOISE, StopReason.BUDGET}
    assert settled(before).items() <= settled(after).items()
    assert 0 < len(settled(before)) < len(after.measurements)
    assert (after.started, after.settings) == (before.started, before.settings)


def test_after_sigkill_every_finished_visit_is_there_and_the_rest_can_be_measured(
    fakes: Fakes, program: Program, tmp_path: Path, late: int
) -> None:
    assert interrupted(fakes, tmp_path, late, signal.SIGKILL).code == -signal.SIGKILL
    assert sorted(file.name for file in tmp_path.glob("run*")) == ["run.json", "run.json.journal"]
    before = runfile.load(tmp_path / "run.json")
    samples = {found.cell: len(found.samples) for found in before.measurements}
    assert sum(samples.values()) > 0
    shown = program("show", "run.json")
    assert (shown.status, shown.err) == (0, "")
    assert "(interrupted)" in shown.out

    done = on_gpus(fakes, tmp_path, RESUME)
    assert (done.code, done.stderr) == (0, "")
    after = runfile.load(tmp_path / "run.json")
    assert after.complete
    assert sorted(file.name for file in tmp_path.glob("run*")) == ["run.json"]
    counts = {found.cell: len(found.samples) for found in after.measurements}
    assert all(counts[cell] >= count for cell, count in samples.items())
    # Fake GPUs take the same time always, so three visits settle a cell; those that decide get seven.
    assert all(counts[cell] == count for cell, count in samples.items() if count >= 7)


def test_a_complete_run_has_nothing_left_and_needs_no_gpu(program: Program, tmp_path: Path) -> None:
    save_run(tmp_path / "run.json", gpus(4))
    before = (tmp_path / "run.json").read_bytes()
    said = program(*RESUME)
    assert said.status == 0
    assert said.line == "run.json is complete: nothing is left to measure"
    assert "GPU2-GPU3" in said.out
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_cell_that_failed_gets_another_chance(fakes: Fakes, tmp_path: Path) -> None:
    words = ("pairs", "--devices", "0,1", "--operations", "copy", "--sizes", "1K", "--seed", "1", "-o", "run.json")
    small = {"gpus": 2, "free": (256 + 2) * 2**20}  # small buffers: there are no collectives to leave room for
    copies = len(on_gpus(fakes, tmp_path, words, **small).lines("cuMemcpyPeerAsync")) * 81 // 100
    fault = {"interrupt": f"cuMemcpyPeerAsync={copies}", "signal": int(signal.SIGKILL), "once": tmp_path / "once"}
    on_gpus(fakes, tmp_path, words, None, **small, **fault)
    before = runfile.load(tmp_path / "run.json")
    assert [found.stop for found in before.measurements].count(StopReason.FAILED) == 1

    done = on_gpus(fakes, tmp_path, RESUME, **small)
    after = runfile.load(tmp_path / "run.json")
    assert (done.code, done.stderr) == (0, "")
    assert StopReason.FAILED not in {found.stop for found in after.measurements}
    assert not any(found.failure for found in after.measurements)


@pytest.mark.parametrize(
    ("what", "words", "says"),
    [
        ("sizes beside it", "pairs --resume run.json --sizes 8", "leave out --sizes"),
        ("a file beside it", "pairs -o other.json --resume run.json --seed 3", "leave out --output, --seed"),
        ("another command", "allreduce --resume run.json", "write 'collbench pairs --resume run.json'"),
        ("a file that is not there", "pairs --resume none.json", "cannot read run file none.json"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(program: Program, tmp_path: Path, what: str, words: str, says: str) -> None:
    save_run(tmp_path / "run.json", gpus(4), complete=False)
    said = program(*words.split())
    assert (said.status, said.out) == (2, ""), what
    assert says in said.line, what


@pytest.mark.parametrize(
    ("what", "extra", "settings", "says"),
    [
        ("another driver", {}, {"driver": "590.1"}, "its driver was 580.159.04 and is 590.1 now"),
        ("another NCCL", {}, {"nccl": 22703}, "its NCCL was 2.28.9 and is 2.27.3 now"),
        ("fewer GPUs", {"CUDA_VISIBLE_DEVICES": "0,1,2"}, {}, "it was measured on GPU3 (GPU-fa4e0300-"),
        ("more GPUs", {}, {"gpus": 5}, "it did not measure GPU4 (GPU-fa4e0400-"),
    ],
)
def test_on_another_machine_it_is_refused_and_the_file_left_alone(
    fakes: Fakes, tmp_path: Path, what: str, extra: dict[str, str], settings: dict[str, object], says: str, late: int
) -> None:
    interrupted(fakes, tmp_path, late, signal.SIGINT)
    before = (tmp_path / "run.json").read_bytes()
    done = on_gpus(fakes, tmp_path, RESUME, extra, **settings)
    assert (done.code, done.stdout) == (2, ""), what
    assert one_line(done.stderr).startswith("run.json cannot be resumed here: "), what
    assert says in done.stderr, what
    assert (tmp_path / "run.json").read_bytes() == before, what
