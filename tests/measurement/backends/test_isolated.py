"""Whatever a worker process does wrong costs one step: the others are timed, in their order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest

from collbench.measurement.backends.isolated import IsolatedBackend, Timeouts
from collbench.measurement.backends.protocol import (
    Call,
    NcclWorld,
    Open,
    Prepared,
    Step,
    Timing,
    WorkerAnswer,
    time_step,
)
from collbench.model.errors import BackendError, CollbenchError, DataCorruption, MachineError, StepFailed, UsageError
from collbench.model.operations import Operation, Variant, Work
from collbench.report import sentences
from tests.builders import gpus
from tests.measurement.backends import fake_worker

ROOT = Path(__file__).parents[3]
COPY = Step(Work(Operation.CE_WRITE), ((0, 1),), 1024, iterations=4, batches=2)
COLLECTIVE = replace(COPY, work=Work(Operation.ALLREDUCE), groups=((0, 1), (2, 3)))
# Long where nothing hangs. Where something does, a healthy fake worker needs far less than the short ones.
LONG = Timeouts(opening_s=100, communicators_s=0, first_s=0, floor_s=100)
SHORT = replace(LONG, first_s=1, floor_s=2, starved_s=1)


@pytest.fixture
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[IsolatedBackend]:
    """Four GPUs in a fake worker that has been started."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAKE_WORKER_ONCE", str(tmp_path / "once"))
    monkeypatch.setenv("FAKE_WORKER_LOG", str(tmp_path / "log"))
    isolated_backend = IsolatedBackend("tests.measurement.backends.fake_worker", getattr(request, "param", LONG))
    isolated_backend.start()
    yield isolated_backend
    isolated_backend.reap()


short_timeouts = pytest.mark.parametrize("backend", [SHORT], indirect=True, ids=[""])


def opened(backend: IsolatedBackend, world: NcclWorld | None = None) -> IsolatedBackend:
    backend.open(Open(gpus(fake_worker.DEVICES), None, collectives=True, world=world))
    backend.reserve(4096)
    return backend


def worker_log(tmp_path: Path) -> list[str]:
    """Return the requests that the workers received, without their process ids."""
    return [line.split(maxsplit=1)[1] for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]


def workers(tmp_path: Path) -> int:
    """Return how many workers there have been."""
    return worker_log(tmp_path).count("open peers=True")


def copies(*fates: int) -> list[Step]:
    """Return one copy for each fate; each has its own size."""
    return [replace(COPY, root=fate, size_bytes=1024 * (n + 1)) for n, fate in enumerate(fates)]


def outcomes(backend: IsolatedBackend, steps: Sequence[Step]) -> list[str]:
    """Return each step's failure as pages print it, "" where it was timed. Fails where steps come in another order."""
    results = list(backend.time_steps(steps))
    assert [step for step, _ in results] == list(steps)
    return [
        "" if isinstance(result, Timing) else sentences.failure(result.failure, gpus(fake_worker.DEVICES))
        for _, result in results
    ]


def test_it_returns_what_the_worker_reported(backend: IsolatedBackend) -> None:
    assert backend.list_gpus() == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
    opened(backend)
    assert (backend.facts.nccl, backend.facts.kernel_image, backend.facts.multicast) == ("2.28.9", "ptx", False)
    assert (backend.capacity_bytes(), len(backend.free_bytes())) == (2**40, 4)
    assert backend.can_run(Work(Operation.CE_WRITE), (0, 1)) is None
    assert backend.unique_id("libnccl") == b"libnccl".ljust(128, b"\0")


def test_times_come_back_as_the_worker_took_them(backend: IsolatedBackend) -> None:
    # 1,024 bytes at the fake's 1 GB/s.
    assert opened(backend).time(COPY).seconds == ((1.024e-6, 1.024e-6),)
    assert backend.time(COLLECTIVE).seconds == ((1.024e-6, 1.024e-6),) * 2


@pytest.mark.parametrize(
    ("title", "fate", "message"),
    [
        (
            "a killed worker",
            fake_worker.KILLED,
            "crash: the worker process died (signal 9, SIGKILL): what it says on stderr",
        ),
        ("a segfault", fake_worker.SEGFAULT, "crash: the worker process died (signal 11, SIGSEGV)"),
        ("a sticky error", fake_worker.STICKY, "ce-write of 1K on GPU0-GPU1 failed: CUDA_ERROR_ILLEGAL_ADDRESS"),
        (
            "a bug of ours",
            fake_worker.BUG,
            "crash: the worker process died (exit status 1): ValueError: links of a round",
        ),
    ],
)
def test_a_fault_costs_its_step_and_the_next_worker_does_the_rest(
    backend: IsolatedBackend, tmp_path: Path, title: str, fate: int, message: str
) -> None:
    steps = copies(fate, *[fake_worker.GOOD] * 6, fate, fake_worker.GOOD)
    failures = outcomes(opened(backend), steps)
    assert [bool(text) for text in failures] == [True, *[False] * 6, True, False], title
    assert message in failures[0], title
    assert workers(tmp_path) == 3, title
    assert worker_log(tmp_path).count("reserve 4096") == 3, title


@pytest.mark.usefixtures("backend")
def test_a_worker_begins_nothing_after_a_failed_step(tmp_path: Path) -> None:
    """A rank that joins the next collective would meet the one that the failed rank never called."""
    parent_pipe, worker_pipe = Pipe()
    command = [sys.executable, "-m", "tests.measurement.backends.fake_worker", str(worker_pipe.fileno())]
    with subprocess.Popen(
        command, pass_fds=[worker_pipe.fileno()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        worker_pipe.close()
        parent_pipe.send(Call("open", (Open(gpus(fake_worker.DEVICES), None, collectives=True),)))
        for step in copies(fake_worker.STICKY, fake_worker.GOOD):
            parent_pipe.send(Call("time", (step,)))
        assert [type(parent_pipe.recv()) for _ in range(3)] == [WorkerAnswer, Prepared, StepFailed]
        parent_pipe.close()
    assert worker_log(tmp_path) == ["open peers=True", "plain 1024"]


@short_timeouts
@pytest.mark.parametrize(
    ("fate", "said"),
    [
        (fake_worker.HANG, "hang: no answer within 2 s, so the worker process was killed"),
        (
            fake_worker.STOPPED,
            "no answer within 3 s; the host was busy: the worker process could hardly run",
        ),
    ],
    ids=["a driver that hangs", "a stopped worker"],
)
def test_silence_costs_its_step_and_is_called_a_hang_where_the_worker_could_run(
    backend: IsolatedBackend, fate: int, said: str
) -> None:
    failures = outcomes(opened(backend), copies(fake_worker.GOOD, fate, fake_worker.GOOD))
    assert (failures[0], failures[2]) == ("", "")
    assert failures[1].startswith(said[:17])
    assert failures[1].endswith(said[20:])


@pytest.mark.parametrize("backend", [replace(SHORT, first_s=50)], indirect=True, ids=[""])
def test_a_later_worker_loads_code_no_longer_than_the_first_did(backend: IsolatedBackend) -> None:
    """Else a second hang on a link, the first step of its worker, would be waited for as if nothing were known."""
    text = "hang: no answer within 2"  # the fake's first step takes microseconds
    failures = outcomes(opened(backend), copies(fake_worker.GOOD, fake_worker.HANG, fake_worker.HANG))
    assert failures[0] == ""
    assert all(failure.startswith(text) for failure in failures[1:]), failures


@short_timeouts
def test_a_failed_step_may_be_tried_again_in_parts_before_the_next(backend: IsolatedBackend, tmp_path: Path) -> None:
    sizes = []
    for step, outcome in opened(backend).time_steps(
        copies(fake_worker.GOOD, fake_worker.HANG_ONCE, fake_worker.GOOD, fake_worker.GOOD)
    ):
        sizes.append(step.size_bytes)
        if isinstance(outcome, StepFailed):
            timings = [time_step(backend, replace(step, groups=(pair,))) for pair in ((0, 1), (2, 3))]
            assert [len(timing.seconds) for timing in timings] == [1, 1]
    assert sizes == [1024, 2048, 3072, 4096]
    assert workers(tmp_path) == 2


def test_steps_without_peer_access_have_a_worker_of_their_own(backend: IsolatedBackend, tmp_path: Path) -> None:
    staged = [
        replace(step, work=Work(Operation.CE_WRITE, Variant.STAGED))
        for step in copies(fake_worker.GOOD, fake_worker.GOOD)
    ]
    assert outcomes(opened(backend), [*copies(fake_worker.GOOD), *staged, *copies(fake_worker.GOOD)]) == [""] * 4
    first_requests = ["open peers=True", "reserve 4096", "plain 1024"]
    assert worker_log(tmp_path) == [
        *first_requests, "open peers=False", "reserve 4096", "staged 1024", "staged 2048", "plain 1024"
    ]  # fmt: skip
    assert len(backend.process_ids) == 2


def test_the_worker_without_peer_access_opens_before_its_first_step_and_is_set_up_once(
    backend: IsolatedBackend, tmp_path: Path
) -> None:
    staged = Work(Operation.CE_WRITE, Variant.STAGED)
    opened(backend)
    backend.ready()
    assert len(backend.process_ids) == 1  # nobody asked for staged copies
    assert backend.can_run(staged, (0, 1)) is None
    backend.ready()
    assert len(backend.process_ids) == 2
    assert outcomes(backend, [replace(step, work=staged) for step in copies(*[fake_worker.GOOD] * 2)]) == [""] * 2
    log = worker_log(tmp_path)
    assert log[log.index("open peers=False") :] == ["open peers=False", "reserve 4096", "staged 1024", "staged 2048"]


def test_gpus_that_two_processes_cannot_open_cost_the_staged_copies_alone(
    backend: IsolatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the compute mode of one process."""
    staged = Work(Operation.CE_WRITE, Variant.STAGED)
    monkeypatch.setenv("FAKE_WORKER_OPEN", "once")
    Path(os.environ["FAKE_WORKER_ONCE"]).touch()  # no later worker opens them
    opened(backend)
    backend.can_run(staged, (0, 1))
    backend.ready()
    one, plain = replace(COPY, work=staged), copies(fake_worker.GOOD)
    failed, timed = outcomes(backend, [one, *plain])
    assert (failed.endswith("CUDA does not show GPU1 to this process"), timed) == (True, ""), failed


@pytest.mark.parametrize(
    ("title", "fate", "error_type"),
    [("wrong data", fake_worker.CORRUPT, DataCorruption), ("what nobody can do", fake_worker.USAGE, UsageError)],
)
def test_errors_that_no_retry_can_mend_are_raised_with_their_type(
    backend: IsolatedBackend, title: str, fate: int, error_type: type[CollbenchError]
) -> None:
    with pytest.raises(error_type):
        list(opened(backend).time_steps(copies(fake_worker.GOOD, fate, fake_worker.GOOD)))
    assert outcomes(backend, copies(fake_worker.GOOD)) == [""], title


def test_a_sweep_that_ends_early_does_not_mix_up_the_next(backend: IsolatedBackend) -> None:
    next(iter(opened(backend).time_steps(copies(*[fake_worker.GOOD] * 4))))
    assert outcomes(backend, copies(fake_worker.GOOD, fake_worker.GOOD)) == ["", ""]


def test_copies_go_on_without_communicators_that_take_too_long(
    backend: IsolatedBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER_PREPARE", "slow")
    backend.reap()  # this worker has its environment already
    backend.start()
    opened(backend).prepare(((0, 1), (2, 3)))
    assert outcomes(backend, copies(fake_worker.GOOD)) == [""]
    (tmp_path / "once").touch()
    assert outcomes(backend, [COLLECTIVE]) == [""]


def test_ready_waits_for_communicators_and_their_failure_shows_in_the_first_collective(
    backend: IsolatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.ready()  # nothing is being made
    monkeypatch.setenv("FAKE_WORKER_PREPARE", "fails")
    backend.reap()
    backend.start()
    opened(backend).prepare(((0, 1), (2, 3)))
    backend.ready()
    assert ["unhandled system error" in text for text in outcomes(backend, [COPY, COLLECTIVE])] == [False, True]


def test_an_nccl_that_never_starts_costs_only_collectives_and_is_tried_in_two_workers(
    backend: IsolatedBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER_PREPARE", "fails")
    backend.reap()
    backend.start()
    opened(backend).prepare(((0, 1), (2, 3)))
    failures = outcomes(backend, [COLLECTIVE, COPY, COLLECTIVE, COLLECTIVE, COPY, COLLECTIVE, COPY])
    assert [bool(text) for text in failures] == [True, False, True, True, False, True, False]
    assert "unhandled system error" in failures[0]
    detail = "creating NCCL communicators failed: unhandled system error"
    refused = f"NCCL failed to start in 2 worker processes; last error: {detail}"
    assert (failures[3], failures[5]) == (refused, refused)
    assert workers(tmp_path) == 3


def test_gpus_that_do_not_open_again_cost_each_step_and_say_why(
    backend: IsolatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER_OPEN", "once")
    backend.reap()
    backend.start()
    failures = outcomes(opened(backend), copies(fake_worker.GOOD, fake_worker.KILLED, fake_worker.GOOD))
    assert failures[0] == ""
    assert "SIGKILL" in failures[1]
    assert failures[2] == "could not start a new worker process: CUDA does not show GPU1 to this process"


def test_errors_before_the_first_step_are_raised(backend: IsolatedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    os.kill(backend.process_ids[0], signal.SIGKILL)
    with pytest.raises(BackendError, match=r"listing the GPUs failed: crash: .* \(signal 9\)"):
        backend.list_gpus()
    monkeypatch.setenv("FAKE_WORKER_DRIVER", "none")
    backend.start()
    with pytest.raises(MachineError, match=r"libcuda\.so\.1 cannot be opened"):
        backend.list_gpus()


def test_a_rank_of_a_world_cannot_be_replaced(backend: IsolatedBackend) -> None:
    opened(backend, NcclWorld((0, 2, 5, 7), 1, b"id"))
    with pytest.raises(BackendError, match=r"rank 2 cannot continue: crash: .*\(signal 11\)") as caught:
        list(backend.time_steps(copies(fake_worker.GOOD, fake_worker.SEGFAULT, fake_worker.GOOD)))
    assert not isinstance(caught.value, StepFailed)


def test_closing_ends_the_worker_even_a_stopped_one(backend: IsolatedBackend) -> None:
    worker = backend.process_ids[0]
    os.kill(worker, signal.SIGSTOP)
    backend.close()
    backend.close()
    assert list(backend.process_ids) == [worker]  # it is on its GPUs yet
    backend.reap()
    assert backend.process_ids == ()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_ctrl_c_in_the_terminal_leaves_the_worker_to_its_parent(backend: IsolatedBackend) -> None:
    opened(backend)
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        os.kill(backend.process_ids[0], signal_number)
    assert outcomes(backend, copies(fake_worker.GOOD)) == [""]


def test_what_nccl_prints_does_not_reach_the_page_and_workers_end_with_their_parent(backend: IsolatedBackend) -> None:
    script = (
        "import os, signal\n"
        "from collbench.measurement.backends.isolated import IsolatedBackend\n"
        "backend = IsolatedBackend('tests.measurement.backends.fake_worker')\n"
        "backend.start()\n"
        "backend.list_gpus()\n"
        "os.kill(backend.process_ids[0], signal.SIGSTOP)\n"
        "print(backend.process_ids[0], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # Returns once nobody holds the pipes any more: the worker is gone too, though it was stopped.
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.strip().isdecimal()
    assert done.stderr == "NCCL INFO what it says on stdout\n"


@pytest.mark.parametrize("backend", [replace(SHORT, communicators_s=100)], indirect=True, ids=[""])
def test_a_hang_of_the_first_copies_does_not_wait_for_communicators_that_exist(backend: IsolatedBackend) -> None:
    hung = outcomes(opened(backend), copies(fake_worker.HANG, fake_worker.HANG))
    assert hung == ["hang: no answer within 3 s, so the worker process was killed"] * 2
