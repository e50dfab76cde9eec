"""Rank 0's backend: every step goes to all ranks, and the slowest rank's times are the step's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean

from collbench.backends.protocol import Coverage, Step, Timing, time_each
from collbench.backends.worker_messages import Prepare, Reserve
from collbench.errors import BackendError, CollbenchError, DataCorruption, PeerLost, StepFailed, UsageError, kind_of
from collbench.model import Device, Flag, Health, Refusal, SkipKind
from collbench.operations import Operation, Variant, Work
from collbench.world.messages import Done, FoundHealth, MakeId, OpenRank, RankFacts, Request, TakeHealth, UniqueId
from collbench.world.ranks import RankLost, Ranks
from collbench.world.store import Publisher


class Coordinator:
    """Times collectives on the ranks' devices; positions are ranks.

    A step that fails on any rank costs its cells: all ranks end their workers, and join a new world before the next.
    """

    def __init__(
        self, name: str, ranks: Ranks, store: Publisher, devices: tuple[Device, ...], addresses: tuple[str, ...]
    ) -> None:
        """Open nothing yet. `name` is the ranks' backend; `addresses` are for OpenRank, by rank."""
        self.name = name
        self._ranks, self._store = ranks, store
        self._devices, self._addresses = devices, addresses
        self._worlds = 0  # how many were opened
        self._broken = False
        self._setup: list[Request] = []
        self._flags: dict[int, tuple[Flag, ...]] = {}
        self._facts: tuple[RankFacts, ...] = ()

    @property
    def facts(self) -> tuple[RankFacts, ...]:
        """What opening found, by rank."""
        return self._facts

    def open(self) -> None:
        """Let all ranks join a new world. Raises the first failure, which names its rank."""
        key = f"world{self._worlds}"
        self._worlds += 1
        self._broken = True  # until all is done
        (unique_id,) = self._ranks.values(self._ranks.ask({0: MakeId()}), UniqueId)
        self._store.publish(key, unique_id.digits)
        try:
            asked = {rank: OpenRank(self._devices, key, self._addresses[rank]) for rank in self._ranks.everyone}
            self._facts = self._ranks.values(self._ranks.ask(asked), RankFacts)
            for request in self._setup:
                self._set_up(request)
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
        """Return each device's free memory in bytes, by rank; empty where devices share their host's."""
        free = tuple(facts.free_bytes for facts in self._facts if facts.free_bytes is not None)
        return free if len(free) == len(self._facts) else ()

    def numa_nodes(self) -> tuple[int, ...]:
        """Return nothing: ranks copy nothing, and each has its own host's nodes."""
        return ()

    def reserve(self, largest_bytes: int) -> None:
        """Make room on every rank."""
        self._setup.append(Reserve(largest_bytes))
        self._set_up(self._setup[-1])

    def can_run(self, work: Work, members: tuple[int, ...]) -> Refusal | None:
        """Return why a copy cannot run here."""
        if work.operation.is_collective:
            return None
        return Refusal(SkipKind.PROCESSES, "copies are timed by one process, not by one for each device")

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Start making the groups' communicators on every rank."""
        self._setup.append(Prepare(groups))
        self._set_up(self._setup[-1])

    def ready(self) -> None:
        """Return at once: the ranks' first step waits for its communicators."""

    def time_copies(self, step: Step) -> Timing:
        """Refuse: see `operations`. Raises UsageError."""
        raise UsageError(f"{step.work} is timed by one process: start collbench without torchrun, srun or mpirun")

    def time_collective(self, step: Step) -> Timing:
        """Time the step on all ranks. Raises StepFailed, DataCorruption, RankLost, UsageError."""
        if self._ranks.settle():
            self._broken = True
        if self._broken:
            self._reopen(step)
        replies = self._ranks.ask(dict.fromkeys(self._ranks.everyone, step))
        failed = {rank: reply for rank, reply in replies.items() if isinstance(reply, CollbenchError)}
        if failed:
            self._broken = True
            raise self._failure(step, failed)
        self._flags = {
            rank: tuple(replace(flag, devices=(rank,)) for flag in reply.flags)
            for rank, reply in replies.items()
            if isinstance(reply, Done)
        }
        return slowest(step, self._ranks.values(replies, Timing))

    def time_steps(self, steps: Iterable[Step]) -> Iterator[tuple[Step, Timing | StepFailed]]:
        """Time steps one after another."""
        return time_each(self, steps)

    def flags(self, members: Iterable[int]) -> tuple[Flag, ...]:
        """Return what was wrong with these ranks' devices in the last step."""
        return tuple(dict.fromkeys(flag for rank in sorted(set(members)) for flag in self._flags.get(rank, ())))

    def health(self) -> tuple[Health, ...]:
        """Return the devices' state now, by rank; empty where nobody tells."""
        if self._ranks.settle():
            self._broken = True
        found = self._ranks.values(self._ranks.ask(dict.fromkeys(self._ranks.everyone, TakeHealth())), FoundHealth)
        return tuple(health for one in found for health in one.states)

    def close(self) -> None:
        """Let all ranks go."""
        self._ranks.close()

    def _set_up(self, request: Request) -> None:
        self._ranks.values(self._ranks.ask(dict.fromkeys(self._ranks.everyone, request)), type(None))

    def _reopen(self, step: Step) -> None:
        """Join a new world after a failure. Raises StepFailed where that is not possible, RankLost."""
        try:
            self.open()
        except RankLost:
            raise
        except CollbenchError as error:
            raise StepFailed(f"{step.work}: the ranks could not join again: {error}", kind_of(error)) from error

    def _failure(self, step: Step, failed: Mapping[int, CollbenchError]) -> CollbenchError:
        """Return the first failure to be told: wrong data before all, then the one that came first.

        A rank that only lost another one is told where nobody knows more.
        """
        for rank, reply in failed.items():
            if isinstance(reply, DataCorruption):
                return self._ranks.named(rank, reply)
        own = self._ranks.by_itself(failed) or failed
        causes = {rank: reply for rank, reply in own.items() if not isinstance(reply, PeerLost)}
        rank, first = next(iter((causes or own).items()))
        named = self._ranks.named(rank, first)
        return StepFailed(str(named), first.kind) if isinstance(first, BackendError) else named


def slowest(step: Step, timings: tuple[Timing, ...]) -> Timing:
    """Return each group's times: of every block the maximum over its ranks, of the launch loop the mean.

    What ranks received and compared adds up.
    """
    return Timing(
        seconds=tuple(
            tuple(max(times) for times in zip(*(timings[rank].seconds[place] for rank in group), strict=True))
            for place, group in enumerate(step.groups)
        ),
        launch_seconds=tuple(
            fmean(timings[rank].launch_seconds[place] for rank in group) for place, group in enumerate(step.groups)
        )
        if all(timings[rank].launch_seconds for group in step.groups for rank in group)
        else (),
        coverage=tuple(
            Coverage(
                sum(timings[rank].coverage[place].moved for rank in group),
                sum(timings[rank].coverage[place].verified for rank in group),
            )
            for place, group in enumerate(step.groups)
        )
        if all(timings[rank].coverage for group in step.groups for rank in group)
        else (),
    )
