"""What the main house asks of the map of P2P: `check` shows it, and `select` heeds it where no run shows the links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collbench.cli import options
from collbench.cli.terminal import leaving, show_answer
from collbench.measurement.backends import factory
from collbench.model.errors import MachineError, UsageError
from collbench.p2p import page
from collbench.p2p.examine import examine

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
