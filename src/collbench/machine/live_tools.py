"""What `nvidia-smi topo` says of this machine right now, asked in the background: it starts as the driver does."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self

from collbench.errors import UsageError
from collbench.machine import nvidia_smi
from collbench.machine.nvidia_smi import PeerAccess, Topology
from collbench.model import Device, Path

_PROGRAM = "nvidia-smi"
_TOPOLOGY, _PEERS = ("topo", "-m"), ("topo", "-p2p", "r")
# From the start on. It takes 0.1 to 1 s, without persistence mode several; so long opening the GPUs takes as well.
_LIMIT_S = 10.0
_MOST_BYTES = 2**20


class LiveTools:
    """Two `nvidia-smi` in the background. Where the program is missing, fails or hangs, its facts stay unknown."""

    def __init__(self, program: str = _PROGRAM, limit_s: float = _LIMIT_S) -> None:
        """Start them and return at once."""
        self._deadline = time.monotonic() + limit_s
        path = shutil.which(program)
        self._processes = [] if path is None else [_start((path, *words)) for words in (_TOPOLOGY, _PEERS)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def told(self, devices: Sequence[Device], paths: Sequence[Path]) -> tuple[Path, ...]:
        """Return the paths with what nvidia-smi says of them; waits for it until the time limit. To be called once."""
        texts = [self._text(process) for process in self._processes]
        self.close()
        if not texts:
            return tuple(paths)
        topology, peers = None, None
        with suppress(UsageError):
            topology = nvidia_smi.parse_topology(texts[0])
        with suppress(UsageError):
            peers = nvidia_smi.parse_p2p(texts[1])
        return with_words(devices, paths, topology, peers)

    def close(self) -> None:
        """End what still runs, without waiting for it long."""
        for process in self._processes:
            if process is not None:
                with suppress(OSError):
                    process.kill()
                with suppress(subprocess.TimeoutExpired, OSError, ValueError):
                    process.communicate(timeout=1)
        self._processes = []

    def _text(self, process: subprocess.Popen[bytes] | None) -> str:
        """Return what a process printed, "" where it failed or takes too long."""
        if process is None:
            return ""
        try:
            out, _ = process.communicate(timeout=max(0.0, self._deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, OSError):
            return ""
        return out[:_MOST_BYTES].decode("utf-8", errors="replace") if process.returncode == 0 else ""


def with_words(
    devices: Sequence[Device], paths: Sequence[Path], topology: Topology | None, peers: PeerAccess | None
) -> tuple[Path, ...]:
    """Return the paths with the words of `topo -m` and `-p2p r`; None where a text is missing or lacks the GPU.

    The texts number GPUs as nvidia-smi does, and so does Device.index. Peer access that differs by direction keeps
    both words: "OK, GNS".
    """
    labels = {} if topology is None else _by_gpus(topology.gpus, topology.labels)
    states = {} if peers is None else _by_gpus(peers.gpus, peers.states)
    found = []
    for path in paths:
        a, b = (f"GPU{devices[position].index}" for position in path.devices)
        words = dict.fromkeys(word for word in (states.get((a, b)), states.get((b, a))) if word is not None)
        label = labels.get((a, b))
        found.append(replace(path, tool_label=label, tool_peer_access=", ".join(words) or None))
    return tuple(found)


def _by_gpus(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Mapping[tuple[str, str], str]:
    return {(a, b): rows[i][j] for i, a in enumerate(names) for j, b in enumerate(names) if i != j}


def _start(command: tuple[str, ...]) -> subprocess.Popen[bytes] | None:
    """Start a command that reads nothing and whose complaints nobody wants; None where it cannot be started."""
    # Its words must be English, and the pipe must not fill: 16 GPUs with their cards take 10 KB of its 64.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
    except OSError:
        return None
