"""What a rank does for rank 0: it has one device, and times its part of each step on it."""

from __future__ import annotations

from typing import Protocol

from collbench.backends.protocol import Step, Timing
from collbench.model import Device, Flag, Health, Path
from collbench.world.messages import Introduction, OpenRank, RankFacts


class Seat(Protocol):
    """One rank's device. Errors are CollbenchErrors; after any but DataCorruption it must be opened again."""

    def introduce(self) -> Introduction:
        """Return who is here. Raises MachineError, UsageError."""

    def make_id(self) -> str:
        """Return what the ranks of a new world must share to find each other; "" where they need nothing."""

    def open(self, opening: OpenRank) -> RankFacts:
        """Open the device for a new world, in the place of the one before."""

    def reserve(self, largest_bytes: int) -> None:
        """Make room for messages of up to `largest_bytes`."""

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Expect collectives on these groups of ranks."""

    def time(self, step: Step) -> Timing:
        """Time the step; groups without this rank have no seconds."""

    def paths(self, devices: tuple[Device, ...]) -> tuple[Path, ...]:
        """Return the paths between devices of this host, by their places here; none where nobody tells."""

    def health(self) -> tuple[Health, ...]:
        """Return the device's state now; none where nobody tells."""

    def flags(self) -> tuple[Flag, ...]:
        """Return what is wrong with the device."""

    def interrupt(self) -> None:
        """End the step that another thread waits for: that one fails."""

    def close(self) -> None:
        """Release everything."""
