"""What every link does by peer access, by itself, and why: what `collbench check` says of P2P.

Verified messages go over every link: a hang, a crash or wrong data costs that link alone. First one process opens all
devices, and leaves a link at its first trouble. Each link with trouble then gets a process of its own on its two
devices, which tries what has not failed yet, and again what had no answer on a busy host. Then NCCL is asked for the
transports that it takes, and the machine for causes. The main house finds this module by its row in annexes.py.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias, TypeVar

from collbench.cli import options
from collbench.cli.terminal import leaving, show_answer
from collbench.machine.nvidia_smi import LiveTools, peer_answers
from collbench.machine.nvml import Nvml, peer_status
from collbench.machine.variables import refuse
from collbench.measurement.backends import factory
from collbench.measurement.backends.child_process import Background
from collbench.measurement.backends.isolated import OF_PROBES, IsolatedBackend
from collbench.measurement.backends.protocol import Backend, Open, Step, time_step
from collbench.model.capabilities import SIM, capabilities
from collbench.model.errors import (
    Cause,
    CollbenchError,
    DataCorruption,
    ExitStatus,
    Failure,
    FailureKind,
    MachineError,
    StepFailed,
    UsageError,
    WrongData,
    failure_of,
)
from collbench.model.operations import Operation, Work
from collbench.model.run import Device, Health, PeerStatus, Refusal, Run, SkipKind
from collbench.p2p import page
from collbench.p2p.causes import PeerCause, causes
from collbench.p2p.peer_map import (
    BY_PEER_ACCESS,
    CAPABILITIES,
    COPY_ENGINE,
    KERNEL_WRITE,
    THROUGH_HOST,
    WAYS,
    Crossing,
    Link,
    PeerLink,
    PeerMap,
    PeerState,
)
from collbench.preflight.findings import Driver, GpuState, Host, MachineFacts
from collbench.report.text.layout import Page

# A message that a mailbox or a write buffer may hold, and one that shows the rate within some percent: 16 MiB take
# 40 us over NVLink and 5 ms through host memory, so that 56 links take a few seconds.
SIZES = (4 * 2**10, 16 * 2**20)
# Each batch brings other data, and is verified.
_ITERATIONS, _BATCHES = 4, 3
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

    The backend is ready to send then. A batch's messages have room beside each other, so that each is compared.
    """
    room = backend.capacity_bytes() // _ITERATIONS
    if room < SIZES[0]:
        detail = "too little free memory on the GPU for messages of 4K"
        raise StepFailed(failure=Failure(FailureKind.ERROR, Cause.NO_BUFFERS, detail=detail))
    sizes = (SIZES[0], min(SIZES[1], 1 << room.bit_length() - 1))
    backend.reserve(sizes[-1] * _ITERATIONS)
    return sizes


def _crossings(
    backend: Backend,
    members: Link,
    refusals: Mapping[Work, Refusal | None],
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
    step = Step(work, (members,), size, _ITERATIONS, _BATCHES)
    try:
        timing = time_step(backend, step)
    except DataCorruption as error:
        return Crossing(work, size, wrong=error.wrong or WrongData(work, size, members))
    except StepFailed as error:
        return Crossing(work, size, failure=error.failure)
    return Crossing(work, size, gbs=size / median(timing.seconds[0]) / 1e9)


# The devices opened, their links examined, and the machine asked for causes.

# Free memory in which two processes may open a GPU at once: each takes its context, and three buffers of up to 1 GiB.
# With less, the one for copies through the host opens when it is needed, and may find no room.
_ROOM_FOR_TWO = 10 * 2**30


Known: TypeAlias = Mapping[Link, tuple[Crossing, ...]]


class Examined(NamedTuple):
    """A machine's links, and the causes of what they show, as a `report.sections.PeerAccess`."""

    peer_map: PeerMap
    causes: tuple[PeerCause, ...]

    @property
    def status(self) -> ExitStatus:
        """Return the exit status."""
        return page.status(*self)

    @property
    def words(self) -> str:
        """Return whether P2P works, as a sentence."""
        return page.answer(*self)

    @property
    def finding(self) -> str:
        """Return the same with the surest cause, as a clause."""
        return page.finding(*self)

    @property
    def unanswered(self) -> bool:
        """Return whether no more is known than before."""
        return page.unanswered(self.peer_map)

    def part(self) -> Page:
        """Return what the page of `check` shows."""
        return page.part(*self)

    def as_json(self) -> dict[str, Any]:
        """Return the same as JSON (docs/check.md)."""
        return page.as_json(*self, self.status)


def examine(
    devices: str | None,
    backend: str,
    fabric: str | None,
    nccl: str | None,
    seed: int,
    measured: Run | None = None,
) -> Examined:
    """Return what every link does by peer access, and why. Raises UsageError, MachineError.

    The copies of a run that was `measured` here just now are not repeated where they delivered.
    """
    if capabilities(backend).cores:
        raise UsageError("CPU cores have no P2P: --map-p2p needs GPUs, or --backend sim")
    known = crossings_of(measured) if measured else {}
    if capabilities(backend).simulated:
        return _simulated(devices, fabric, seed, known)
    return _on_gpus(devices, nccl, known, measured)


def _simulated(wanted: str | None, fabric_name: str | None, seed: int, known: Known) -> Examined:
    fabric = factory.simulated(fabric_name)
    whole = factory.simulated_backend(fabric, wanted, seed)
    devices, paths = whole.devices(), whole.paths()
    used = []

    def opening(positions: tuple[int, ...]) -> nullcontext[Backend]:
        indices = ",".join(str(devices[position].index) for position in positions)
        used.append(factory.simulated_backend(fabric, indices, seed))
        return nullcontext(used[-1])

    crossings, together = cross_links(len(devices), opening, known)
    reported = {path.devices: path.peer_access for path in paths}
    variables = whole.environment()
    links = []
    for link, crossed in crossings.items():
        said = reported[min(link), max(link)]
        answers = {"r": said.read, "w": said.write} if said else {}
        peer_link = PeerLink(link, crossed, {letter: state for letter, state in answers.items() if state})
        direct = peer_link.cuda and not variables.get("NCCL_P2P_DISABLE")
        links.append(replace(peer_link, nccl="P2P/direct pointer" if direct else "SHM/direct/direct"))
    facts = MachineFacts(
        SIM.name,
        Host(),
        Driver(gpus=tuple(map(GpuState, devices, whole.health())), virtualization=fabric.virtualization),
        environment=variables,
    )
    peer_map = PeerMap(
        SIM.name, "sim", devices, tuple(links), paths, fabric.name, together, seconds=sum(sim.clock() for sim in used)
    )
    return Examined(peer_map, causes(peer_map, facts))


def _on_gpus(wanted: str | None, nccl_path: str | None, known: Known, measured: Run | None) -> Examined:
    from collbench.preflight import collect  # late: pynvml

    refuse()
    begin = time.monotonic()
    slots: dict[str, Health] = {}
    if measured is not None:  # its copies are not repeated
        slots = {device.uuid: state for device, state in zip(measured.devices, measured.health_after, strict=False)}
    with Nvml() as nvml:
        devices = factory.choose_devices(factory.may_use(nvml.devices()), wanted)
        nvml_says, paths = _answers(nvml, devices), nvml.paths(devices)
        free = min(device.memory_bytes - (nvml.memory_used(device) or 0) for device in devices)
    probe = TransportProbe()  # its process starts while links are examined
    try:
        with LiveTools(commands=[("topo", "-p2p", letter) for letter in CAPABILITIES]) as tools:

            @contextmanager
            def opening(positions: tuple[int, ...]) -> Iterator[Backend]:
                backend = IsolatedBackend(timeouts=OF_PROBES)
                try:
                    backend.start()
                    backend.open(Open(tuple(devices[position] for position in positions)))
                    if free > _ROOM_FOR_TWO:
                        backend.open_staging()
                    yield backend
                finally:
                    _read_slots(slots, [devices[position] for position in positions])
                    backend.reap()

            crossings, together = cross_links(len(devices), opening, known)
            asked = Background(lambda: probe.ask(devices, nccl_path))  # a second, in which the tools are read
            said = peer_answers(dict(zip(CAPABILITIES, tools.texts(), strict=False)))
        facts = _as_copies_ended(collect.examine("cuda", os.environ, nccl_path), slots)
        transports, trouble = asked.result()
    finally:
        probe.close()
    links = tuple(
        PeerLink(
            link,
            crossed,
            _of_link(nvml_says, *link),
            _of_link(said, *(f"GPU{devices[position].index}" for position in link)),
            transports.get(link, ""),
        )
        for link, crossed in crossings.items()
    )
    peer_map = PeerMap("cuda", socket.gethostname(), devices, links, paths, "", together, trouble)
    peer_map = asked_again(peer_map, facts, nccl_path)
    return Examined(replace(peer_map, seconds=time.monotonic() - begin), causes(peer_map, facts))


def _read_slots(slots: dict[str, Health], devices: Sequence[Device]) -> None:
    """Read the GPUs' PCIe links, by UUID, while workers still hold the GPUs: idle ones lower their generation.

    The best generation of all readings counts, because a link does not reach one that it has not trained at.
    """
    with suppress(CollbenchError), Nvml() as nvml:  # a GPU that fell off the bus has failed its own copies
        for device in devices:
            state, before = nvml.health(device), slots.get(device.uuid)
            if before is None or (before.pcie_generation or 0) <= (state.pcie_generation or 0):
                slots[device.uuid] = state


def _as_copies_ended(facts: MachineFacts, slots: Mapping[str, Health]) -> MachineFacts:
    """Return the facts with the PCIe generations that were read as copies ended, None where none was."""
    gpus = ((gpu, slots.get(gpu.device.uuid, Health()).pcie_generation) for gpu in facts.driver.gpus)
    read = tuple(replace(gpu, health=replace(gpu.health, pcie_generation=now)) for gpu, now in gpus)
    return replace(facts, driver=replace(facts.driver, gpus=read))


_End = TypeVar("_End")


def _of_link(
    answers: Mapping[tuple[_End, _End], dict[str, PeerStatus]], source: _End, to: _End
) -> dict[str, PeerStatus]:
    """Return the answers about a link: the source writes the destination's memory, the destination reads its own."""
    written, read = answers.get((source, to), {}), answers.get((to, source), {})
    return {letter: state for letter in CAPABILITIES if (state := (read if letter == "r" else written).get(letter))}


def _answers(nvml: Nvml, devices: tuple[Device, ...]) -> dict[Link, dict[str, PeerStatus]]:
    """Return NVML's answers about the first GPU's access to the second's memory, by the letters of CAPABILITIES."""
    gpus = [nvml.gpu(device) for device in devices]
    answers: dict[Link, dict[str, PeerStatus]] = {}
    for a, b in permutations(range(len(gpus)), 2):
        states = {letter: peer_status(gpus[a], gpus[b], number) for number, letter in enumerate(CAPABILITIES)}
        answers[a, b] = {letter: state for letter, state in states.items() if state is not None}
    return answers


# Which transport NCCL takes for each link (P2P, SHM, NET), from the debug log of a separate process.

# "Channel 00/1 : 0[0] -> 3[3] via P2P/direct pointer/read", "… via SHM/direct/direct", "… [send] via NET/Socket/0"; the
# number in brackets is NVML's, or a PCI bus id before 2.16 [NCCL 2.30.7, src/transport].
_CHANNEL = re.compile(r"Channel [\d/]+ : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[\w+\])? via (\S[^\n]*?)\s*$", re.MULTILINE)
_SIZE = 2**20


def parsed(log: str) -> dict[Link, str]:
    """Return each link's transport by the ranks in NCCL's log; several are joined."""
    found: dict[Link, dict[str, None]] = {}
    for source, destination, transport in _CHANNEL.findall(log):
        found.setdefault((int(source), int(destination)), {})[transport] = None
    return {link: ", ".join(transports) for link, transports in found.items()}


class TransportProbe:
    """A process in which NCCL sends a verified all-to-all, which needs every link, and logs its transports."""

    def __init__(self, without: str = "") -> None:
        """Start the process, and return at once. NCCL takes the variable `without` for one that is not set."""
        self._folder = tempfile.TemporaryDirectory(prefix="collbench-nccl-")
        # Only this process has NCCL_DEBUG. %p: a process that replaces one that died begins a file of its own.
        log = {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,NET",
            "NCCL_DEBUG_FILE": f"{self._folder.name}/nccl.%p",
        }
        if without:  # empty: what is set is not read from nccl.conf [NCCL 2.30.7, src/misc/param.cc, setEnvFile]
            log[without] = ""
        self._backend = IsolatedBackend(timeouts=OF_PROBES, extra=log)
        self._backend.start()

    def ask(
        self, devices: tuple[Device, ...], nccl_path: str | None
    ) -> tuple[dict[Link, str], Failure | WrongData | None]:
        """Return each link's transport, and why NCCL did not deliver, None if it did."""
        trouble: Failure | WrongData | None = None
        try:
            self._backend.open(Open(devices, nccl_path, collectives=True))
            self._backend.reserve(_SIZE)
            everyone, whole = tuple(range(len(devices))), _SIZE // len(devices) * len(devices)
            self._backend.time(Step(Work(Operation.ALLTOALL), (everyone,), whole, iterations=2, batches=2))
        except DataCorruption as error:
            trouble = error.wrong
        except CollbenchError as error:
            trouble = failure_of(error)
        files = sorted(Path(self._folder.name).iterdir())
        return parsed("".join(path.read_text(encoding="utf-8", errors="replace") for path in files)), trouble

    def close(self) -> None:
        """End the process."""
        self._backend.reap()
        self._folder.cleanup()


def asked_again(peer_map: PeerMap, facts: MachineFacts, nccl_path: str | None) -> PeerMap:
    """Return the map with what NCCL takes without the variable that is blamed for its transports, if one is.

    It is not asked where it might hang: on broken links, or on a host too busy to answer.
    """
    variable = next((cause.variable for cause in causes(peer_map, facts) if cause.variable), "")
    doubtful = any(link.state.is_broken or link.state is PeerState.UNKNOWN for link in peer_map.links)
    if not variable or doubtful or peer_map.nccl_failure:
        return peer_map
    probe = TransportProbe(variable)
    try:
        transports, trouble = probe.ask(peer_map.devices, nccl_path)
    finally:
        probe.close()
    if isinstance(trouble, Failure) and trouble.kind is FailureKind.BUSY:
        return peer_map
    taken = dict.fromkeys((link.devices for link in peer_map.links), "") if trouble else transports
    links = (
        replace(link, without={variable: taken[link.devices]}) if link.devices in taken else link
        for link in peer_map.links
    )
    return replace(peer_map, links=tuple(links))


# What the main house asks of the map of P2P: check shows it, and select heeds it where no run shows the links.

_OPTIONS = ("map_p2p", "devices", "backend", "fabric", "nccl", "seed", "as_json", "verbose")


def show_map(values: Mapping[str, Any]) -> None:
    """Examine every link by itself, print the map, and leave with its status: `check --map-p2p`."""
    if others := options.typed_besides(_OPTIONS):
        raise UsageError(f"--map-p2p measures no run: leave out {', '.join(others)}")
    backend, reason = factory.resolve(values["backend"])
    if reason is not None:
        raise MachineError(f"no GPU to examine: {reason}; --backend sim simulates some")
    links = examine(values["devices"], backend, values["fabric"], values["nccl"], values["seed"])
    with leaving(links.status):
        show_answer(page.page(*links), lambda: page.dumps(*links, links.status))
