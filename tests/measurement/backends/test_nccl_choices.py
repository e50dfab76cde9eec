"""What NCCL's log says that it chose, in the format of each version, and how it is made to log it.

The lines of 2.28.9 were recorded on 4 × H200; the others are written as that version's source formats them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.measurement.backends.nccl_choices import ask, choice, questions
from collbench.measurement.backends.protocol import Backend, Step, Timing
from collbench.model.errors import MachineError, StepFailed
from collbench.model.operations import COLLECTIVES, Operation, Registration, Variant, Work
from collbench.model.run import Chosen

MIB = 2**20
SMALL = "vm:1322:1322 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}\n"
LARGE = "vm:1322:1322 [0] NCCL INFO AllReduce: 4194304 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..23}\n"
SUM = Work(Operation.ALLREDUCE)


def log_line(text: str) -> str:
    return f"vm:1322:1322 [0] NCCL INFO {text}\n"


@pytest.mark.parametrize(
    ("title", "log", "operation", "ranks", "size", "reported"),
    [
        ("2.28.9, small", SMALL, Operation.ALLREDUCE, 4, 8, ("RING", "LL", 1)),
        ("2.28.9, large", SMALL + LARGE, Operation.ALLREDUCE, 4, 4 * MIB, ("RING", "LL128", 24)),
        (
            "channels that do not begin at 0",
            log_line("Broadcast: 64 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={2..5}"),
            Operation.BROADCAST,
            2,
            64,
            ("RING", "SIMPLE", 4),
        ),
        (
            "NVLS, with the time in front as NCCL_DEBUG_TIMESTAMP_FORMAT puts it",
            "[2026-01-02 03:04:05] "
            + log_line("AllReduce: 1048576 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}"),
            Operation.ALLREDUCE,
            8,
            MIB,
            ("NVLS_TREE", "SIMPLE", 16),
        ),
        (
            "2.24 and later: bytes of one rank's block",
            log_line("AllGather: 262144 Bytes -> Algo PAT proto SIMPLE channel{Lo..Hi}={0..7}"),
            Operation.ALLGATHER,
            4,
            MIB,
            ("PAT", "SIMPLE", 8),
        ),
        (
            "2.23: numbers, a name, all bytes",
            log_line("ReduceScatter: 1048576 Bytes -> Algo 6 proto 2 time 31.500000"),
            Operation.REDUCESCATTER,
            4,
            MIB,
            ("PAT", "SIMPLE", 0),
        ),
        (
            "2.20 to 2.22: numbers, no name",
            log_line("1048576 Bytes -> Algo 4 proto 2 time 31.500000"),
            Operation.ALLREDUCE,
            4,
            MIB,
            ("NVLS", "SIMPLE", 0),
        ),
        (
            "an algorithm that is newer than we are",
            log_line("1048576 Bytes -> Algo 9 proto 1 time 31.500000"),
            Operation.ALLREDUCE,
            4,
            MIB,
            ("9", "LL128", 0),
        ),
        (
            "a kernel on symmetric memory",
            log_line("AllReduce [Symmetric]: 8 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512 nWorks 1"),
            Operation.ALLREDUCE,
            4,
            8,
            ("AllReduce_AGxLL_R", "SYMMETRIC", 4),
        ),
        (
            "2.27: no works",
            log_line("AllReduce [Symmetric]: 8 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 8 nthreads 512"),
            Operation.ALLREDUCE,
            2,
            8,
            ("AllReduce_RSxLD_AGxST", "SYMMETRIC", 8),
        ),
        (
            "2.29 and later: by copy engine, bytes of one block",
            log_line("AlltoAll [Copy Engine]: 262144 Bytes -> cudaMemcpy"),
            Operation.ALLTOALL,
            4,
            MIB,
            ("cudaMemcpy", "COPY ENGINE", 0),
        ),
        (
            "by copy engine, with its synchronization",
            log_line("Gather [Copy Engine]: 262144 Bytes -> cudaMemcpy; CE synchronization with NVLS"),
            Operation.GATHER,
            4,
            MIB,
            ("cudaMemcpy", "COPY ENGINE", 0),
        ),
        (
            "2.30: by copy engine across hosts",
            log_line("AllGather [Hierarchical CE]: 262144 Bytes -> RMA proxy + CE"),
            Operation.ALLGATHER,
            4,
            MIB,
            ("RMA proxy + CE", "COPY ENGINE", 0),
        ),
        ("the last word counts", SMALL + SMALL.replace("RING", "TREE"), Operation.ALLREDUCE, 4, 8, ("TREE", "LL", 1)),
        ("another size", LARGE, Operation.ALLREDUCE, 4, 8, None),
        ("another operation", SMALL, Operation.REDUCE, 4, 8, None),
        ("a block's bytes where there are no blocks", SMALL, Operation.ALLREDUCE, 4, 32, None),
        ("all-to-all has no algorithm", SMALL, Operation.ALLTOALL, 4, 8, None),
        (
            "other lines of the tuner",
            log_line("TUNER/Plugin: Could not find: libnccl-tuner.so")
            + log_line("AllReduce: tuner chunk size 8 exceeds buffer max 4, clamping"),
            Operation.ALLREDUCE,
            4,
            8,
            None,
        ),
        ("2.19 and older", "", Operation.ALLREDUCE, 4, 8, None),
    ],
)
def test_a_log_is_read(
    title: str, log: str, operation: Operation, ranks: int, size: int, reported: tuple[str, str, int] | None
) -> None:
    expected = None if reported is None else Chosen(operation, ranks, size, *reported)
    assert choice(log, operation, ranks, size) == expected, title


@given(st.text())
def test_no_log_raises(log: str) -> None:
    assert choice(log, Operation.ALLREDUCE, 2, 8) is None


def steps_of(sizes: tuple[int, ...], work: Work = SUM, groups: tuple[tuple[int, ...], ...] = ((0, 1),)) -> list[Step]:
    """Return a step for each group and size, as a sweep would make it."""
    return [
        Step(
            work,
            (group,),
            size,
            100,
            6,
            1,
            "bfloat16",
            "max",
            1,
            launches=20,
        )
        for group in groups
        for size in sizes
    ]


def test_questions_are_one_for_each_operation_registration_number_of_ranks_and_size() -> None:
    window = Work(Operation.ALLREDUCE, registration=Registration.WINDOW)
    planned = steps_of((8, 64), Work(Operation.CE_WRITE))
    planned += steps_of((8, 64), SUM, groups=((0, 1), (2, 3), (0, 1, 2, 3)))
    planned += steps_of((8, 64), Work(Operation.ALLREDUCE, Variant.IN_PLACE))
    planned += steps_of((8, 64), window)
    once = [
        Step(Work(Operation.ALLREDUCE), (group,), size, 1, 1, 0, "bfloat16", "max", 1, verify=False)
        for group in ((0, 1), (0, 1, 2, 3))
        for size in (8, 64)
    ]
    assert questions(planned) == [*once, *(replace(step, work=window) for step in once[:2])]


def test_every_collective_is_queried() -> None:
    queried = {step.work.operation for operation in COLLECTIVES for step in questions(steps_of((8,), Work(operation)))}
    assert queried == set(COLLECTIVES)


class Probe:
    """A backend whose NCCL logs as the process that `pid` names; `fail` are sizes that cost the process its life."""

    def __init__(self, variables: Mapping[str, str], fail: tuple[int, ...] = ()) -> None:
        self.variables, self.fail = variables, fail
        self.pid, self.reserved, self.closed = 1, 0, 0

    def reserve(self, largest_bytes: int) -> None:
        self.reserved = largest_bytes

    def time(self, step: Step) -> Timing:
        if step.size_bytes in self.fail:
            self.pid += 1
            raise StepFailed("hang")
        channels = step.size_bytes // 8
        name = {Operation.ALLREDUCE: "AllReduce", Operation.BROADCAST: "Broadcast"}[step.work.operation]
        with Path(self.variables["NCCL_DEBUG_FILE"].replace("%p", str(self.pid))).open("a", encoding="utf-8") as file:
            file.write(
                log_line(
                    f"{name}: {step.size_bytes} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..{channels - 1}}}"
                )
            )
        return Timing(((1e-6,),))

    def close(self) -> None:
        self.closed += 1


def ask_probe(steps: list[Step], fail: tuple[int, ...] = ()) -> tuple[list[Chosen], Probe]:
    probes: list[Probe] = []

    def open_probe(variables: Mapping[str, str]) -> Backend:
        probes.append(Probe(variables, fail))
        return cast("Backend", cast("Any", probes[0]))

    return ask(open_probe, steps), probes[0]


def test_choices_come_in_the_order_of_the_steps() -> None:
    chosen, probe = ask_probe(steps_of((8, 64)) + steps_of((8,), Work(Operation.BROADCAST)))
    assert chosen == [
        Chosen(Operation.ALLREDUCE, 2, 8, "RING", "LL", 1),
        Chosen(Operation.ALLREDUCE, 2, 64, "RING", "LL", 8),
        Chosen(Operation.BROADCAST, 2, 8, "RING", "LL", 1),
    ]
    assert (probe.reserved, probe.closed) == (64, 1)


def test_a_choice_has_the_memory_that_was_asked_for() -> None:
    work = Work(Operation.ALLREDUCE, registration=Registration.BUFFER)
    chosen, _ = ask_probe(steps_of((8,)) + steps_of((8,), work))
    assert [choice.registration for choice in chosen] == [Registration.NONE, Registration.BUFFER]


def test_a_step_that_fails_leaves_the_others() -> None:
    chosen, _ = ask_probe(steps_of((8, 16, 24, 32)), fail=(16, 24))
    assert [choice.size_bytes for choice in chosen] == [8, 32]


def test_only_variables_of_nccls_log_are_set_for_the_process() -> None:
    _, probe = ask_probe(steps_of((8,)))
    assert {name: value for name, value in probe.variables.items() if name != "NCCL_DEBUG_FILE"} == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "TUNING",
    }
    assert not Path(probe.variables["NCCL_DEBUG_FILE"]).parent.exists(), "the log is gone with the answers"


def test_no_questions_start_no_process() -> None:
    def never(_variables: Mapping[str, str]) -> Backend:
        raise MachineError("no")

    assert ask(never, []) == []
