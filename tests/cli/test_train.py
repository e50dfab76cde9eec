"""`collbench train` on simulated GPUs: which runs it uses, which devices it chooses, what the job gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from collbench.api import by_run
from collbench.choose.freshness import Here
from collbench.model.run import Device
from tests.builders import gpus, pair_run
from tests.cli.program import (
    Program,
    fake_gpus,
    fake_uuid,
    list_only,
    on_gpus,
    one_line,
    save_run,
    saved_in,
)
from tests.native.fakes import Fakes
from tests.ranks.processes import PATIENCE_S, wait_for
from tests.ranks.processes import environment as own_environment

pytestmark = pytest.mark.usefixtures("loaded_torch")
# What a rank got goes to a file: ranks' prints interleave.
SCRIPT = """
import json, os, pathlib, sys
got = {"visible": os.environ["CUDA_VISIBLE_DEVICES"], "argv": sys.argv[1:], "world": os.environ["WORLD_SIZE"]}
pathlib.Path("rank" + os.environ["RANK"] + ".json").write_text(json.dumps(got))
sys.exit(int(os.environ.get("FAIL_WITH", "0")))
"""
PROBED = "(quick probe)"
MACHINE = pair_run(2, lambda *_: 1.0).machine
OTHER_DRIVER = replace(MACHINE, driver="570.1")


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    """A script that writes what it got."""
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")


def visible(*indices: int) -> str:
    return ",".join(fake_uuid(index) for index in indices)


def test_the_best_pair_of_a_saved_run_trains_and_the_line_names_the_run(fakes: Fakes, tmp_path: Path) -> None:
    save_run(saved_in(tmp_path), fake_gpus())
    program_args = ["train.py", "--auto-select", "9", "-h", "$HOME", ""]
    done = on_gpus(fakes, ["train", "--auto-select", "2", *program_args])

    assert done.code == 0, done.stderr
    passed_on, line = done.stderr.splitlines()[:2]
    assert passed_on.startswith("collbench: --auto-select passed to train.py: put it before the script")
    assert line.startswith(f"collbench: using GPU2, GPU3 ({fake_uuid(2)}, {fake_uuid(3)}): ")
    assert f"saved at {saved_in(tmp_path)})" in line
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert ranks == [{"visible": visible(2, 3), "argv": program_args[1:], "world": "2"}] * 2


def test_the_exit_status_is_torchruns(fakes: Fakes) -> None:
    done = on_gpus(fakes, ["train", "--devices", "3", "train.py"], {"FAIL_WITH": "7"})
    assert done.code == 1  # torchrun's own for any failure; it names the script's status
    assert "exitcode  : 7" in done.stderr


@pytest.mark.parametrize(
    ("case", "args", "indices", "why"),
    [
        ("by index, in this order", ["--devices", "3,0"], (3, 0), "chosen by hand (--devices)"),
        ("by a shortened UUID", ["--devices", "GPU-fa4e02,1"], (2, 1), "chosen by hand (--devices)"),
        ("as many as there are", ["--auto-select", "4"], (0, 1, 2, 3), "no choice to make, links not probed"),
    ],
)
def test_without_a_choice_nothing_is_measured(
    fakes: Fakes, tmp_path: Path, case: str, args: list[str], indices: tuple[int, ...], why: str
) -> None:
    done = on_gpus(fakes, ["train", *args, "--dry-run", "train.py"])
    assert done.code == 0, case
    assert why in one_line(done.stderr), case
    assert done.stdout.startswith(f"CUDA_VISIBLE_DEVICES={visible(*indices)} "), case
    assert not (tmp_path / "state").exists(), case


def test_a_gpu_that_became_busy_since_the_run_is_left_out_at_launch(fakes: Fakes, tmp_path: Path) -> None:
    save_run(saved_in(tmp_path), fake_gpus())
    done = on_gpus(fakes, ["train", "--auto-select", "2", "--dry-run", "train.py"], process="0,3=4242")
    assert (done.code, bool(done.stdout)) == (0, True)
    assert "left out: GPU3 (busy: 1 other process; busy: 90%" in done.stderr.splitlines()[0]
    assert visible(3) not in done.stdout


def test_fresh_probes_although_a_run_is_saved(fakes: Fakes, tmp_path: Path) -> None:
    save_run(saved_in(tmp_path), fake_gpus())
    args = ["train", "--auto-select", "2", "--fresh", "--dry-run", "train.py"]
    done = on_gpus(fakes, args, rate="100,0-1=10")
    assert done.code == 0, done.stderr
    assert done.stderr.startswith("collbench: probing for a few seconds\ncollbench: using ")
    assert done.stderr.endswith(f"{PROBED}\n")
    assert len(list(saved_in(tmp_path).parent.iterdir())) == 2  # the next start finds the probe's run


def test_a_probe_that_fails_starts_nothing_and_keeps_its_line(fakes: Fakes, tmp_path: Path) -> None:
    args = ["train", "--auto-select", "2", "train.py"]
    done = on_gpus(fakes, args, fail="ncclCommSplit:2:1")
    assert done.code == 1
    first, last = done.stderr.splitlines()
    assert first == "collbench: no saved run fits: probing for a few seconds"
    assert last.startswith("collbench: the probe failed: ")
    assert "ncclCommSplit" in last
    assert last.endswith("; nothing was started")
    assert not (tmp_path / "rank0.json").exists()


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, program: Program) -> list[str]:
    """Four GPUs that are only listed, and a probe with a prepared result; the list gets an entry for each."""
    probed: list[str] = []

    def probe(*_: object) -> by_run.SuitableRun:
        probed.append("probe")
        return by_run.SuitableRun(save_run(Path("probe.json"), gpus(4)), "quick probe")

    list_only(monkeypatch, gpus(4))
    monkeypatch.setattr(by_run, "here", lambda of: Here("cuda", of.candidates, "580.159.04", "2.28.9"))
    monkeypatch.setattr(by_run, "probe", probe)
    return probed


def choose(program: Program, *args: str) -> str:
    stderr = program("train", "--auto-select", "2", "--backend", "cuda", *args, "--dry-run", "train.py")
    assert stderr.status == 0, stderr.err
    return stderr.line


def test_the_newest_run_that_fits_is_taken_and_what_is_no_run_is_ignored(
    program: Program, listed: list[str], tmp_path: Path
) -> None:
    older, newer, newest, note = (saved_in(tmp_path, age=timedelta(days=days)) for days in (4, 3, 2, 1))
    save_run(older, gpus(4))
    save_run(newer, gpus(4))
    save_run(newest, fake_gpus())
    note.write_text("no run", encoding="utf-8")
    assert f"saved at {newer})" in choose(program)
    assert listed == []


def test_a_run_that_is_named_is_taken(program: Program, listed: list[str], tmp_path: Path) -> None:
    save_run(tmp_path / "mine.json", gpus(4), timedelta(days=30))
    assert "saved at mine.json)" in choose(program, "--run-file", "mine.json", "--max-age", "31d")
    assert listed == []


@pytest.mark.parametrize(
    ("case", "devices", "age", "changes", "why"),
    [
        ("stale", gpus(4), timedelta(days=9), {}, "it is 9d old, more than --max-age 7d"),
        ("of another machine", fake_gpus(4), timedelta(0), {}, f"it was measured on GPU0 ({fake_uuid(0)}), GPU1 ("),
        ("by another driver", gpus(4), timedelta(0), {"machine": OTHER_DRIVER}, "its driver was 570.1 and is 580.159"),
    ],
)
def test_an_unsuitable_named_run_is_refused_with_the_reason(
    program: Program,
    listed: list[str],
    case: str,
    devices: tuple[Device, ...],
    age: timedelta,
    changes: dict[str, object],
    why: str,
) -> None:
    save_run(Path("mine.json"), devices, age, **changes)
    stderr = program("train", "--auto-select", "2", "--run-file", "mine.json", "train.py")
    assert (stderr.status, stderr.out, listed) == (2, "", []), case
    assert stderr.line.startswith(f"mine.json cannot choose devices here: {why}")
    assert stderr.line.endswith("; measure again or use --fresh")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process has one core, and nothing to probe")
def test_sigterm_in_the_probe_ends_the_probe_too(tmp_path: Path) -> None:
    """As a pod's kubelet does: the signal goes to the first process only. The probe's workers would stay.

    A worker that is just being started would end by itself, which `sleep` does not: the signal comes after.
    """
    (tmp_path / "probe").write_text("#!/bin/sh\nmkdir probing.$$ && exec sleep 1000\n", encoding="utf-8")
    (tmp_path / "probe").chmod(0o755)
    code = """if True:
        import pathlib, sys
        from collbench.cli import main
        from collbench.measurement.backends import child_process

        def wait_for_answers(*arguments, original=child_process.readable):
            pathlib.Path("waiting").touch()
            return original(*arguments)

        child_process.readable, sys.executable = wait_for_answers, "./probe"
        sys.exit(main())
    """
    args = [sys.executable, "-c", code, "train", "--auto-select", "1", "--backend", "host", "--fresh", "train.py"]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    training = subprocess.Popen(
        ["taskset", "-c", cores, *args], cwd=tmp_path, env=own_environment(tmp_path), stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for("a worker for each core", lambda: len(list(tmp_path.glob("probing.*"))) == 2, [training])
        wait_for("the wait for their answers", (tmp_path / "waiting").exists, [training])
        training.terminate()
        _, stderr = training.communicate(timeout=PATIENCE_S)
    finally:
        training.kill()
    assert training.returncode == 143
    assert stderr.splitlines() == [
        "collbench: probing for a few seconds",
        "collbench: interrupted in the probe: nothing was started",
    ]
    for worker in tmp_path.glob("probing.*"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(worker.suffix[1:]), 0)
