"""Measures a made machine with collbench's own plan, sweep and stopping rule, in time and noise of this model."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from collbench.measurement.backends.protocol import Backend, Opened, Step, Timing
from collbench.measurement.confirm import confirm
from collbench.measurement.plan import Request, empty_run, make_plan
from collbench.measurement.sweep import Watcher, sweep
from collbench.model.operations import Operation, Variant
from collbench.model.run import Device, Flag, FlagKind, Health, Machine, Run

from .machines import Made

_LAUNCH_S, _COLLECTIVE_S, _STEP_S = 3e-6, 9e-6, 6e-4
_FASTEST = 0.985  # of the limit of a path
_THROTTLED = "hardware thermal slowdown"
_Transfers = tuple[tuple[int | None, int | None], ...]
_BATCH = 0.001  # standard deviation of a batch within a trial
# Engines and sides differ a little, as they do on real links.
_SHARES = {
    Operation.CE_WRITE: 1.0,
    Operation.CE_READ: 0.995,
    Operation.SM_WRITE: 0.94,
    Operation.SM_READ: 0.945,
    Operation.BROADCAST: 1.08,
}


class Noise:
    """The log by which one trial is slower than the typical one; positive is slower. `key` is what is timed."""

    def __init__(self, sigma: float, rng: np.random.Generator) -> None:
        self.sigma, self.rng = sigma, rng

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial that begins at this second of the run."""
        del members, key, seconds
        return self.sigma * float(self.rng.standard_normal())

    def next_run(self) -> None:
        """Begin another run, in which what lasts for a run is drawn anew."""


class OnePair(Noise):
    """One pair is as noisy as `sigma`, all others have 0.2%."""

    def __init__(self, sigma: float, rng: np.random.Generator, pair: frozenset[int]) -> None:
        super().__init__(sigma, rng)
        self.pair = pair

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        scale = self.sigma if frozenset(members) == self.pair else 0.002
        return scale * float(self.rng.standard_normal())


class TwoModes(Noise):
    """Three trials of ten are slower by `sigma`; beside that 0.3%."""

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        return self.sigma * float(self.rng.random() < 0.3) + 0.003 * float(self.rng.standard_normal())


class Lasting(TwoModes):
    """The same two modes, and each trial of a data point has the mode of the one before in seven cases of ten."""

    def __init__(self, sigma: float, rng: np.random.Generator) -> None:
        super().__init__(sigma, rng)
        self.slow: dict[object, bool] = {}

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        del members, seconds
        if key not in self.slow or self.rng.random() < 0.3:
            self.slow[key] = self.rng.random() < 0.4
        return self.sigma * self.slow[key] + 0.003 * float(self.rng.standard_normal())


class EachItsOwn(Noise):
    """Each pair and each GPU alone has a noise of its own, from 0.1% to `sigma`, and every second one two modes."""

    def __init__(self, sigma: float, rng: np.random.Generator) -> None:
        super().__init__(sigma, rng)
        self.kinds: dict[frozenset[int], Noise] = {}

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        if (who := frozenset(members)) not in self.kinds:
            kind = Noise if self.rng.random() < 0.5 else TwoModes
            self.kinds[who] = kind(math.exp(self.rng.uniform(math.log(0.001), math.log(self.sigma))), self.rng)
        return self.kinds[who].of(members, key, seconds)


class Wild(Noise):
    """Student's t with three degrees of freedom: a trial in 70 is slower or faster by five times `sigma`."""

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        del members, key, seconds
        return self.sigma * float(self.rng.standard_t(3))


class Correlated(Noise):
    """Trials of one data point resemble those before: AR(1) with ρ = 0.6."""

    def __init__(self, sigma: float, rng: np.random.Generator) -> None:
        super().__init__(sigma, rng)
        self.last: dict[object, float] = {}

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        fresh = self.sigma * float(self.rng.standard_normal())
        now = 0.6 * self.last[key] + 0.8 * fresh if key in self.last else fresh
        self.last[key] = now
        return now


class Ceiling(Noise):
    """Never faster than the link's own rate: half of a normal distribution."""

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        return abs(super().of(members, key, seconds))


class Drift(Noise):
    """Everything becomes slower by `sigma` in the first two seconds, as a GPU does that warms up; beside that 0.3%."""

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        return self.sigma * min(1.0, seconds / 2.0) + 0.003 * float(self.rng.standard_normal())


@dataclass
class Situation:
    """What happens to a machine while it is measured. `idle`: a process that does nothing holds 2 GB of this GPU.

    `slower`: (GPU, share, begin, end): from one second of the run to another its transfers have this share of their
    rates.
    """

    noise: Noise
    idle: int | None = None
    slower: tuple[int, float, float, float] | None = None


class MadeBackend(Backend):
    """A made machine as a backend; its clock is the time that the steps would have taken."""

    name = "sim"

    def __init__(self, made: Made, situation: Situation) -> None:
        self._made, self._situation, self._seconds = made, situation, 0.0
        self._rng = situation.noise.rng
        self._most, self._reached = cache(made.most), cache(self._reach)  # they are asked for each trial

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs."""
        return self._made.devices

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return what GPUs copy, without the pointer chase."""
        return tuple(one for one in variant.gpu_operations if one is not Operation.CHASE)

    def numa_nodes(self) -> tuple[int, ...]:
        """Return the nodes whose memory is timed apart."""
        return self._made.nodes

    def capacity_bytes(self) -> int:
        """Return the largest message."""
        return 2**33

    def clock(self) -> float:
        """Return the second of the run."""
        return self._seconds

    def time(self, step: Step) -> Timing:
        """Return drawn times."""
        reached = self._reached(tuple(self._transfers(step, members) for members in step.groups))
        drawn = [self._drawn(step, *of_group) for of_group in zip(step.groups, *reached, strict=True)]
        timing = Timing(
            seconds=tuple(drawn), launch_seconds=tuple(1.2 * one[0] for one in drawn) if step.launches else ()
        )
        self._seconds += timing.region_seconds(step) + _STEP_S
        return timing

    def _reach(self, groups: Sequence[_Transfers]) -> tuple[list[float], list[float]]:
        """Return the GB/s of each group's slowest transfer, if all run at once, and what none of it exceeds."""
        rates = iter(self._made.rates([one for group in groups for one in group]))
        slowest = [min(next(rates) for _ in group) for group in groups]
        return slowest, [min(map(self._most, group)) for group in groups]

    def _transfers(self, step: Step, members: tuple[int, ...]) -> _Transfers:
        if step.work.operation.is_collective:
            ring = tuple(zip(members, (*members[1:], members[0]), strict=True))
            if "NCCL_P2P_DISABLE" in self._made.environment:
                return tuple(end for a, b in ring for end in ((a, None), (None, b)))
            return ring
        if step.work.variant is Variant.STAGED:
            return (members[0], None), (None, members[1])
        if step.work.variant.host_memory:
            out = step.work.operation in (Operation.D2H_CE, Operation.D2H_SM)
            host = None if step.work.numa_node is None else -1 - step.work.numa_node
            return ((members[0], host) if out else (host, members[0]),)
        return ((members[0], members[1]),)

    def _drawn(self, step: Step, members: tuple[int, ...], gbs: float, limit: float) -> tuple[float, ...]:
        typical = self._typical(step, members, gbs)
        slow = self._situation.noise.of(members, (step.work, members, step.size_bytes), self._seconds)
        least = step.size_bytes * step.work.operation.busbw_factor(len(members)) / (_FASTEST * limit * 1e9)
        return tuple(
            max(least, typical * math.exp(slow + _BATCH * float(self._rng.standard_normal())))
            for _ in range(step.batches)
        )

    def _typical(self, step: Step, members: tuple[int, ...], gbs: float) -> float:
        """Return the seconds of an iteration without noise."""
        operation = step.work.operation
        share = _SHARES.get(operation, 1.0) * (self._made.nccl if operation.is_collective else 1.0)
        bytes_moved = step.size_bytes * operation.busbw_factor(len(members))
        if self._situation.slower is not None:
            gpu, slow, begin, end = self._situation.slower
            share *= slow if gpu in members and begin <= self._seconds < end else 1.0
        return (_COLLECTIVE_S if operation.is_collective else _LAUNCH_S) + bytes_moved / (gbs * share * 1e9)


def measure(
    made: Made,
    situation: Situation,
    request: Request,
    seed: int,
    make_backend: Callable[[Made, Situation], MadeBackend] = MadeBackend,
) -> Run:
    """Return the run that collbench makes of a machine."""
    backend = make_backend(made, situation)
    states = tuple(_state(gpu, made, situation) for gpu in range(made.count))
    opened = Opened(
        machine=Machine("judge", "Linux", "", fabric=f"made {made.family}"),
        paths=made.paths,
        health=lambda: states,
        flags=_flags(made, situation),
        environment=dict(made.environment),
        clock=backend.clock,
        backend=backend,
    )
    plan, skipped = make_plan(request, backend)
    run = empty_run(request, opened, plan, skipped)
    watcher = Watcher(lambda _done, _total: None, lambda: None, opened.flags, opened.clock)
    rule = request.stopping_rule()
    sweep(backend, plan, run, rule, random.Random(seed), watcher)
    confirm(backend, plan, run, rule, watcher, lambda _line: None)
    run.health_after = states
    run.complete = True
    return run


def _state(gpu: int, made: Made, situation: Situation) -> Health:
    busy = gpu in made.busy
    held = situation.idle == gpu or busy
    return Health(
        temperature=45,
        utilization=90 if busy else 0,
        nvlink_errors=0,
        nvlink_replays=0,
        ecc_errors=0,
        throttle=(_THROTTLED,) if gpu in made.throttled else (),
        processes=int(held),
        memory_used=2 * 2**30 if held else 0,
        others_memory=2 * 2**30 if held else 0,
    )


def _flags(made: Made, situation: Situation) -> Callable[[Iterable[int]], tuple[Flag, ...]]:
    held = made.busy | {situation.idle}

    def flags(members: Iterable[int]) -> tuple[Flag, ...]:
        members = tuple(members)
        shared = [Flag(FlagKind.SHARED, (gpu,), 1) for gpu in members if gpu in held]
        return (
            *shared,
            *(Flag(FlagKind.THROTTLED, (gpu,), reason=_THROTTLED) for gpu in members if gpu in made.throttled),
        )

    return flags
