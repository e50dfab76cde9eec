"""The map of P2P: what every link does by peer access, by itself, and why.

The devices are opened and their links examined (`links.py`); then NCCL is asked for the transports that it takes
(`transports.py`), and the machine for causes (`causes.py`). The main house finds this module by its row in annexes.py.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from collbench.machine.nvidia_smi import parse_p2p
from collbench.machine.variables import refuse
from collbench.measurement.backends import factory
from collbench.measurement.backends.protocol import Backend, Open
from collbench.model.errors import CollbenchError, UsageError
from collbench.model.run import SIM, Device, Health, PeerStatus, Run, capabilities
from collbench.p2p.causes import causes, hidden
from collbench.p2p.links import cross_links, crossings_of
from collbench.p2p.page import told
from collbench.p2p.peer_map import CAPABILITIES, Crossing, Link, PeerLink, PeerMap
from collbench.preflight.findings import Driver, GpuState, Host, MachineFacts
from collbench.report.views import PeerAccess

if TYPE_CHECKING:
    from collbench.machine.nvml import Nvml

Known: TypeAlias = Mapping[Link, tuple[Crossing, ...]]

# Free memory in which two processes may open a GPU at once: each takes its context, and three buffers of up to 1 GiB.
# With less, the one for copies through the host opens when it is needed, and may find no room.
_ROOM_FOR_TWO = 10 * 2**30


def examine(
    devices: str | None,
    backend: str,
    fabric: str | None,
    nccl: str | None,
    seed: int,
    measured: Run | None = None,
) -> PeerAccess:
    """Return what every link does by peer access, and why. Raises UsageError, MachineError.

    The copies of a run that was `measured` here just now are not repeated where they delivered. It may have one GPU,
    because others are hidden.
    """
    if capabilities(backend).cores:
        raise UsageError("CPU cores have no P2P: --map-p2p needs GPUs, or --backend sim")
    known = crossings_of(measured) if measured else {}
    if capabilities(backend).simulated:
        return _simulated(devices, fabric, seed, known)
    return _on_gpus(devices, nccl, known, measured)


def _simulated(wanted: str | None, fabric_name: str | None, seed: int, known: Known) -> PeerAccess:
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
    return told(peer_map, causes(peer_map, facts))


def peer_answers(texts: Mapping[str, str]) -> dict[tuple[str, str], dict[str, PeerStatus]]:
    """Return what `topo -p2p` answered for each two GPUs, by the letters of the texts; unreadable texts say nothing."""
    answers: dict[tuple[str, str], dict[str, PeerStatus]] = {}
    for letter, text in texts.items():
        with suppress(UsageError):
            peers = parse_p2p(text)
            for pair, state in peers.cells.items():
                answers.setdefault(pair, {})[letter] = PeerStatus(state)
    return answers


def _on_gpus(wanted: str | None, nccl_path: str | None, known: Known, measured: Run | None) -> PeerAccess:
    # late: pynvml, worker processes
    from collbench.machine.nvidia_smi import LiveTools
    from collbench.machine.nvml import Nvml
    from collbench.measurement.backends.child_process import Background
    from collbench.measurement.backends.isolated import OF_PROBES, IsolatedBackend
    from collbench.p2p.transports import TransportProbe, asked_again
    from collbench.preflight import collect

    refuse()
    begin = time.monotonic()
    slots: dict[str, Health] = {}
    if measured is not None:  # its copies are not repeated
        slots = {device.uuid: state for device, state in zip(measured.devices, measured.health_after, strict=False)}
    with Nvml() as nvml:
        devices = factory.choose_devices(factory.may_use(nvml.devices()), wanted, 1 if measured else 2)
        nvml_says, paths = _answers(nvml, devices), nvml.paths(devices)
        free = min(device.memory_bytes - (nvml.memory_used(device) or 0) for device in devices)
    if len(devices) == 1:
        facts = collect.examine("cuda", os.environ, nccl_path)
        return told(PeerMap("cuda", socket.gethostname(), devices, ()), (), hidden(facts))
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
    return told(replace(peer_map, seconds=time.monotonic() - begin), causes(peer_map, facts), hidden(facts))


def _read_slots(slots: dict[str, Health], devices: Sequence[Device]) -> None:
    """Read the GPUs' PCIe links, by UUID, while workers still hold the GPUs: idle ones lower their generation.

    The best generation of all readings counts, because a link does not reach one that it has not trained at.
    """
    from collbench.machine.nvml import Nvml  # late, as below: pynvml

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
    from collbench.machine.nvml import peer_status

    gpus = [nvml.gpu(device) for device in devices]
    answers: dict[Link, dict[str, PeerStatus]] = {}
    for a, b in permutations(range(len(gpus)), 2):
        states = {letter: peer_status(gpus[a], gpus[b], number) for number, letter in enumerate(CAPABILITIES)}
        answers[a, b] = {letter: state for letter, state in states.items() if state is not None}
    return answers
