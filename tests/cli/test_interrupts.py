"""Ctrl-C or SIGTERM at any moment: one line that says what is saved, and exit status 130 or 143."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from collbench import runfile
from collbench.cli import program as loaded
from tests.cli.program import Program, on_gpus, one_line
from tests.native.fakes import Fakes

# The seed fixes the order of visits, so that runs of these words make the same calls, more or less.
WORDS = ("pairs", "--sizes", "1K", "--operations", "broadcast", "--seed", "1", "-o", "run.json")
# The worker's calls decide when; whom Ctrl-C ends is its parent, while the worker ignores it.
IN_THE_WORKER: dict[str, object] = {"signal_parent": 1}
NOTHING = ("interrupted before it was done", "interrupted: nothing was measured, nothing is saved")


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("while looking for a GPU", {"interrupt": "nvmlInitWithFlags=1"}),
        ("while listing the GPUs", IN_THE_WORKER | {"interrupt": "cuInit=1"}),
        ("while allocating", IN_THE_WORKER | {"interrupt": "cuMemAlloc_v2=1"}),
        ("while warming up", IN_THE_WORKER | {"interrupt": "cuGraphLaunch=2"}),
    ],
)
def test_before_the_first_visit(fakes: Fakes, tmp_path: Path, case: str, settings: dict[str, object]) -> None:
    done = on_gpus(fakes, tmp_path, WORDS, **settings)
    assert (done.code, done.stdout) == (130, "")
    assert one_line(done.stderr) in NOTHING
    assert not (tmp_path / "run.json").exists()


def test_in_the_middle_what_was_measured_is_saved_and_can_be_shown(
    fakes: Fakes, program: Program, tmp_path: Path
) -> None:
    whole = on_gpus(fakes, tmp_path, WORDS)
    assert whole.code == 0, whole.stderr
    late = len(whole.lines("cuGraphLaunch")) * 3 // 4
    (tmp_path / "run.json").unlink()

    done = on_gpus(fakes, tmp_path, WORDS, interrupt=f"cuGraphLaunch={late}", **IN_THE_WORKER)
    assert (done.code, done.stdout) == (130, "")
    run = runfile.load(tmp_path / "run.json")
    assert not run.complete
    assert one_line(done.stderr) == (
        f"interrupted: {len(run.measurements)} cells measured so far are saved as run.json: "
        "'collbench show run.json' prints them, 'collbench pairs --resume run.json' goes on"
    )
    shown = program("show", "run.json")
    assert (shown.status, shown.err) == (0, "")
    assert "(interrupted)" in shown.out


def test_a_scheduler_that_ends_the_job_leaves_what_was_measured(fakes: Fakes, tmp_path: Path) -> None:
    launches = len(on_gpus(fakes, tmp_path, WORDS).lines("cuGraphLaunch"))
    interrupt = f"cuGraphLaunch={launches * 3 // 4}"
    done = on_gpus(fakes, tmp_path, WORDS, interrupt=interrupt, signal=int(signal.SIGTERM), **IN_THE_WORKER)
    assert done.code == 143
    assert one_line(done.stderr).startswith("interrupted: ")
    assert not runfile.load(tmp_path / "run.json").complete


def test_in_the_probe_of_train_nothing_is_started(fakes: Fakes, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = ["train", "--auto-select", "2", "--fresh", "train.py"]
    done = on_gpus(fakes, tmp_path, words, interrupt="cuGraphLaunch=2", **IN_THE_WORKER)
    # Only the probe is sent this signal, while a terminal sends it to both.
    assert done.code == 1
    assert done.stderr.splitlines()[-1] == (
        "collbench: the probe failed (exit status 130, see above): nothing was started"
    )


def test_while_the_program_still_loads(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(loaded, "run", interrupt)
    said = program("pairs")
    assert said.status == 130
    assert said.line in NOTHING
