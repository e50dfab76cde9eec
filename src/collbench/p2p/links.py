"""What crosses every link by peer access, each by itself.

Verified messages go over every link: a hang, a crash or wrong data costs that link alone. First one process opens all
devices, and leaves a link at its first trouble. Each link with trouble then gets a process of its own on its two
devices, which tries what has not failed yet, and again what had no answer on a busy host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import permutations
from statistics import median

from collbench.measurement.backends.protocol import Backend, Step, time_step
from collbench.model.errors import (
    Cause,
    CollbenchError,
    DataCorruption,
    Failure,
    FailureKind,
    StepFailed,
    WrongData,
    failure_of,
)
from collbench.model.operations import Work
from collbench.model.run import Run, SkipKind, Skipped
from collbench.p2p.peer_map import (
    BY_PEER_ACCESS,
    COPY_ENGINE,
    KERNEL_WRITE,
    THROUGH_HOST,
    WAYS,
    Crossing,
    Link,
    PeerState,
)

# A message that a mailbox or a write buffer may hold, and one that shows the rate as a check's copies do, so that both
# call the same links slow: 64 MiB take 160 us over NVLink and 20 ms through host memory, and 56 links a few seconds.
SIZES = (4 * 2**10, 64 * 2**20)
# Each batch brings other data, and is verified: several small messages, or one large.
_SMALL_ONES, _BATCHES = 4, 3
# So many links without an answer show that the host is too busy for the others, which would take as long.
_MAX_UNKNOWN = 2
# Without NVSwitch the driver enables at most so many peers of a GPU at a time.
_MAX_PEERS = 8

# Opens a backend on these of the machine's positions. Raises CollbenchError.
Opening = Callable[[tuple[int, ...]], AbstractContextManager[Backend]]


def crossings_of(run: Run) -> dict[Link, tuple[Crossing, ...]]:
    """Return what the copies of a run show of each link: their rates, and what failed of them."""
    found: dict[Link, tuple[Crossing, ...]] = {}
    for measurement in run.measurements:
        point = measurement.point
        if point.work not in WAYS or measurement.untried:
            continue
        work, size, link = point.work, point.size_bytes, (point.members[0], point.members[1])
        if measurement.wrong:
            crossing = Crossing(work, size, wrong=WrongData(work, size, link, measurement.wrong))
        elif measurement.failure:
            crossing = Crossing(work, size, failure=measurement.failure)
        elif measurement.samples:
            alone = [sample for sample in measurement.samples if not sample.concurrent] or measurement.samples
            crossing = Crossing(work, size, gbs=size / median(median(sample.seconds) for sample in alone) / 1e9)
        else:
            continue
        found[link] = (*found.get(link, ()), crossing)
    return found


def _is_sound(crossings: tuple[Crossing, ...]) -> bool:
    works = {crossing.work for crossing in crossings if crossing.state is PeerState.WORKS}
    return works.issuperset(BY_PEER_ACCESS) and not any(map(_is_trouble, crossings))


def cross_links(
    count: int, opening: Opening, known: Mapping[Link, tuple[Crossing, ...]] | None = None
) -> tuple[dict[Link, tuple[Crossing, ...]], Failure | None]:
    """Return what crossed each link of `count` devices, and why one process could not open them all; None if it did.

    Links that are `known` to deliver are not examined; what is known to have failed on a link counts. Ways that are
    known to hang are not tried again, because each would take a watchdog's time.
    """
    before = known or {}
    every = list(permutations(range(count), 2))
    sound = {link: before[link] for link in every if link in before and _is_sound(before[link])}
    hung = {link: tuple(filter(_is_hang, before.get(link, ()))) for link in every}
    others = [link for link in every if link not in sound and not hung[link]]
    found, together = _examined(others, count, opening)
    found |= {link: _alone(opening, link, crossings) for link, crossings in hung.items() if crossings}
    failed = {
        link: [crossing for crossing in before.get(link, ()) if _is_trouble(crossing) and not _is_hang(crossing)]
        for link in found
    }
    return {link: sound.get(link) or (*failed[link], *found[link]) for link in every}, together


def _examined(
    links: Sequence[Link], count: int, opening: Opening
) -> tuple[dict[Link, tuple[Crossing, ...]], Failure | None]:
    found: dict[Link, tuple[Crossing, ...]] = dict.fromkeys(links, ())
    unstaged: tuple[Crossing, ...] = ()
    together: Failure | None = None
    if not links:
        return found, together
    try:
        with opening(tuple(range(count))) as backend:
            refusals = {(link, work): backend.can_run(work, link) for link in found for work in WAYS}
            sizes = _sizes(backend)
            for link in found:
                of_link = {work: refusals[link, work] for work in WAYS}
                ways = BY_PEER_ACCESS if unstaged else WAYS
                crossed = (*_until_trouble(_crossings(backend, link, of_link, sizes, ways)), *unstaged)
                unstaged = unstaged or _without_worker(crossed)
                found[link] = crossed
                if sum(any(map(_is_unknown, crossings)) for crossings in found.values()) >= _MAX_UNKNOWN:
                    break
    except CollbenchError as error:  # each link opens its own two
        together = failure_of(error)
    unknown: list[Crossing] = []
    for link, crossings in found.items():
        # Other peers may have been too many for the driver to enable these two.
        refused = count > _MAX_PEERS + 1 and any(crossing.state is PeerState.NONE for crossing in crossings)
        if refused or not crossings or any(map(_is_trouble, crossings)):
            found[link] = _alone(opening, link, crossings) if len(unknown) < _MAX_UNKNOWN else (unknown[-1],)
            unknown += filter(_is_unknown, found[link])
    return found, together


def _is_trouble(crossing: Crossing) -> bool:
    return (crossing.state.is_broken and crossing.work != THROUGH_HOST) or _is_unknown(crossing)


def _is_unknown(crossing: Crossing) -> bool:
    return crossing.state is PeerState.UNKNOWN and crossing.work != THROUGH_HOST


def _is_hang(crossing: Crossing) -> bool:
    return crossing.state is PeerState.HANGS and crossing.work != THROUGH_HOST and not _no_worker(crossing)


def _without_worker(crossings: tuple[Crossing, ...]) -> tuple[Crossing, ...]:
    """Return the copies through the host that no process could be opened for: no later link has to wait for that."""
    return tuple(crossing for crossing in crossings if crossing.work == THROUGH_HOST and _no_worker(crossing))


def _no_worker(crossing: Crossing) -> bool:
    return crossing.failure is not None and crossing.failure.cause is Cause.NO_WORKER


def _until_trouble(crossings: Iterator[Crossing]) -> Iterator[Crossing]:
    for crossing in crossings:
        yield crossing
        if _is_trouble(crossing):
            return


def _alone(opening: Opening, link: Link, before: tuple[Crossing, ...]) -> tuple[Crossing, ...]:
    """Return what crosses a link in a process on its devices alone; ways that failed `before` are not tried again."""
    settled = {
        crossing.work
        for crossing in before
        if _is_trouble(crossing) and not _no_worker(crossing) and not _is_unknown(crossing)
    }
    ways = [work for work in WAYS if work not in settled]
    try:
        with opening(link) as backend:
            refusals = {work: backend.can_run(work, (0, 1)) for work in WAYS}
            fresh = [
                _placed(crossing, link) for crossing in _crossings(backend, (0, 1), refusals, _sizes(backend), ways)
            ]
    except CollbenchError as error:
        failure = failure_of(error)
        fresh = [Crossing(work, SIZES[0], failure=failure) for work in ways]
    kept = (crossing for crossing in before if crossing.work in settled)
    return tuple(sorted((*kept, *fresh), key=lambda crossing: WAYS.index(crossing.work)))


def _placed(crossing: Crossing, link: Link) -> Crossing:
    """Return a crossing with the machine's positions in place of a process's own."""
    if crossing.wrong is not None:
        return replace(crossing, wrong=replace(crossing.wrong, members=link))
    if crossing.failure is None or not crossing.failure.groups:
        return crossing
    devices = tuple(link[position] for position in crossing.failure.devices if position < len(link))
    return replace(crossing, failure=replace(crossing.failure, groups=(link,), devices=devices))


def _sizes(backend: Backend) -> tuple[int, ...]:
    """Make room for the messages and return their sizes, smaller ones on a GPU that is nearly full. Raises StepFailed.

    The backend is ready to send then. Small messages have room beside each other, so that each is compared.
    """
    room = backend.capacity_bytes()
    if room < SIZES[0] * _SMALL_ONES:
        detail = "too little free memory on the GPU for messages of 4K"
        raise StepFailed(failure=Failure(FailureKind.ERROR, Cause.NO_BUFFERS, detail=detail))
    sizes = (SIZES[0], min(SIZES[1], 1 << room.bit_length() - 1))
    backend.reserve(sizes[-1])
    return sizes


def _crossings(
    backend: Backend,
    members: Link,
    refusals: Mapping[Work, Skipped | None],
    sizes: tuple[int, ...],
    ways: Sequence[Work],
) -> Iterator[Crossing]:
    """Yield what crosses a link by each of these ways; larger messages are not sent where smaller ones fail."""
    for work in ways:
        # Without peer access the driver would send the copy engine's copies through the host.
        refusal = refusals[KERNEL_WRITE if work == COPY_ENGINE else work]
        if refusal is not None and refusal.kind is not SkipKind.CACHE:
            yield Crossing(work, sizes[-1], refusal=refusal)
            continue
        for size in sizes:
            crossing = _cross(backend, work, size, members)
            # A cache may make a kernel's reads seem too fast: only their arrival counts.
            yield replace(crossing, gbs=None) if refusal else crossing
            if crossing.state is PeerState.UNKNOWN:  # the other ways would take as long
                return
            if crossing.state.is_broken:
                break


def _cross(backend: Backend, work: Work, size: int, members: Link) -> Crossing:
    """Send messages and return their rate, or what became of them."""
    step = Step(work, (members,), size, _SMALL_ONES if size == SIZES[0] else 1, _BATCHES)
    try:
        timing = time_step(backend, step)
    except DataCorruption as error:
        return Crossing(work, size, wrong=error.wrong or WrongData(work, size, members))
    except StepFailed as error:
        return Crossing(work, size, failure=error.failure)
    return Crossing(work, size, gbs=size / median(timing.seconds[0]) / 1e9)
