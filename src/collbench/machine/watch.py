"""What goes wrong on the GPUs while they are measured: heat, throttling, other people's processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from collbench.machine.health import wrong
from collbench.machine.nvml import Glance
from collbench.model.errors import CollbenchError
from collbench.model.run import Device, Flag

# Thermal and power throttling lasts for seconds, and the driver renews utilisation a few times a second.
_PERIOD_S = 0.25


class Occupants:
    """Distinguishes our own processes on the GPUs from other people's.

    `before` are the processes on each GPU before ours opened it, by position; `ours()` returns the ids of our processes
    that use the GPUs now, as this process sees them.
    """

    def __init__(self, before: Sequence[frozenset[int] | None], ours: Callable[[], Collection[int]]) -> None:
        self._before = tuple(pids or frozenset() for pids in before)
        self._ours = ours
        self._known: set[int] = set()  # a killed process of ours stays on its GPU for a moment

    def others(self, position: int, pids: frozenset[int] | None) -> int | None:
        """Return how many of the processes on a GPU are not ours; None if NVML does not report them.

        Inside a container NVML may give the host's ids, and none of them is ours by number. Each of ours is on each
        GPU, so then as many of those that were not there before are taken for ours. Which ones does not matter for the
        count.
        """
        if pids is None:
            return None
        ours = set(self._ours())
        self._known |= ours
        if pids & self._known:
            return len(pids - self._known)
        return len(pids) - min(len(ours), len(pids - self._before[position]))


class HealthWatch:
    """Looks at the GPUs' state when it is asked, but not more often than about four times a second.

    `read` returns a glance at each GPU by position; where it fails, nothing is known of that moment and measuring goes
    on. Use it in a process that does no GPU work: the work must not wait for the watching. It has no thread of its own:
    with NVML read on two threads, nvidia-ml-py crashed in one run of eight on 4 × H200.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        read: Callable[[], Sequence[Glance]],
        occupants: Occupants,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._occupants, self._clock = read, occupants, clock
        self._looked = -math.inf
        self._seen: tuple[tuple[Flag, ...], ...] = tuple(() for _ in devices)

    def flags(self, members: Iterable[int]) -> tuple[Flag, ...]:
        """Return what is wrong on these positions, as of a quarter of a second ago at most."""
        if self._clock() - self._looked >= _PERIOD_S:
            self._look()
            self._looked = self._clock()
        return tuple(dict.fromkeys(flag for position in sorted(set(members)) for flag in self._seen[position]))

    def _look(self) -> None:
        try:
            glances = self._read()
        except CollbenchError:  # a GPU that fell off the bus: its own step will fail and say so
            return
        self._seen = tuple(
            tuple(wrong(position, seen.throttle, seen.temperature, self._occupants.others(position, seen.processes)))
            for position, seen in enumerate(glances)
        )
