"""When a GPU is not well: heat, throttling, other people's processes; and looking for them while it is measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from collbench.model.errors import CollbenchError
from collbench.model.run import Device, Flag, FlagKind, Health, Run, new_errors
from collbench.model.units import amount

if TYPE_CHECKING:
    from collbench.machine.nvml import Glance

# Clocks that a user has set are low on purpose and steady: a measurement with them is valid.
_SET_BY_USER = ("applications clocks setting", "display clock setting")

# The memory of a process that opened a GPU and holds nothing on it: 526 MiB on an H200 with CUDA 13. torch opens all
# GPUs of an NVSwitch machine where it copies between two.
_CONTEXT_BYTES = 640 * 2**20
# The driver's utilization may include the end of our own earlier work; below this, no other process is working.
BUSY_PERCENT = 10

# A rule of thumb for GPUs: under 75 °C is good, over 80 is worth a warning, 84 to 90 throttles.
GOOD_C, HOT_C = 75, 80
TEMPERATURE_RULE = f"under {GOOD_C} °C is good, over {HOT_C} °C is hot, 84–90 °C throttles"


def only_opened(state: Health) -> bool:
    """Return whether the processes on a GPU have opened it and no more: they hold no data there and do no work."""
    if not state.processes or state.others_memory is None:
        return False
    return state.others_memory <= state.processes * _CONTEXT_BYTES and (state.utilization or 0) <= BUSY_PERCENT


def holds_back(reason: str) -> bool:
    """Return whether a throttle reason says that the GPU runs slower than it was set to."""
    return reason not in _SET_BY_USER


def wrong(position: int, throttle: Sequence[str], temperature: int | None, others: int | None) -> Iterator[Flag]:
    """Yield what is wrong with a device: its reasons to throttle, its temperature in °C, others' processes on it."""
    where = (position,)
    yield from (Flag(FlagKind.THROTTLED, where, reason=reason) for reason in throttle if holds_back(reason))
    if temperature is not None and temperature > HOT_C:
        yield Flag(FlagKind.HOT, where, temperature)
    if others:
        yield Flag(FlagKind.SHARED, where, others)


def errors(run: Run, position: int) -> Iterator[str]:
    """Yield the errors that a device counted: uncorrected ones of its memory, new ones of its NVLinks."""
    states = (state[position] for state in (run.health_before, run.health_after) if position < len(state))
    if ecc := max((state.ecc_errors or 0 for state in states), default=0):
        yield amount(ecc, "uncorrected ECC error")
    if grown := new_errors(run, "nvlink_errors").get(position):
        yield amount(grown[1] - grown[0], "new NVLink error")


# Thermal and power throttling lasts for seconds, and the driver renews utilization a few times a second.
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
        GPU, so as many of the new ones count as ours; which ones they are does not matter for the count.
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

    `read` returns a glance at each GPU by position; if it fails, nothing is known of that moment and measuring goes on.
    Use it in a process that does no GPU work, so that no work waits for it. It has no thread of its own: with NVML read
    on two threads, nvidia-ml-py crashed in one run of eight on 4 × H200.
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
