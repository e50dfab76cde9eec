"""Every link is examined, whatever the others do: trouble leads to a process of its own, and is not forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from random import Random
from typing import Any

from collbench.measurement.backends.protocol import Backend, Step, Timing
from collbench.model.errors import BackendError, Cause, DataCorruption, Failure, FailureKind, StepFailed, WrongData
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import NO_PEERS, DataPoint, Device, Measurement, Sample, Skipped
from collbench.model.units import format_size
from collbench.p2p.links import SIZES, cross_links, crossings_of
from collbench.p2p.peer_map import (
    BY_PEER_ACCESS,
    COPY_ENGINE,
    KERNEL_READ,
    KERNEL_WRITE,
    THROUGH_HOST,
    WAYS,
    Crossing,
    PeerLink,
    PeerState,
)
from tests.builders import gpus, run_of

_BUSY = Failure(FailureKind.BUSY, Cause.STARVED, seconds=32.0)
_HANG = Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=8.0)
Fault = tuple[int, int, Work]


class _Machine:
    """GPUs of which some messages hang, arrive wrong, or have no peer access; `log` has what was opened and sent."""

    def __init__(self, count: int, hangs: tuple[Fault, ...] = (), wrong: tuple[Fault, ...] = ()) -> None:
        self.count, self.hangs, self.wrong = count, set(hangs), set(wrong)
        self.unopened: set[tuple[int, ...]] = set()
        self.no_peers: set[tuple[int, int]] = set()
        self.once = False  # trouble happens once
        self.trouble = _HANG
        self.no_staging = False
        self.capacity = 2**30
        self.log: list[str] = []

    @contextmanager
    def opening(self, positions: tuple[int, ...]) -> Iterator[Backend]:
        self.log.append(f"open {positions}")
        if positions in self.unopened:
            raise BackendError("the driver hangs", failure=_HANG)
        yield _Opened(self, positions)

    def examined(self) -> dict[tuple[int, int], PeerLink]:
        return {link: PeerLink(link, crossed) for link, crossed in cross_links(self.count, self.opening)[0].items()}


class _Opened(Backend):
    name = "test"

    def __init__(self, machine: _Machine, positions: tuple[int, ...]) -> None:
        self._machine, self._positions = machine, positions

    def devices(self) -> tuple[Device, ...]:
        return ()

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        return ()

    def capacity_bytes(self) -> int:
        return self._machine.capacity

    def can_run(self, work: Work, members: tuple[int, ...]) -> Skipped | None:
        link = tuple(self._positions[member] for member in members)
        return NO_PEERS if link in self._machine.no_peers and work in (KERNEL_WRITE, KERNEL_READ) else None

    def time(self, step: Step) -> Timing:
        source, destination = (self._positions[member] for member in step.groups[0])
        self._machine.log.append(f"{step.work} {format_size(step.size_bytes)} {source}>{destination}")
        if self._machine.no_staging and step.work == THROUGH_HOST:
            raise StepFailed(failure=Failure(FailureKind.ERROR, Cause.NO_WORKER))
        fault = (source, destination, step.work)
        for faults in (self._machine.hangs, self._machine.wrong):
            if fault in faults:
                if self._machine.once:
                    faults.discard(fault)
                if faults is self._machine.wrong:
                    raise DataCorruption(wrong=WrongData(step.work, step.size_bytes, step.groups[0], 1, 0))
                raise StepFailed(failure=self._machine.trouble)
        return Timing(((step.size_bytes / 20e9,) * step.batches,))


def _bad(links: dict[tuple[int, int], PeerLink]) -> dict[tuple[int, int], PeerState]:
    return {link: one.state for link, one in links.items() if one.state is not PeerState.WORKS}


def test_without_trouble_one_process_sends_everything_over_every_link() -> None:
    machine = _Machine(3)
    links = machine.examined()
    assert len(links) == 6
    assert _bad(links) == {}
    assert [line for line in machine.log if line.startswith("open")] == ["open (0, 1, 2)"]
    assert len(machine.log) == 1 + 6 * len(WAYS) * len(SIZES)
    assert links[1, 2].of(COPY_ENGINE).gbs == links[1, 2].of(THROUGH_HOST).gbs == 20.0  # type: ignore[union-attr]


def test_trouble_costs_one_way_of_one_direction_and_is_not_sent_again() -> None:
    machine = _Machine(3, hangs=((2, 0, KERNEL_READ),), wrong=((0, 1, COPY_ENGINE),))
    links = machine.examined()
    assert _bad(links) == {(2, 0): PeerState.HANGS, (0, 1): PeerState.CORRUPTS}
    states = {(crossing.work, crossing.size_bytes): crossing.state for crossing in links[2, 0].crossings}
    assert states.pop((KERNEL_READ, SIZES[0])) is PeerState.HANGS
    assert states == {(work, size): PeerState.WORKS for work in WAYS if work is not KERNEL_READ for size in SIZES}
    assert [line for line in machine.log if line.startswith("open")] == ["open (0, 1, 2)", "open (0, 1)", "open (2, 0)"]
    assert machine.log.count("sm-read 4K 2>0") == 1
    wrong = links[0, 1].of(COPY_ENGINE)
    assert wrong is not None
    assert wrong.wrong is not None
    assert wrong.wrong.members == (0, 1)


def test_trouble_that_happened_once_counts() -> None:
    machine = _Machine(2, wrong=((1, 0, KERNEL_WRITE),))
    machine.once = True
    assert _bad(machine.examined()) == {(1, 0): PeerState.CORRUPTS}


def test_what_had_no_answer_on_a_busy_host_is_sent_again_alone() -> None:
    machine = _Machine(3, hangs=((0, 1, KERNEL_READ),))
    machine.once, machine.trouble = True, _BUSY
    assert _bad(machine.examined()) == {}
    assert [line for line in machine.log if line.startswith("open")] == ["open (0, 1, 2)", "open (0, 1)"]


def test_no_link_hangs_on_a_host_that_stays_busy_and_few_are_waited_for() -> None:
    machine = _Machine(4, hangs=tuple((*link, work) for link in permutations(range(4), 2) for work in WAYS))
    machine.trouble = _BUSY
    links = machine.examined()
    assert _bad(links) == dict.fromkeys(permutations(range(4), 2), PeerState.UNKNOWN)
    assert len([line for line in machine.log if not line.startswith("open")]) == 4, "two together, and each alone"


def test_copies_of_a_run_without_an_answer_on_a_busy_host_are_sent_again() -> None:
    point = DataPoint(KERNEL_WRITE.operation, (0, 1), 2**20)
    assert crossings_of(run_of(gpus(2), [Measurement(point, failure=_BUSY)])) == {}


def test_devices_that_cannot_be_opened_together_are_opened_by_two() -> None:
    machine = _Machine(3)
    machine.unopened = {(0, 1, 2), (1, 2)}
    links = machine.examined()
    assert _bad(links) == {(1, 2): PeerState.HANGS}, "(2, 1) can be opened"
    assert cross_links(3, machine.opening)[1] == _HANG, "that is not forgotten"
    assert cross_links(3, _Machine(3).opening)[1] is None


def test_without_peer_access_nothing_is_sent_but_through_the_host() -> None:
    machine = _Machine(2)
    machine.no_peers = {(0, 1)}
    links = machine.examined()
    assert _bad(links) == {(0, 1): PeerState.NONE}
    assert not [line for line in machine.log if line.endswith("0>1") and "staged" not in line]


def test_other_peers_too_many_are_no_refusal() -> None:
    machine = _Machine(10)
    machine.no_peers = {(0, 9)}
    machine.examined()
    assert "open (0, 9)" in machine.log


def test_a_gpu_without_room_for_staged_copies_still_gets_its_answer_and_is_asked_once() -> None:
    machine = _Machine(3)
    machine.no_staging = True
    links = machine.examined()
    assert _bad(links) == {}
    assert [line for line in machine.log if line.startswith("open")] == ["open (0, 1, 2)"]
    assert len([line for line in machine.log if "staged" in line]) == 1
    assert {link.of(THROUGH_HOST).state for link in links.values()} == {PeerState.FAILS}  # type: ignore[union-attr]


def test_a_nearly_full_gpu_gets_smaller_messages() -> None:
    machine = _Machine(2)
    machine.capacity = 3 * 2**20
    assert {crossing.size_bytes for crossing in machine.examined()[0, 1].crossings} == {SIZES[0], 2**21}


def test_a_full_gpu_fails_its_links() -> None:
    machine = _Machine(2)
    machine.capacity = 100
    links = machine.examined()
    assert _bad(links) == {(0, 1): PeerState.FAILS, (1, 0): PeerState.FAILS}


def test_what_is_known_to_deliver_is_not_sent_again_and_what_failed_counts() -> None:
    """Of random links that a run has measured, sound, broken or in part, only the sound ones are left alone."""
    random = Random(7)
    for _ in range(200):
        count = random.randint(2, 5)
        machine = _Machine(count)
        known: dict[tuple[int, int], tuple[Crossing, ...]] = {}
        for link in permutations(range(count), 2):
            works = tuple(Crossing(work, 2**26, gbs=20.0) for work in WAYS)
            hangs = Crossing(random.choice(BY_PEER_ACCESS), 2**26, failure=_HANG)
            known[link] = random.choice([works, works, works[:2], (), (hangs,), (*works, hangs)])
        links, _ = cross_links(count, machine.opening, known)
        sent = {line.split()[-1] for line in machine.log if not line.startswith("open")}
        failed = {link for link, before in known.items() if any(one.failure for one in before)}
        whole = {link for link, before in known.items() if {one.work for one in before if one.gbs} == set(WAYS)}
        assert sent == {f"{source}>{destination}" for source, destination in known.keys() - (whole - failed)}
        assert _bad({link: PeerLink(link, crossed) for link, crossed in links.items()}) == dict.fromkeys(
            failed, PeerState.HANGS
        )
        assert all(links[link] == known[link] for link in whole - failed)


def test_a_way_that_is_known_to_hang_is_not_waited_for_again() -> None:
    machine = _Machine(3, hangs=((0, 1, KERNEL_WRITE), (0, 1, KERNEL_READ)))
    hangs = tuple(Crossing(work, 2**26, failure=_HANG) for work in (KERNEL_WRITE, KERNEL_READ))
    wrong = Crossing(COPY_ENGINE, 2**26, wrong=WrongData(COPY_ENGINE, 2**26, (2, 0), 1, 0))
    links, _ = cross_links(3, machine.opening, {(0, 1): hangs, (2, 0): (wrong,)})
    assert _bad({link: PeerLink(link, crossed) for link, crossed in links.items()}) == {
        (0, 1): PeerState.HANGS,
        (2, 0): PeerState.CORRUPTS,
    }
    assert {(one.work, one.state) for one in links[0, 1]} == {
        *((work, PeerState.HANGS) for work in (KERNEL_WRITE, KERNEL_READ)),
        *((work, PeerState.WORKS) for work in (COPY_ENGINE, THROUGH_HOST)),
    }
    sent = {line.split()[0] for line in machine.log if line.endswith("0>1")}
    assert not sent & {str(KERNEL_WRITE), str(KERNEL_READ)}
    assert "open (0, 1)" in machine.log, "where the others are tried, and what failed otherwise once more"
    assert f"{COPY_ENGINE} 4K 2>0" in machine.log


def test_a_runs_copies_show_its_links_by_isolated_trials() -> None:
    def copied(work: Work, members: tuple[int, ...], *trials: tuple[float, bool], **more: Any) -> Measurement:
        samples = [Sample((seconds, seconds * 2, seconds), 4, concurrent) for seconds, concurrent in trials]
        return Measurement(DataPoint(work.operation, members, 10**6, work.variant), samples, **more)

    untried = Failure(FailureKind.UNTRIED, Cause.IN_A_ROW)
    run = run_of(
        gpus(2),
        [
            copied(KERNEL_WRITE, (0, 1), (1e-3, True), (1e-4, False), (2e-4, False), (1e-4, False)),
            copied(COPY_ENGINE, (0, 1), (1e-3, True)),
            copied(KERNEL_READ, (1, 0), failure=_HANG),
            copied(KERNEL_WRITE, (1, 0), (1e-3, False), wrong=3),
            copied(COPY_ENGINE, (1, 0), failure=untried),
            copied(Work(Operation.ALLREDUCE), (0, 1), (1e-3, False)),
        ],
    )
    found = crossings_of(run)
    assert {(one.work, one.gbs) for one in found[0, 1]} == {(KERNEL_WRITE, 10.0), (COPY_ENGINE, 1.0)}
    assert {(one.work, one.state) for one in found[1, 0]} == {
        (KERNEL_READ, PeerState.HANGS),
        (KERNEL_WRITE, PeerState.CORRUPTS),
    }
    assert found.keys() == {(0, 1), (1, 0)}
