"""Which transport NCCL takes for each link (P2P, SHM, NET), from the debug log of a separate process."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path

from collbench.measurement.backends.isolated import OF_PROBES, IsolatedBackend
from collbench.measurement.backends.protocol import Open, Step
from collbench.model.errors import CollbenchError, DataCorruption, Failure, FailureKind, WrongData, failure_of
from collbench.model.operations import Operation, Work
from collbench.model.run import Device
from collbench.p2p.causes import causes
from collbench.p2p.peer_map import Link, PeerMap, PeerState
from collbench.preflight.findings import MachineFacts

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
