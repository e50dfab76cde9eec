"""What the main house asks of the map of P2P: `check` shows it, and `select` heeds it where no run shows the links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collbench.cli import options
from collbench.cli.terminal import leaving, show_answer
from collbench.measurement.backends import factory
from collbench.model.errors import ExitStatus, MachineError, UsageError
from collbench.model.run import Run
from collbench.p2p import page
from collbench.p2p.examine import Examined, examine
from collbench.report.sections import PeerAccess
from collbench.report.text.layout import Page

_OPTIONS = ("map_p2p", "devices", "backend", "fabric", "nccl", "seed", "as_json", "verbose")


class _Answer(Examined):
    """What P2P does on a machine's links, as `report.sections.PeerAccess` says."""

    __slots__ = ()

    @property
    def status(self) -> ExitStatus:
        return page.status(*self)

    @property
    def words(self) -> str:
        return page.answer(*self)

    @property
    def finding(self) -> str:
        return page.finding(*self)

    @property
    def unanswered(self) -> bool:
        return page.unanswered(self.peer_map)

    def part(self) -> Page:
        return page.part(*self)

    def as_json(self) -> dict[str, Any]:
        return page.as_json(*self, self.status)


def examined(
    devices: str | None, backend: str, fabric: str | None, nccl: str | None, seed: int, measured: Run | None = None
) -> PeerAccess:
    """Return what `examine` does."""
    return _Answer(*examine(devices, backend, fabric, nccl, seed, measured))


def show_map(values: Mapping[str, Any]) -> None:
    """Examine every link by itself, print the map, and leave with its status: `check --map-p2p`."""
    if others := options.typed_besides(_OPTIONS):
        raise UsageError(f"--map-p2p measures no run: leave out {', '.join(others)}")
    backend, reason = factory.resolve(values["backend"])
    if reason is not None:
        raise MachineError(f"no GPU to examine: {reason}; --backend sim simulates some")
    links = _Answer(*examine(values["devices"], backend, values["fabric"], values["nccl"], values["seed"]))
    with leaving(links.status):
        show_answer(page.page(*links), lambda: page.dumps(*links, links.status))
