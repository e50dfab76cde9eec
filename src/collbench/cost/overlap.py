"""How long a step takes when compute and communication run beside each other: two lanes, each in its own order."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from collbench.cost.strategies import Transfer

_HALVINGS = 60  # of an interval that began as wide as the step: below its last bit


def step_seconds(transfers: Sequence[Transfer], seconds: Sequence[float], compute: float) -> float:
    """Return how long a step of `compute` seconds takes with these transfers, each of so many seconds.

    Communication runs one transfer at a time, in their order, none before compute has reached its `ready`; compute
    stops at a transfer's `needed` until it is there. `ready` never falls along the order.
    """
    lanes = _Lanes(compute)
    free = 0.0
    for transfer, long in zip(transfers, seconds, strict=True):
        free = max(lanes.reach(transfer.ready), free) + long
        lanes.wait(transfer.needed, free)
    return lanes.reach(1.0, last=True)


def compute_of(step: float, transfers: Sequence[Transfer], seconds: Sequence[float]) -> float | None:
    """Return the compute seconds of a step that was measured with these transfers inside; None where it cannot be."""
    if step_seconds(transfers, seconds, 0.0) > step:
        return None
    low, high = 0.0, step
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        longer = step_seconds(transfers, seconds, middle) > step
        low, high = (low, middle) if longer else (middle, high)
    return low


class _Lanes:
    """The compute lane: where it is, what time it is there, and what it will have to wait for."""

    def __init__(self, compute: float) -> None:
        self._compute = compute
        self._place = self._clock = 0.0
        self._waits: list[tuple[float, float]] = []

    def wait(self, place: float, until: float) -> None:
        """Let compute stop at a place until some time."""
        heapq.heappush(self._waits, (place, until))

    def reach(self, place: float, *, last: bool = False) -> float:
        """Return when compute gets to a place, after all waits before it; and at it, where it is the `last`.

        A wait at the place itself holds compute, but not the communication that starts there with it.
        """
        while self._waits and (self._waits[0][0] < place or last):
            stop, until = heapq.heappop(self._waits)
            self._walk(stop)
            self._clock = max(self._clock, until)
        self._walk(place)
        return self._clock

    def _walk(self, place: float) -> None:
        if place > self._place:
            self._clock += (place - self._place) * self._compute
            self._place = place
