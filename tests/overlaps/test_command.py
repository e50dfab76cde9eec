"""`collbench overlap`: a simulated machine's page and file, real gloo workers, levers, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import jsonschema
import pytest

from collbench.model.errors import BackendError, FailureKind, died
from collbench.overlaps.measure import SimOverlap
from collbench.overlaps.results import Overlap, overlaps_of
from collbench.runfile import run_file
from tests.cli.program import RANK_0, Program
from tests.cli.program import collbench as command_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "overlap.md").read_text(encoding="utf-8")
SCHEMA = json.loads((ROOT / "docs" / "run-file.schema.json").read_text(encoding="utf-8"))
SIM = ("--backend", "sim", "--fabric", "titan-rtx-nv2", "--seed", "1")
HOST = ("--backend", "host", "--devices", "0,1", "--compute", "gemm:64", "--seed", "1")

pytestmark = pytest.mark.usefixtures("loaded_program", "loaded_torch", "program")


def undated(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "DATE", text)


def test_the_document_shows_what_is_printed(program: Program) -> None:
    shown = re.findall(r"^    \$ (collbench overlap .*)\n((?:    .*\n|\n(?=    ))+)", PAGE, re.MULTILINE)
    assert shown
    for command, block in shown:
        expected = "".join(line.removeprefix("    ") for line in block.splitlines(keepends=True))
        result = program(*command.split()[1:], "-o", "run.json")
        assert undated(result.out.partition("\nsaved ")[0].rstrip()) == undated(expected.rstrip())


def test_a_simulated_run_repeats_by_its_seed_and_keeps_its_schema(program: Program, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        assert program("overlap", *SIM, "--sizes", "1M,64M", "--trials", "3", "-o", name).status == 0
    first, again = (run_file.load(tmp_path / name) for name in ("a.json", "b.json"))
    assert overlaps_of(first) == overlaps_of(again)
    assert first.complete
    assert first.settings.kind == "overlap"
    assert not first.measurements
    assert run_file.loads(run_file.dumps(first), "again") == first
    jsonschema.validate(json.loads((tmp_path / "a.json").read_text(encoding="utf-8")), SCHEMA)


@pytest.mark.parametrize(
    ("title", "args", "message"),
    [
        ("another operation", ("sendrecv", *SIM), "choose from allreduce"),
        ("no operation", ("nothing", *SIM), "choose from allreduce"),
        ("unknown compute", (*SIM, "--compute", "fft"), "compute 'fft' is unknown"),
        ("no number of CTAs", (*SIM, "--ctas", "0"), "--ctas '0'"),
        ("words for CTAs", (*SIM, "--ctas", "some"), "--ctas 'some'"),
        ("a size that no rank has a part of", ("allgather", *SIM, "--sizes", "16"), "larger --sizes"),
        ("priority on cores", (*HOST, "--priority", "high"), "leave out --priority and --ctas"),
        ("CTAs on cores", (*HOST, "--ctas", "2"), "leave out --priority and --ctas"),
        ("one device", ("--backend", "sim", "--fabric", "titan-rtx-nv2", "--devices", "0"), "two"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(
    program: Program, tmp_path: Path, title: str, args: tuple[str, ...], message: str
) -> None:
    result = program("overlap", *args)
    assert (result.status, message in result.line) == (2, True), title
    assert not list(tmp_path.rglob("*.json")), title


@pytest.mark.parametrize(
    ("variable", "value"),
    [("CUDA_LAUNCH_BLOCKING", "1"), ("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("PYTORCH_NO_CUDA_MEMORY_CACHING", "0")],
)
def test_a_variable_that_makes_figures_false_is_refused_on_gpus(
    program: Program, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    result = program("overlap", "--backend", "cuda")
    assert (result.status, result.line.startswith(f"{variable}={value}: ")) == (2, True), result.err
    assert program("overlap", *SIM, "--sizes", "1M", "--trials", "3", "-o", "run.json").status == 0


def test_a_launcher_is_refused(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in RANK_0.items():
        monkeypatch.setenv(name, value)
    result = program("overlap", *SIM)
    assert result.status == 2
    assert "starts one process per GPU itself" in result.line


def test_a_worker_that_dies_ends_the_run_with_what_was_measured(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = SimOverlap.allocate

    def dies_at_64m(self: SimOverlap, point: Overlap) -> None:
        allocate(self, point)
        if point.size_bytes == 2**26:
            raise BackendError("rank 1 died (killed by signal 9)", failure=died(-9, "", (1,)))

    monkeypatch.setattr(SimOverlap, "allocate", dies_at_64m)
    result = program("overlap", *SIM, "--sizes", "1M,64M,128M", "--trials", "3", "-o", "run.json")
    assert result.status == 1, result.err
    assert result.out.startswith("FAILED: "), result.out
    assert "killed by signal 9" in result.err
    assert "run.json" in result.err
    run = run_file.load(tmp_path / "run.json")
    first, failed = overlaps_of(run)
    assert first.trials
    assert failed.failure is not None
    assert failed.failure.kind is FailureKind.CRASH
    assert not run.complete
    shown = program("show", "run.json").out
    assert re.match(r"FAILED: GPU0-GPU1: allreduce of 64M overlapping gemm:\d+: crash", shown), shown
    assert "the worker process died" in shown


# With gloo and torch on two cores: the worker's true code.

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8")
    return [int(word) for word in text.split()]


@needs_two_cores
@pytest.mark.usefixtures("own_program")
def test_a_signal_leaves_what_was_measured_and_no_process(tmp_path: Path) -> None:
    command = command_of("overlap", *HOST, "--sizes", "4K:4M", "--trials", "3", "-o", str(tmp_path / "run.json"))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not (tmp_path / "run.json").exists():  # which the first data point makes
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = children(process.pid)
    process.terminate()
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (143, ""), err
    run = run_file.load(tmp_path / "run.json")
    assert overlaps_of(run)
    assert not run.complete
    assert re.fullmatch(r"collbench: interrupted: \d+ data points? measured so far .*saved as .*run.json.*\n", err), err
    assert workers
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
