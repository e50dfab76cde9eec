"""`--resume FILE` finishes an interrupted run: its options, its file, and nothing is measured twice."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.api import measuring
from collbench.cli.measuring import RunPrinter, file_of, make_request
from collbench.measurement.plan import Request, settings_of
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import CommandKind, Run, StopReason
from collbench.runfile import run_file
from tests.builders import gpus, run_of
from tests.cli.program import Program, on_gpus, one_line, save_run
from tests.native.fakes import Fakes, Outcome
from tests.sim.made import fabric_text

PAIRS = ("pairs", "--sizes", "1K,4K", "--operations", "copy,broadcast", "--seed", "1", "-o", "run.json")
RESUME = ("pairs", "--resume", "run.json")


@pytest.fixture(scope="module")
def late(fakes: Fakes, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of a copy in the last round of trials: three trials settle a data point of fake GPUs."""
    return len(on_gpus(fakes, tmp_path_factory.mktemp("whole"), PAIRS).lines("cuMemcpyPeerAsync")) * 81 // 100


def interrupted(fakes: Fakes, tmp_path: Path, late: int, number: int) -> Outcome:
    settings = {"interrupt": f"cuMemcpyPeerAsync={late}", "signal_parent": 1, "signal": number}
    return on_gpus(fakes, tmp_path, PAIRS, None, **settings)


@pytest.fixture(scope="module")
def stopped(fakes: Fakes, tmp_path_factory: pytest.TempPathFactory, late: int) -> Path:
    """A run file that Ctrl-C left."""
    folder = tmp_path_factory.mktemp("stopped")
    assert interrupted(fakes, folder, late, signal.SIGINT).code == 130
    return folder / "run.json"


def settled(run: Run) -> dict[object, object]:
    """Return the samples of the data points that need no more."""
    done = (StopReason.PRECISION, StopReason.NOISE, StopReason.BUDGET)
    return {measurement.point: measurement.samples for measurement in run.measurements if measurement.stop in done}


def test_after_ctrl_c_the_rest_is_measured_and_nothing_twice(fakes: Fakes, tmp_path: Path, stopped: Path) -> None:
    shutil.copy(stopped, tmp_path)
    before = run_file.load(tmp_path / "run.json")
    done = on_gpus(fakes, tmp_path, RESUME)

    assert (done.code, done.stderr) == (0, "")
    assert "saved     run.json" in done.stdout
    after = run_file.load(tmp_path / "run.json")
    # 12 links × 4 kinds of copy and 6 pairs, at 2 sizes.
    assert (after.complete, len(after.measurements)) == (True, (12 * 4 + 6) * 2)
    assert {measurement.stop for measurement in after.measurements} <= {
        StopReason.PRECISION,
        StopReason.NOISE,
        StopReason.BUDGET,
    }
    assert settled(before).items() <= settled(after).items()
    assert 0 < len(settled(before)) < len(after.measurements)
    assert (after.started, after.settings) == (before.started, before.settings)


def test_after_sigkill_every_finished_trial_is_there_and_the_rest_can_be_measured(
    fakes: Fakes, program: Program, tmp_path: Path, late: int
) -> None:
    assert interrupted(fakes, tmp_path, late, signal.SIGKILL).code == -signal.SIGKILL
    assert sorted(file.name for file in tmp_path.glob("run*")) == ["run.json", "run.json.journal"]
    before = run_file.load(tmp_path / "run.json")
    samples = {measurement.point: len(measurement.samples) for measurement in before.measurements}
    assert sum(samples.values()) > 0
    shown = program("show", "run.json")
    assert (shown.status, shown.err) == (0, "")
    assert "(interrupted)" in shown.out

    done = on_gpus(fakes, tmp_path, RESUME)
    assert (done.code, done.stderr) == (0, "")
    after = run_file.load(tmp_path / "run.json")
    assert after.complete
    assert sorted(file.name for file in tmp_path.glob("run*")) == ["run.json"]
    counts = {measurement.point: len(measurement.samples) for measurement in after.measurements}
    assert all(counts[point] >= count for point, count in samples.items())
    # Fake GPUs take the same time always, so three trials settle a data point; those that decide get seven.
    assert all(counts[point] == count for point, count in samples.items() if count >= 7)


def test_a_complete_run_has_nothing_left_and_needs_no_gpu(program: Program, tmp_path: Path) -> None:
    save_run(tmp_path / "run.json", gpus(4))
    before = (tmp_path / "run.json").read_bytes()
    result = program(*RESUME)
    assert result.status == 3  # pair 0-1 contradicts its label
    assert result.err.startswith("collbench: run.json is complete: there is nothing left to measure\n")
    assert "GPU2-GPU3" in result.out
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("what", "args", "message"),
    [
        ("sizes beside it", "pairs --resume run.json --sizes 8", "leave out --sizes"),
        ("a file beside it", "pairs -o other.json --resume run.json --seed 3", "leave out --output, --seed"),
        ("another command", "allreduce --resume run.json", "write 'collbench pairs --resume run.json'"),
        ("a file that is not there", "pairs --resume none.json", "cannot read run file none.json"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(
    program: Program, tmp_path: Path, what: str, args: str, message: str
) -> None:
    save_run(tmp_path / "run.json", gpus(4), complete=False)
    result = program(*args.split())
    assert (result.status, result.out) == (2, ""), what
    assert message in result.line, what


@pytest.mark.parametrize(
    ("what", "extra", "settings", "message"),
    [
        ("another driver", {}, {"driver": "590.1"}, "its driver was 580.159.04 and is 590.1 now"),
        ("more GPUs", {}, {"gpus": 5}, "it did not measure GPU4 (GPU-fa4e0400-"),
    ],
)
def test_on_another_machine_it_is_refused_and_the_file_left_alone(
    fakes: Fakes,
    tmp_path: Path,
    what: str,
    extra: dict[str, str],
    settings: dict[str, object],
    message: str,
    stopped: Path,
) -> None:
    shutil.copy(stopped, tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    done = on_gpus(fakes, tmp_path, RESUME, extra, **settings)
    assert (done.code, done.stdout) == (2, ""), what
    assert one_line(done.stderr).startswith("run.json cannot be resumed here: "), what
    assert message in done.stderr, what
    assert (tmp_path / "run.json").read_bytes() == before, what


COMMAND_LINES = (
    "pairs",
    "pairs --devices 0,2 --sizes 1K,4K --operations allreduce --precision 1% --seed 3",
    "pairs --quick --operations copy --dtype bfloat16 --op avg",
    "copies",
    "copies --patterns host,one-way --sizes 1M,1G --budget 5s",
    "latency --devices 0,1",
    "latency --collectives --layers 32",
    "check --sizes 32M",
    "check --quick",
    "allreduce",
    "allreduce --pairs --sizes 64M -d bfloat16 --op avg",
    "allreduce --split 2 -b 8 -e 1G -f 2 -n50 --warmup_iters=3 -c 0 -G 7",
    "broadcast --in-place -r 1 -g 2",
    "alltoall --format nccl-tests --iters 5",
    "gather -w 0",
)


def requested_by(monkeypatch: pytest.MonkeyPatch, program: Program, args: str) -> Request:
    """Return the request that a command line makes on four GPUs; nothing is measured."""
    requests: list[Request] = []

    def session(request: Request, *_: object) -> None:
        requests.append(request)
        raise UsageError("not measured")

    monkeypatch.setattr("collbench.measurement.session.Session", session)
    monkeypatch.setattr("collbench.measurement.backends.factory.resolve", lambda _name: ("cuda", None))
    monkeypatch.setattr("collbench.measurement.backends.factory.begin", lambda *_: None)
    monkeypatch.setattr("collbench.measurement.backends.factory.present_devices", lambda _name: gpus(4))
    assert program(*args.split()).status == 2
    return requests[0]


def recorded_by(request: Request) -> Run:
    """Return an interrupted run of this request on four GPUs, of which nothing was measured yet."""
    operations = tuple(work.operation for work in request.collectives)
    settings = settings_of(request, operations, request.sizes or (8,), trials=3, environment={})
    devices = [gpu for gpu in gpus(4) if request.devices is None or str(gpu.index) in request.devices.split(",")]
    return replace(run_of(devices, []), settings=settings, complete=False)


@pytest.mark.parametrize("args", COMMAND_LINES)
def test_resuming_repeats_the_request(
    monkeypatch: pytest.MonkeyPatch, program: Program, tmp_path: Path, args: str
) -> None:
    request = requested_by(monkeypatch, program, args)
    run_file.save(recorded_by(request), tmp_path / "run.json")
    again = requested_by(monkeypatch, program, f"{args.split(maxsplit=1)[0]} --resume run.json")
    assert again == replace(request, resume=True)


# A run file may come from anybody: files that its command line names are neither loaded, read nor written.
NAMED = [
    ("a library", "pairs", ("--nccl", "{trap}")),
    ("a file of labels", "check", ("--topology", "{trap}")),
    ("a file of peer access", "check", ("--p2p", "{trap}")),
    ("a file to save in, by force", "pairs", ("-o", "{trap}", "--force")),
]


@pytest.mark.parametrize(("what", "command", "args"), NAMED, ids=[row[0] for row in NAMED])
def test_files_named_in_a_foreign_run_are_not_touched(
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    command: str,
    args: tuple[str, ...],
) -> None:
    trap = tmp_path / "trap"
    trap.write_text("mine\n")
    recorded = tuple(word.format(trap=trap) for word in args)
    settings = replace(
        save_run(tmp_path / "run.json", gpus(4)).settings,
        command=(command, *recorded),
        kind=CommandKind.of(command),
        collectives=(Work(Operation.ALLREDUCE),),
    )
    save_run(tmp_path / "run.json", gpus(4), complete=False, settings=settings)
    requests: list[Request] = []

    def measured(request: Request, path: Path | None, printer: RunPrinter | None = None) -> Path:
        requests.append(request)
        assert path is not None
        assert path == Path("run.json")
        return path

    def judged(values: Mapping[str, Any]) -> Run:
        return run_file.load(measured(make_request("check", values, measuring.check), file_of(values)))

    monkeypatch.setattr("collbench.cli.measuring.measure_and_show", measured)
    monkeypatch.setattr("collbench.cli.check._measured", judged)
    monkeypatch.setattr("collbench.cli.check._show", lambda *_, **__: None)
    monkeypatch.setattr("collbench.api.peer_mapping.examine", lambda *_, **__: None)
    monkeypatch.setattr("collbench.machine.nvidia_smi.read_topology", pytest.fail)
    monkeypatch.setattr("collbench.machine.nvidia_smi.read_p2p", pytest.fail)
    monkeypatch.setattr("collbench.cli.check.shortfall", lambda *_, **__: "")
    monkeypatch.setattr("collbench.measurement.backends.factory.resolve", lambda name: (name, None))
    result = program(command, "--resume", "run.json")
    assert result.status == 0, result.err
    assert (requests[0].nccl, requests[0].force, requests[0].resume) == (None, False, True)
    assert trap.read_text() == "mine\n"


def test_a_fabrics_file_is_read_only_if_it_is_named_again(program: Program, tmp_path: Path) -> None:
    from collbench.sim import fabrics

    (tmp_path / "fab.json").write_text(fabric_text(fabrics.load("nvlink-pairs-2x2")))
    args = "pairs --backend sim --fabric fab.json --sizes 1M --quick --seed 1"
    assert program(*args.split(), "-o", "run.json").status == 0
    run = replace(run_file.load(tmp_path / "run.json"), complete=False)
    run_file.save(run, tmp_path / "run.json", replace=True)
    result = program(*RESUME)
    assert (result.status, result.out) == (2, "")
    assert "add --fabric fab.json" in result.line
    assert program(*RESUME, "--fabric", "fab.json").status == 0


def test_a_recorded_library_is_not_loaded_and_ones_own_is(fakes: Fakes, tmp_path: Path) -> None:
    """The search finds another version: one line says which option to add."""
    library = tmp_path / "theirs.so"
    library.write_bytes(Path(fakes.nccl).read_bytes())
    args = ("allreduce", "--sizes", "1K", "--seed", "1", "--nccl", str(library), "--output", "run.json")
    assert on_gpus(fakes, tmp_path, args, nccl=22703).code == 0
    run = replace(run_file.load(tmp_path / "run.json"), complete=False)
    run_file.save(run, tmp_path / "run.json", replace=True)
    before = (tmp_path / "run.json").read_bytes()
    library.write_bytes(b"whoever loads this fails")

    refused = on_gpus(fakes, tmp_path, ("allreduce", "--resume", "run.json"), nccl=22809)
    assert (refused.code, refused.stdout) == (2, "")
    assert "its NCCL was 2.27.3 and is 2.28.9 now; add --nccl PATH" in one_line(refused.stderr)
    assert (tmp_path / "run.json").read_bytes() == before
    again = ("allreduce", "--resume", "run.json", "--nccl", str(fakes.nccl))
    assert on_gpus(fakes, tmp_path, again, nccl=22703).code == 0


@pytest.mark.parametrize("name", ["rm -rf ~;", "pairs; rm -rf ~", "$(reboot)", ""])
def test_no_advice_quotes_text_of_a_foreign_run(program: Program, tmp_path: Path, name: str) -> None:
    settings = replace(save_run(tmp_path / "run.json", gpus(4)).settings, kind=CommandKind.OTHER, command=(name, "x"))
    save_run(tmp_path / "run.json", gpus(4), complete=False, settings=settings)
    result = program(*RESUME)
    assert (result.status, result.out) == (2, "")
    assert f"write 'collbench {name}" not in result.line
    assert "not measured by a collbench command" in result.line


@pytest.mark.parametrize("layout", ["env", "docker", "apptainer"])
def test_shell_output_has_no_text_of_a_foreign_run(program: Program, tmp_path: Path, layout: str) -> None:
    """`eval "$(collbench select …)"` runs what is printed."""
    save_run(tmp_path / "run.json", [replace(gpu, uuid=f"GPU-{gpu.index}'; touch owned; '") for gpu in gpus(4)])
    result = program("select", "2", "run.json", "--any-machine", "--format", layout)
    assert (result.status, "touch" in result.out) == (2, False)
    assert "which is not a UUID" in result.err
