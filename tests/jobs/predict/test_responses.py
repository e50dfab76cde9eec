"""What a record shows of a step's response to longer transfers: programs are played, and played again slower."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.jobs.job import Call, Group, Job, JobRank, Phase, Position, Sample, Source
from collbench.jobs.predict.recorded import Sent, responding
from collbench.jobs.predict.responses import Response, Responses, responses
from tests.jobs.made import STARTED, spread, without_gpu_times

RANKS = 2
_LAUNCH = 15e-6


@dataclass(frozen=True)
class Op:
    """What a rank does: compute for some seconds, send a call to a lane, or wait for the n-th call of the step."""

    kind: Literal["compute", "send", "wait"]
    seconds: float = 0.0
    call: int = 0
    lane: int = 0


def compute(seconds: float) -> Op:
    return Op("compute", seconds)


def send(call: int, lane: int = 0) -> Op:
    return Op("send", call=call, lane=lane)


def wait(call: int) -> Op:
    return Op("wait", call=call)


TENSOR_PARALLEL = [op for call in range(4) for op in (compute(1e-3), send(call), wait(call))]
DATA_PARALLEL = [
    compute(6e-3),
    *[op for call in range(5) for op in (compute(1.5e-3), send(call))],
    *[wait(call) for call in range(5)],
]
# Each layer's gather is sent while the layer before computes, and waited for at its beginning.
SHARDED = [
    send(0),
    *[op for layer in range(16) for op in (wait(layer), *([send(layer + 1)] if layer < 15 else []), compute(1.5e-3))],
]


@dataclass
class Played:
    """What happened: of each rank its steps' calls, as (host, begin, took), and how long a step took in the end."""

    calls: list[list[list[tuple[float, float, float]]]]
    step: float


def play(
    program: Sequence[Op],
    transfer: Mapping[int, float],
    *,
    steps: int = 30,
    jitter: float = 0.02,
    host: float = 0.0,
    seed: int = 1,
) -> Played:
    """Run a program on ranks whose compute varies; `host` is the host's time for each op, 0 where it runs far ahead."""
    chance = random.Random(seed)
    ready, now = [0.0] * RANKS, [0.0] * RANKS  # of the GPU's compute, of the host
    lanes: dict[int, list[float]] = {}
    calls: list[list[list[tuple[float, float, float]]]] = [[] for _ in range(RANKS)]
    ends = list[float]()
    for _ in range(steps):
        sent: dict[int, float] = {}
        for mine in calls:
            mine.append([])
        for op in program:
            for rank in range(RANKS):
                now[rank] += host
                if op.kind == "compute":
                    ready[rank] = max(ready[rank], now[rank] + _LAUNCH if host else 0.0)
                    ready[rank] += op.seconds * (1 + chance.uniform(-jitter, jitter))
            if op.kind == "send":
                free = lanes.setdefault(op.lane, [0.0] * RANKS)
                begins = [max(ready[rank], free[rank], now[rank] + _LAUNCH if host else 0.0) for rank in range(RANKS)]
                sent[op.call] = max(begins) + transfer[op.call]
                for rank in range(RANKS):
                    called = now[rank] if host else begins[rank] - 5e-3
                    calls[rank][-1].append((called, begins[rank], sent[op.call] - begins[rank]))
                    free[rank] = sent[op.call]
            if op.kind == "wait":
                ready = [max(one, sent[op.call]) for one in ready]
        ends.append(max(ready))
    half = steps // 2
    return Played(calls, (ends[-1] - ends[half]) / (steps - 1 - half))


def recorded(played: Played, lanes: Sequence[int]) -> Job:
    """Return the job as the recorder would: two calls are alike in the table where their lane is."""
    names = sorted(set(lanes))
    table = tuple(Call("allreduce", 1 << 20, lane, "float32") for lane in range(len(names)))
    ranks = []
    for rank, steps in enumerate(played.calls):
        samples = []
        for number in range(1, len(steps)):
            starts, begins, took = zip(*steps[number], strict=True)
            before = steps[number - 1][-1]
            samples.append(
                Sample(
                    number - 1,
                    tuple(1e6 * one for one in starts),
                    tuple(1e6 * one for one in took),
                    tuple(1e6 * one for one in begins),
                    (1e6 * before[1], 1e6 * before[2]),
                )
            )
        positions = tuple(Position(names.index(lane), pause=spread(1.0), gpu=spread(1.0)) for lane in lanes)
        ranks.append(JobRank(rank, (Phase(positions, len(samples), tuple(samples)),), "node", rank))
    groups = tuple(Group(tuple(range(RANKS)), RANKS, str(name)) for name in names)
    return Job(Source.PLUGIN, STARTED, RANKS, groups, table, tuple(ranks))


def lanes_of(program: Sequence[Op]) -> list[int]:
    return [op.lane for op in program if op.kind == "send"]


def predicted(played: Played, program: Sequence[Op], old: Mapping[int, float], new: Mapping[int, float]) -> list[float]:
    """Return the steps that are predicted of the rank that waits least: at least, middle, at most."""
    found = responses(recorded(played, lanes_of(program)))
    seen = min(found.values(), key=lambda one: sum(kernel.took for kernel in one.kernels))
    pause = played.step / len(old)
    calls = [Sent(pause, lane, old[at], (new[at],) * 3) for at, lane in enumerate(lanes_of(program))]
    return list(responding(calls, seen).step)


def alike(program: Sequence[Op], seconds: float) -> dict[int, float]:
    return {op.call: seconds for op in program if op.kind == "send"}


@pytest.mark.parametrize("program", [TENSOR_PARALLEL, DATA_PARALLEL, SHARDED], ids=["tp", "ddp", "fsdp"])
@pytest.mark.parametrize("slower", [0.5, 1.0, 2.0, 8.0, 20.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_step_with_slower_links_is_what_it_then_is(program: list[Op], slower: float, seed: int) -> None:
    old, new = alike(program, 0.2e-3), alike(program, 0.2e-3 * slower)
    played = play(program, old, seed=seed)
    truth = play(program, new, seed=seed + 100).step
    least, middle, most = predicted(played, program, old, new)
    assert middle == pytest.approx(truth, rel=0.05)
    assert least <= middle <= most


@pytest.mark.parametrize(("program", "share"), [(TENSOR_PARALLEL, 1.0), (DATA_PARALLEL, 0.0)], ids=["tp", "ddp"])
def test_what_is_waited_for_is_told_from_what_is_not(program: list[Op], share: float) -> None:
    played = play(program, alike(program, 0.2e-3))
    for seen in responses(recorded(played, lanes_of(program))).values():
        inner = seen.kernels[
            1:
        ]  # of data parallel, the first kernel of a step waits for the last one of the step before
        assert all(one.low - 0.05 <= share <= one.high + 0.05 for one in inner)
        assert all(abs(one.share - share) < 0.1 for one in inner)


def test_a_gpu_that_waits_for_its_host_has_that_time_to_lose() -> None:
    """With a slow host a step is the host's, until transfers are so long that the GPU is busy all the time."""
    old = alike(TENSOR_PARALLEL, 0.2e-3)
    slow = 0.8e-3
    played = play(TENSOR_PARALLEL, old, host=slow)
    assert played.step == pytest.approx(12 * slow, rel=0.02)
    for factor in (1.0, 2.0):
        new = alike(TENSOR_PARALLEL, 0.2e-3 * factor)
        truth = play(TENSOR_PARALLEL, new, host=slow).step
        assert truth == pytest.approx(played.step, rel=0.02)
        least, middle, most = predicted(played, TENSOR_PARALLEL, old, new)
        assert least <= middle * (1 + 1e-9)
        assert least <= truth * 1.05
        assert truth <= most * 1.05
    found = responses(recorded(played, lanes_of(TENSOR_PARALLEL)))
    assert all(one.host_bound > 0.9 for one in found.values())


def test_ranks_that_always_come_together_show_nothing_and_the_interval_says_so() -> None:
    played = play(TENSOR_PARALLEL, alike(TENSOR_PARALLEL, 0.2e-3), jitter=0.0)
    for seen in responses(recorded(played, lanes_of(TENSOR_PARALLEL))).values():
        assert all((one.low, one.high) == (0.0, 1.0) for one in seen.kernels)


def test_a_record_without_beginnings_shows_nothing() -> None:
    job = recorded(play(TENSOR_PARALLEL, alike(TENSOR_PARALLEL, 0.2e-3)), lanes_of(TENSOR_PARALLEL))
    assert len(responses(job)) == RANKS
    assert not responses(without_gpu_times(job))

    def bare(phase: Phase) -> Phase:
        return replace(phase, samples=tuple(replace(one, gpu_starts=(), gpu_before=()) for one in phase.samples))

    assert not responses(replace(job, ranks=tuple(replace(one, phases=(bare(one.phases[0]),)) for one in job.ranks)))


kernels = st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2)), min_size=1, max_size=6)


@settings(max_examples=30)
@given(kernels, st.floats(0, 5e-2), st.floats(0, 1), st.integers(0, 2))
def test_longer_transfers_never_give_a_shorter_step(
    made: list[tuple[float, float, float]], more: float, part: float, which: int
) -> None:
    seen = Responses(
        tuple(range(len(made))),
        tuple(Response(0, took, gap, share, share / 2, (1 + share) / 2) for share, took, gap in made),
        0.0,
    )
    base = seen.step([0.0] * len(made), which)
    little, much = (seen.step([more * size] * len(made), which) for size in (part, 1.0))
    assert base <= little * (1 + 1e-9) + 1e-12
    assert little <= much * (1 + 1e-9) + 1e-12
    pause = 1e-2
    same = responding([Sent(pause, 0, took, (took,) * 3) for _, took, _ in made], seen)
    assert same.step == pytest.approx((pause * len(made),) * 3)
