"""The sim backend: a fabric file stands in for a machine, and its samples are drawn, never measured.

It never sleeps and reads no clock of this machine: a seed gives the same run everywhere. `clock` counts the seconds
that the steps would have taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from collbench.machine import theory
from collbench.machine.health import wrong
from collbench.measurement.backends.protocol import Backend, Step, Timing
from collbench.model.errors import Cause, DataCorruption, Failure, FailureKind, StepFailed, WrongData
from collbench.model.operations import Buffer, Operation, Variant, Work, across
from collbench.model.run import NO_PEERS, Device, Flag, Health, Machine, Path, RankLaunches, Skipped
from collbench.sim import network
from collbench.sim.collectives import Messages, truth_of
from collbench.sim.fabrics import Fabric, Fault, FaultKind
from collbench.sim.network import Medium, Transfer, network_of, route_of, shared_rates

_OPPOSITE = {
    Operation.H2D_CE: Operation.D2H_CE,
    Operation.D2H_CE: Operation.H2D_CE,
    Operation.H2D_SM: Operation.D2H_SM,
    Operation.D2H_SM: Operation.H2D_SM,
}
# A local copy on an H200 of 4.8 TB/s reaches 2,079 GB/s, 0.87 of the half. GPUs of another name have its memory.
_MEMORY_GBS, _LOCAL_SHARE = 4800.0, 0.87
_MICRO, _NANO = 1e-6, 1e9
# How far apart ranks arrive at a launch if nothing delays one, and how well their clocks are compared.
_JITTER_S, _UNCERTAIN_NS = 3e-8, 1000
_BUFFERS = 3  # as on real GPUs: source, send, target
# What a step costs in addition to its batches, for the clock alone: the trials of `pairs` on 4 × H200 were some 1300
# steps, and 0.8 s of their 1.9 s was queueing and verifying (README.md).
_STEP_S = 6e-4
# Seconds of the simulated clock until a hang is given up, as Timeouts.floor_s of a real one.
_GIVEN_UP_S = 5.0
# Noise may slow a link without limit, but a link that reaches 0.97 of its capacity [V100] is never faster than that.
_FASTEST = math.log(0.97)
_DRAWN = 8192  # normal values at a time: one call of numpy's costs as much as a hundred values


class _Cost(NamedTuple):
    """What a message takes: seconds if it is empty, and seconds for each byte."""

    empty: float
    each_byte: float

    def of(self, size_bytes: int) -> float:
        """Return the seconds of a message of a size."""
        return self.empty + size_bytes * self.each_byte


def _messages(step: Step, members: tuple[int, ...]) -> Messages:
    """Return what a collective's ranks send directly to each other, none where its data goes around rings."""
    row, ranks = step.work.operation.collective, range(len(members))
    if row.ring_bound:
        return {}
    if step.work.skew is not None:
        parts = {(a, b): step.blocks[a][b] / step.size_bytes for a in ranks for b in ranks if a != b}
    elif row.traffic.neighbors:
        parts = {(a, (a + 1) % len(ranks)): 1.0 for a in ranks}
    else:
        parts = {(a, b): 1 / len(ranks) for a in ranks for b in ranks if a != b}
        if row.rooted:
            end = 1 if row.receives is Buffer.WHOLE_AT_ROOT else 0  # a gather's root receives, a scatter's sends
            parts = {link: part for link, part in parts.items() if link[end] == step.root}
    return {(members[a], members[b]): part for (a, b), part in parts.items()}


class SimBackend(Backend):
    """Simulated GPUs of a fabric; positions are places in `gpus`, which are the fabric's own (all by default)."""

    name = "sim"

    def __init__(self, fabric: Fabric, seed: int, gpus: Sequence[int] | None = None) -> None:
        self._fabric, self._network, self._truth = fabric, network_of(fabric), truth_of(fabric)
        self._gpus = tuple(range(len(fabric.gpus)) if gpus is None else gpus)
        known = network.devices(fabric)
        self._devices = tuple(known[gpu] for gpu in self._gpus)
        state = network.health(fabric)
        self._health = tuple(state[gpu] for gpu in self._gpus)
        self._flags = tuple(
            tuple(wrong(position, health.throttle, health.temperature, health.processes))
            for position, health in enumerate(self._health)
        )
        self._rng = np.random.default_rng(seed)
        self._drawn: Iterator[float] = iter(())
        self._rates: dict[object, list[_Cost]] = {}
        self._link_faults = fabric.faults_of(FaultKind.CORRUPT_LINK, FaultKind.HANGING_LINK)
        self._late = fabric.faults_of(FaultKind.LATE_GPU)
        self._mistimed = fabric.faults_of(FaultKind.MISTIMED)
        self._seconds = 0.0

    def devices(self) -> tuple[Device, ...]:
        """Return the simulated GPUs by position."""
        return self._devices

    def clock(self) -> float:
        """Return the seconds that all steps so far would have taken."""
        return self._seconds

    def machine(self) -> Machine:
        """Return the simulated machine, which has only the fabric's name and number of GPUs."""
        fabric = self._fabric
        gpus = len(fabric.gpus)
        return Machine("sim", "simulated", "", virtualization=fabric.virtualization, fabric=fabric.name, gpus=gpus)

    def paths(self) -> tuple[Path, ...]:
        """Return the paths between the positions as the simulated tools report them."""
        by_pair = {frozenset(path.devices): path for path in network.paths(self._fabric)}
        pairs = combinations(range(len(self._gpus)), 2)
        return tuple(replace(by_pair[frozenset((self._gpus[i], self._gpus[j]))], devices=(i, j)) for i, j in pairs)

    def health(self) -> tuple[Health, ...]:
        """Return each position's state."""
        return self._health

    def flags(self, members: Iterable[int]) -> tuple[Flag, ...]:
        """Return what is wrong on these positions, as machine.health would see it."""
        return tuple(flag for position in sorted(set(members)) for flag in self._flags[position])

    def environment(self) -> dict[str, str]:
        """Return the variables that the simulated user has set."""
        assignments = (fault.words or "NCCL_P2P_DISABLE=1" for fault in self._fabric.faults_of(FaultKind.P2P_DISABLED))
        return dict(assignment.split("=", 1) for assignment in assignments if "=" in assignment)

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return what a GPU can do: the same as on the cuda backend."""
        return variant.gpu_operations

    def capacity_bytes(self) -> int:
        """Return the largest message in bytes that fits the fullest GPU three times."""
        return min(self.free_bytes()) // _BUFFERS

    def free_bytes(self) -> tuple[int, ...]:
        """Return each GPU's free memory in bytes."""
        states = zip(self._devices, self._health, strict=True)
        return tuple(max(0, device.memory_bytes - (state.memory_used or 0)) for device, state in states)

    def numa_nodes(self) -> tuple[int, ...]:
        """Return the simulated host's NUMA nodes; none if the machine hides them."""
        nodes = {root.numa_node for root in self._fabric.host_bridges}
        return () if self._fabric.numa_hidden else tuple(sorted(nodes))

    def can_run(self, work: Work, members: tuple[int, ...]) -> Skipped | None:
        """Return why these GPUs cannot do it: a kernel needs peer access, the copy engine does not."""
        one_end = work.variant.host_memory or work.variant is Variant.LOCAL
        if one_end or work.variant is Variant.STAGED or work.operation in (Operation.CE_WRITE, Operation.CE_READ):
            return None
        if all(self._network.reaches(self._gpus[members[0]], self._gpus[other]) for other in members[1:]):
            return None
        return NO_PEERS

    def time(self, step: Step) -> Timing:
        """Return drawn times of a step. Raises DataCorruption, StepFailed if the fabric says so."""
        self._raise_fault(step)
        # Steps that share this key cost the same per byte; blocks of unequal sizes do so only at the same size.
        key = step.work, step.groups, None if step.work.skew is None else step.size_bytes
        if key not in self._rates:
            self._rates[key] = self._costs(step)
        costs = self._rates[key]
        timing = self._timing(step, costs)
        if step.singles:
            singles = tuple(self._singles(step, *each) for each in zip(step.groups, costs, strict=True))
            return replace(timing, singles=singles)
        if not step.launches:
            return timing
        launch = self._fabric.delays.launch * _MICRO
        noise = self._fabric.noise.trial
        loops = tuple(batches[0] + launch * math.exp(noise * self._normal()) for batches in timing.seconds)
        return Timing(timing.seconds, loops)

    def _costs(self, step: Step) -> list[_Cost]:
        """Return what each group's slowest message takes."""
        if step.work.operation.is_collective:
            return self._collectives(step)
        return self._chases(step) if step.work.operation is Operation.CHASE else self._copies(step)

    def _copies(self, step: Step) -> list[_Cost]:
        """Return the cost of each group's copies: that of its slowest message."""
        if step.work.variant is Variant.LOCAL:
            return [self._local(step, self._gpus[members[0]]) for members in step.groups]
        if step.work.variant.covered:
            return self._covered(step)
        groups = [self._transfers(step, members) for members in step.groups]
        every = [transfer for transfers in groups for transfer in transfers]
        rates = iter(shared_rates(self._network, every))
        times = []
        for transfers in groups:
            waits = [self._empty_us(transfer) for transfer in transfers]
            times.append(_Cost(max(waits) * _MICRO, 1e-9 / min(next(rates) * self._clock_error(t) for t in transfers)))
        return times

    def _covered(self, step: Step) -> list[_Cost]:
        """Return the cost of the copy of each group's first device while the copies of all its devices run."""
        busy = dict.fromkeys(member for members in step.groups for member in members)
        every = [(member, transfer) for member in busy for transfer in self._transfers(step, (member,))]
        rates = shared_rates(self._network, [transfer for _, transfer in every])
        timed: dict[int, tuple[Transfer, float]] = {}  # the first transfer of each, and its GB/s
        for (member, transfer), rate in zip(every, rates, strict=True):
            timed.setdefault(member, (transfer, rate))
        covered = [timed[members[0]] for members in step.groups]
        return [_Cost(self._empty_us(copy) * _MICRO, 1e-9 / (rate * self._clock_error(copy))) for copy, rate in covered]

    def _local(self, step: Step, gpu: int) -> _Cost:
        """Return the cost of a copy within a GPU's memory, which reads and writes it: with an H200's efficiency."""
        name = self._fabric.gpus[gpu].name
        gbs = (theory.product(name).memory_gbs or _MEMORY_GBS) / 2 * _LOCAL_SHARE * self._network.scale[gpu]
        delays = self._fabric.delays
        return _Cost((delays.kernel if step.work.operation.by_kernel else delays.copy) * _MICRO, 1e-9 / gbs)

    def _transfers(self, step: Step, members: tuple[int, ...]) -> list[Transfer]:
        gpus, staged = tuple(self._gpus[member] for member in members), step.work.variant is Variant.STAGED
        transfers = [
            Transfer(src, dst, step.work.operation, staged=staged, numa_node=step.work.numa_node)
            for src, dst in step.work.transfers(gpus)
        ]
        if step.work.variant.opposed:
            transfers[1] = replace(transfers[1], operation=_OPPOSITE[step.work.operation])
        return transfers

    def _empty_us(self, transfer: Transfer) -> float:
        """Return the µs that a message of no bytes takes."""
        delays, route = self._fabric.delays, route_of(self._network, transfer)
        if route.medium is Medium.STAGED:
            return delays.staged + route.latency_us
        return (delays.kernel if transfer.operation.by_kernel else delays.copy) + route.latency_us

    def _clock_error(self, transfer: Transfer) -> float:
        """Return the factor by which a fault of the simulated clock makes a link look too fast."""
        ends = {transfer.src, transfer.dst}
        return math.prod(fault.factor for fault in self._mistimed if not fault.devices or ends <= set(fault.devices))

    def _chases(self, step: Step) -> list[_Cost]:
        """Return the cost of one access, there and back, of each group."""
        times = []
        for members in step.groups:
            reader, *owner = (self._gpus[member] for member in members)
            away = self._network.direct[owner[0], reader] if owner else self._network.host(reader, inward=True)
            times.append(_Cost((self._fabric.delays.access + away.latency_us) * _MICRO, 0.0))
        return times

    def _collectives(self, step: Step) -> list[_Cost]:
        row = step.work.operation.collective
        groups = [tuple(self._gpus[member] for member in members) for members in step.groups]
        sent = [_messages(step, members) for members in groups]
        times = []
        for members, ringed, direct in zip(
            groups, self._truth.concurrent(groups), self._truth.exchanged(sent), strict=True
        ):
            count, busiest = len(members), row.busbw.of(len(members))
            if step.work.skew is not None:
                busiest = max(across(step.blocks, (rank,)) for rank in range(count)) / step.size_bytes
            delays = self._fabric.delays
            wait = delays.collective + row.steps(count) * (delays.hop + self._truth.rings(members).latency_us)
            times.append(_Cost(wait * _MICRO, max(busiest / ringed, direct) * 1e-9))
        return times

    def _timing(self, step: Step, costs: list[_Cost]) -> Timing:
        """Return the batches of each group: its time, times the trial's noise and the batch's."""
        noise = self._fabric.noise
        seconds = []
        for cost in costs:
            trial = noise.trial * self._normal()
            logs = (max(trial + noise.batch * self._normal(), _FASTEST) for _ in range(step.batches))
            seconds.append(tuple(cost.of(step.size_bytes) * math.exp(log) for log in logs))
        slowest = max(batches[0] for batches in seconds)
        self._seconds += _STEP_S + slowest * step.iterations * (step.batches + step.warmup)
        return Timing(tuple(seconds))

    def _singles(self, step: Step, members: tuple[int, ...], cost: _Cost) -> tuple[RankLaunches, ...]:
        """Return drawn single launches of each rank: all leave together, and each arrives at the next when it can.

        The duration of a launch varies as that of a batch does, and the arrival of a rank by some ten nanoseconds.
        """
        gpus = [self._gpus[member] for member in members]
        usual = cost.of(step.size_bytes) + self._fabric.delays.launch * _MICRO
        late = [sum(fault.us for fault in self._late if fault.covers(gpu)) * _MICRO for gpu in gpus]
        jitter = np.abs(self._rng.standard_normal((len(gpus), step.singles))) * _JITTER_S
        spread = np.exp(self._fabric.noise.trial * self._rng.standard_normal(step.singles))
        arrived = np.array(late)[:, None] + jitter
        took = arrived.max(axis=0) + usual * spread
        begin = np.concatenate(([0.0], np.cumsum(took)[:-1]))
        self._seconds += float(took.sum())
        left = tuple(np.round((begin + took) * _NANO).astype(int).tolist())
        arrivals = np.round((begin + arrived) * _NANO).astype(int)
        return tuple(RankLaunches(tuple(own.tolist()), left, 0, _UNCERTAIN_NS, 1) for own in arrivals)

    def _normal(self) -> float:
        draw = next(self._drawn, None)
        if draw is None:
            self._drawn = iter(self._rng.standard_normal(_DRAWN).tolist())
            draw = next(self._drawn)
        return draw

    def _raise_fault(self, step: Step) -> None:
        if not self._link_faults or step.work.variant.host_memory:
            return
        for members in step.groups:
            for fault in self._link_faults:
                if self._takes_link(fault, step, members):
                    raise self._failure(fault, step, members)

    def _takes_link(self, fault: Fault, step: Step, members: tuple[int, ...]) -> bool:
        """Return whether a group's messages may take the faulty link. Staged ones do not."""
        a, b = fault.devices
        gpus = [self._gpus[member] for member in members]
        if step.work.operation.is_collective:
            return a in gpus and b in gpus
        if step.work.variant is Variant.STAGED:
            return False
        links = {(t.src, t.dst) for t in self._transfers(step, members)}
        return (a, b) in links or (not fault.one_way and (b, a) in links)

    def _failure(self, fault: Fault, step: Step, members: tuple[int, ...]) -> DataCorruption | StepFailed:
        if fault.kind is FaultKind.HANGING_LINK:
            self._seconds += _GIVEN_UP_S
            return StepFailed(
                failure=Failure(
                    FailureKind.HANG,
                    Cause.GIVEN_UP,
                    work=step.work,
                    size_bytes=step.size_bytes,
                    groups=(members,),
                    seconds=_GIVEN_UP_S,
                )
            )
        return DataCorruption(wrong=WrongData(step.work, step.size_bytes, members, 1, fault.offset % step.size_bytes))
