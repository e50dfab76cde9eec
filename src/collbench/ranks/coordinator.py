"""Rank 0's backend: each step goes to all ranks, and the slowest rank's times are the step's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any, TypeVar

from collbench.measurement.backends.protocol import Backend, Call, Coverage, Facts, Step, Timing
from collbench.model.errors import (
    BackendError,
    Cause,
    CollbenchError,
    DataCorruption,
    Failure,
    PeerLost,
    StepFailed,
    UsageError,
    failure_of,
)
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Device, Flag, Health, NetworkPort, RankLaunches, Refusal, SkipKind
from collbench.ranks.messages import Done, Opening
from collbench.ranks.ranks import RankLost, Ranks
from collbench.ranks.store import Publisher

_Combined = TypeVar("_Combined")


class Coordinator(Backend):
    """Times collectives on the ranks' devices; positions are ranks.

    A step that fails on any rank costs its data points: all ranks end their workers, and join a new world before the
    next step.
    """

    def __init__(
        self, name: str, ranks: Ranks, store: Publisher, devices: tuple[Device, ...], addresses: tuple[str, ...]
    ) -> None:
        """Open nothing yet. `name` is the ranks' backend; `addresses` are for Opening, by rank."""
        self.name = name
        self._ranks, self._store = ranks, store
        self._devices, self._addresses = devices, addresses
        self._world_ranks = tuple(ranks.everyone)  # of the present world
        self._worlds = 0  # how many were opened
        self._broken = False
        self._setup: list[Call] = []
        self._flags: dict[int, tuple[Flag, ...]] = {}
        self._facts: tuple[Facts, ...] = ()

    @property
    def facts(self) -> tuple[Facts, ...]:
        """What opening found, by rank, without lost ranks."""
        return self._facts

    @property
    def lost(self) -> Mapping[int, RankLost]:
        """The lost ranks, and how they were lost; empty unless losses are survived."""
        return self._ranks.lost

    def open(self) -> None:
        """Let all ranks join a new world. Raises the first failure, which names its rank.

        If a rank is lost meanwhile, and losses are survived, the others join another world.
        """
        while True:
            before = self._ranks.present
            try:
                self._join()
            except CollbenchError:
                if len(self._ranks.present) == len(before) or len(self._ranks.present) < 2:
                    raise
            else:
                return

    def _join(self) -> None:
        key = f"world{self._worlds}"
        self._worlds += 1
        self._broken = True  # until all is done
        (unique_id,) = self._ranks.values(self._ranks.ask({0: Call("make_id")}), "make_id")
        self._store.publish(key, unique_id)
        self._world_ranks = self._ranks.present
        try:
            calls = {
                rank: Call("open", (Opening(key, self._addresses[rank], self._world_ranks, index),))
                for index, rank in enumerate(self._world_ranks)
            }
            self._facts = self._ranks.values(self._ranks.ask(calls), "open")
            for call in self._setup:
                self._set_up(call)
        finally:
            self._store.forget(key)
        self._broken = False

    def devices(self) -> tuple[Device, ...]:
        """Return the ranks' devices, by rank."""
        return self._devices

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return nothing: copies are for one process that sees both devices."""
        return ()

    def capacity_bytes(self) -> int:
        """Return the largest message in bytes that every rank has room for."""
        return min(facts.capacity_bytes for facts in self._facts)

    def free_bytes(self) -> tuple[int, ...]:
        """Return each device's free memory in bytes, by rank; empty if devices share their host's."""
        return tuple(chain.from_iterable(facts.free_bytes for facts in self._facts))

    def reserve(self, largest_bytes: int) -> None:
        """Make room on every rank."""
        self._set_up_now(Call("reserve", (largest_bytes,)))

    def can_run(self, work: Work, members: tuple[int, ...]) -> Refusal | None:
        """Return why a copy cannot run here."""
        if work.operation.is_collective:
            return None
        return Refusal(SkipKind.PROCESSES)

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Start making the groups' communicators on every rank."""
        self._set_up_now(Call("prepare", (groups,)))

    def time(self, step: Step) -> Timing:
        """Time a collective on all ranks. Raises StepFailed, DataCorruption, RankLost, UsageError for copies."""
        if not step.work.operation.is_collective:
            raise UsageError(f"{step.work} is timed by one process: start collbench without torchrun, srun or mpirun")
        self._settle()
        if self._broken or self._world_ranks != self._ranks.present:
            self._reopen(step)
        lost = self._ranks.lost
        for rank in chain.from_iterable(step.groups):
            if rank in lost:
                raise StepFailed(str(lost[rank]), failure=replace(lost[rank].failure, rank=rank))
        replies = self._ranks.ask(dict.fromkeys(self._world_ranks, Call("time", (step,))))
        failed = {rank: reply for rank, reply in replies.items() if isinstance(reply, CollbenchError)}
        if failed:
            self._broken = True
            raise self._failure(step, failed)
        self._flags = {
            rank: tuple(replace(flag, devices=(rank,)) for flag in reply.flags)
            for rank, reply in replies.items()
            if isinstance(reply, Done)
        }
        timings = self._ranks.values(replies, "time")
        return slowest(step, dict(zip(sorted(replies), timings, strict=True)))

    def flags(self, members: Iterable[int]) -> tuple[Flag, ...]:
        """Return what was wrong with these ranks' devices in the last step."""
        return tuple(dict.fromkeys(flag for rank in sorted(set(members)) for flag in self._flags.get(rank, ())))

    def health(self) -> tuple[Health, ...]:
        """Return the devices' state now, by rank; empty if it is not reported. Of lost ranks nothing is known."""
        self._settle()
        healths: dict[int, tuple[Health, ...]] = self._from_present(self._ranks.everyone, "health")
        if not any(healths.values()):
            return ()
        return tuple(health for rank in self._ranks.everyone for health in healths.get(rank, (Health(),)))

    def ports(self) -> tuple[NetworkPort, ...] | None:
        """Return the ports of several hosts' network cards as they are now: one rank of each host reads them.

        None on one host, where nobody reads them.
        """
        if len({device.host for device in self._devices}) == 1:
            return None
        self._settle()
        first_ranks: dict[str, int] = {}  # of each host, without lost ones
        for rank in self._ranks.present:
            first_ranks.setdefault(self._devices[rank].host, rank)
        ports: dict[int, tuple[NetworkPort, ...]] = self._from_present(first_ranks.values(), "ports")
        return tuple(replace(port, host=self._devices[rank].host) for rank, own in ports.items() for port in own)

    def _from_present(self, ranks: Iterable[int], method: str) -> dict[int, Any]:
        """Return what a method without an argument returns on these ranks, without lost ones."""
        replies = self._ranks.ask(dict.fromkeys(ranks, Call(method)))
        kept = {rank: reply for rank, reply in replies.items() if not isinstance(reply, RankLost)}
        return dict(zip(sorted(kept), self._ranks.values(kept, method), strict=True))

    def _settle(self) -> None:
        """Wait for the answers to an interrupted request; its world cannot be used any more."""
        if self._ranks.settle():
            self._broken = True

    def close(self) -> None:
        """Let all ranks go."""
        self._ranks.close()

    def _set_up_now(self, call: Call) -> None:
        """Set up this world and later ones. If a rank is lost meanwhile, the next step begins with another world."""
        self._setup.append(call)
        try:
            self._set_up(call)
        except RankLost:
            if not self._ranks.lost:
                raise

    def _set_up(self, call: Call) -> None:
        match call:
            case Call("prepare", (tuple() as groups,)):
                call = Call("prepare", (tuple(group for group in groups if set(group) <= set(self._world_ranks)),))
        self._ranks.values(self._ranks.ask(dict.fromkeys(self._world_ranks, call)), call.method)

    def _reopen(self, step: Step) -> None:
        """Join a new world after a failure. Raises StepFailed if that is not possible, RankLost."""
        try:
            self.open()
        except RankLost as error:
            if self._ranks.lost:
                raise StepFailed(str(error), failure=error.failure) from error
            raise
        except CollbenchError as error:
            why = failure_of(error)
            text = f"{step.work}: the ranks could not reconnect: {error}"
            raise StepFailed(text, failure=Failure(why.kind, Cause.NO_WORLD, because=why)) from error

    def _failure(self, step: Step, failed: Mapping[int, CollbenchError]) -> CollbenchError:
        """Return the failure to report: wrong data before all else, then the failure that came first.

        The failure of a rank that only lost another one is reported if there is no other.
        """
        for rank, reply in failed.items():
            if isinstance(reply, DataCorruption):
                return self._ranks.named(rank, reply)
        failed = {rank: reply for rank, reply in failed.items() if isinstance(reply, RankLost)} or failed
        first_failures = self._ranks.not_abandoned(failed) or failed
        causes = {rank: reply for rank, reply in first_failures.items() if not isinstance(reply, PeerLost)}
        rank, first = next(iter((causes or first_failures).items()))
        named = self._ranks.named(rank, first)
        if not isinstance(first, BackendError):
            return named
        return StepFailed(str(named), failure=replace(first.failure, rank=rank))


def slowest(step: Step, timings: Sequence[Timing] | Mapping[int, Timing]) -> Timing:
    """Return each group's times from `timings` by rank: the maximum of each batch, the mean of the launch loop.

    Bytes received and compared are summed; single launches are kept per rank.
    """
    groups = [[timings[rank] for rank in group] for group in step.groups]
    every = [timing for group in groups for timing in group]

    def by_group(combine: Callable[[int, list[Timing]], _Combined]) -> tuple[_Combined, ...]:
        return tuple(combine(index, group) for index, group in enumerate(groups))

    def batches(index: int, group: list[Timing]) -> tuple[float, ...]:
        return tuple(map(max, zip(*(timing.seconds[index] for timing in group), strict=True)))

    def launch(index: int, group: list[Timing]) -> float:
        return fmean(timing.launch_seconds[index] for timing in group)

    def coverage(index: int, group: list[Timing]) -> Coverage:
        parts = [timing.coverage[index] for timing in group]
        return Coverage(sum(part.moved for part in parts), sum(part.verified for part in parts))

    def singles(index: int, group: list[Timing]) -> tuple[RankLaunches, ...]:
        return tuple(launches for timing in group for launches in timing.singles[index])

    def plain(index: int, group: list[Timing]) -> bool:
        return any(timing.plain[index : index + 1] == (True,) for timing in group)

    def waits(index: int, group: list[Timing]) -> tuple[tuple[float, ...], ...]:
        return tuple(waited for timing in group for waited in timing.waits[index])

    return Timing(
        seconds=by_group(batches),
        launch_seconds=by_group(launch) if all(timing.launch_seconds for timing in every) else (),
        coverage=by_group(coverage) if all(timing.coverage for timing in every) else (),
        singles=by_group(singles) if step.singles else (),
        plain=by_group(plain) if any(timing.plain for timing in every) else (),
        waits=by_group(waits) if all(timing.waits for timing in every) else (),
    )
