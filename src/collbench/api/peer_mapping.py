"""`collbench check --map-p2p`: opens the devices, examines every link by itself, and asks the machine for causes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple, TypeAlias, TypeVar

from collbench.api.measuring import named_nccl, new_seed
from collbench.judge.peer_causes import PeerCause, causes
from collbench.machine.doctor.facts import Driver, Facts, Gpu, Host
from collbench.machine.nvidia_smi import LiveTools, peer_answers
from collbench.machine.nvml import Nvml, peer_status
from collbench.machine.variables import Use, refuse
from collbench.measurement import peer_map as measurement
from collbench.measurement.backends import factory
from collbench.measurement.backends.background import Background
from collbench.measurement.backends.protocol import Backend
from collbench.model.capabilities import SIM, capabilities
from collbench.model.errors import CollbenchError, UsageError
from collbench.model.peer_map import CAPABILITIES, Crossing, Link, PeerLink, PeerMap
from collbench.model.run import Device, Health, PeerStatus, Run

# Free memory in which two processes may open a GPU at once: each takes its context, and three buffers of up to 1 GiB.
# With less, the one for copies through the host opens when it is needed, and may find no room.
_ROOM_FOR_TWO = 10 * 2**30


Known: TypeAlias = Mapping[Link, tuple[Crossing, ...]]


class Examined(NamedTuple):
    """A machine's links, and the causes of what they show."""

    peer_map: PeerMap
    causes: tuple[PeerCause, ...]


def examine(
    devices: str | None,
    backend: str = "auto",
    fabric: str | None = None,
    nccl: str | None = None,
    seed: int | None = None,
    measured: Run | None = None,
) -> Examined:
    """Return what every link does by peer access, and why. Raises UsageError, MachineError.

    The copies of a run that was `measured` here just now are not repeated where they delivered.
    """
    if capabilities(backend).cores:
        raise UsageError("CPU cores have no P2P: --map-p2p needs GPUs, or --backend sim")
    known = measurement.crossings_of(measured) if measured else {}
    if capabilities(backend).simulated:
        return _simulated(devices, fabric, new_seed() if seed is None else seed, known)
    return _on_gpus(devices, named_nccl(nccl), known, measured)


def _simulated(wanted: str | None, fabric_name: str | None, seed: int, known: Known) -> Examined:
    fabric = factory.simulated(fabric_name)
    whole = factory.simulated_backend(fabric, wanted, seed)
    devices, paths = whole.devices(), whole.paths()
    used = []

    def opening(positions: tuple[int, ...]) -> nullcontext[Backend]:
        indices = ",".join(str(devices[position].index) for position in positions)
        used.append(factory.simulated_backend(fabric, indices, seed))
        return nullcontext(used[-1])

    crossings, together = measurement.examine(len(devices), opening, known)
    reported = {path.devices: path.peer_access for path in paths}
    variables = whole.environment()
    links = []
    for link, crossed in crossings.items():
        said = reported[min(link), max(link)]
        answers = {"r": said.read, "w": said.write} if said else {}
        one = PeerLink(link, crossed, {letter: state for letter, state in answers.items() if state})
        direct = one.cuda and not variables.get("NCCL_P2P_DISABLE")
        links.append(replace(one, nccl="P2P/direct pointer" if direct else "SHM/direct/direct"))
    facts = Facts(
        SIM.name,
        Host(),
        Driver(gpus=tuple(map(Gpu, devices)), virtualization=fabric.virtualization),
        environment=variables,
    )
    peer_map = PeerMap(
        SIM.name, "sim", devices, tuple(links), paths, fabric.name, together, seconds=sum(one.clock() for one in used)
    )
    return Examined(peer_map, causes(peer_map, facts))


def _on_gpus(wanted: str | None, nccl_path: str | None, known: Known, measured: Run | None) -> Examined:
    from collbench.machine.doctor import collect  # late: pynvml
    from collbench.measurement.backends.isolated import OF_PROBES, IsolatedBackend
    from collbench.measurement.backends.nccl_transports import TransportProbe

    refuse(Use.NATIVE)
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
                    backend.open(tuple(devices[position] for position in positions), None, collectives=False)
                    if free > _ROOM_FOR_TWO:
                        backend.open_staging()
                    yield backend
                finally:
                    _read_slots(slots, [devices[position] for position in positions])
                    backend.reap()

            crossings, together = measurement.examine(len(devices), opening, known)
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
    hostname, seconds = socket.gethostname(), time.monotonic() - begin
    peer_map = PeerMap("cuda", hostname, devices, links, paths, "", together, trouble, seconds)
    return Examined(peer_map, causes(peer_map, facts))


def _read_slots(slots: dict[str, Health], devices: Sequence[Device]) -> None:
    """Read the GPUs' PCIe links, by UUID, while workers still hold the GPUs: idle ones lower their generation.

    The best generation of all readings counts, because a link does not reach one that it has not trained at.
    """
    with suppress(CollbenchError), Nvml() as nvml:  # a GPU that fell off the bus has failed its own copies
        for device in devices:
            state, before = nvml.health(device), slots.get(device.uuid)
            if before is None or (before.pcie_generation or 0) <= (state.pcie_generation or 0):
                slots[device.uuid] = state


def _as_copies_ended(facts: Facts, slots: Mapping[str, Health]) -> Facts:
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
