"""How long a step takes when host, compute and communication run beside each other: lanes, each in its own order."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from collbench.cost.host import Host
from collbench.cost.strategies import Transfer

_HALVINGS = 60  # of an interval that began as wide as the step: below its last bit


def step_seconds(
    transfers: Sequence[Transfer], seconds: Sequence[float], compute: float, host: Host | None = None
) -> float:
    """Return how long a step of `compute` seconds takes with these transfers, each of so many seconds.

    Communication runs one transfer at a time, in their order, none before compute has reached its `ready`; compute
    stops at a transfer's `needed` until it is there. `ready` never falls along the order. With a `host` compute reaches
    no place before the host has launched it, and is as fast as the GPU behind that; the host waits for nobody.
    """
    lanes = _Lanes(compute, host)
    free = 0.0
    for transfer, long in zip(transfers, seconds, strict=True):
        begin = lanes.end() if transfer.after_optimizer else lanes.reach(transfer.ready)
        free = max(begin, free) + long
        lanes.wait(transfer.needed, free)
    return lanes.end()


def compute_of(
    step: float, transfers: Sequence[Transfer], seconds: Sequence[float], host: Host | None = None
) -> float | None:
    """Return the compute seconds of a step that was measured with these transfers inside; None where it cannot be.

    With a `host` they are never fewer than the GPU's own.
    """
    low, high = host.gpu_seconds if host else 0.0, step
    if step_seconds(transfers, seconds, low, host) > step:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        longer = step_seconds(transfers, seconds, middle, host) > step
        low, high = (low, middle) if longer else (middle, high)
    return low


class _Lanes:
    """Compute's lane: where it is, what time it is there, what it will wait for; when the host gets to each knot."""

    def __init__(self, compute: float, host: Host | None) -> None:
        self._compute = host.gpu_seconds if host else compute
        self._place = self._clock = 0.0
        self._waits: list[tuple[float, float]] = []
        launching = host.seconds(compute) if host else 0.0
        self._launched = [(place, share * launching) for place, share in host.knots] if host else []
        self._knot = 0
        self._last_launch = launching

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

    def end(self) -> float:
        """Return when compute has got to the step's end and the host has launched all of it."""
        return max(self.reach(1.0, last=True), self._last_launch)

    def _walk(self, place: float) -> None:
        """Go on to a place: the host holds compute, if at all, the most at a knot or at the place itself."""
        while self._knot < len(self._launched) and self._launched[self._knot][0] < place:
            at, launched = self._launched[self._knot]
            self._run(at)
            self._clock = max(self._clock, launched)
            self._knot += 1
        self._run(place)
        self._clock = max(self._clock, self._launched_by(place))

    def _run(self, place: float) -> None:
        if place > self._place:
            self._clock += (place - self._place) * self._compute
            self._place = place

    def _launched_by(self, place: float) -> float:
        """Return when the host has launched all before a place, between two knots in proportion; 0 without a host."""
        if self._knot == len(self._launched):
            return self._launched[-1][1] if self._launched else 0.0
        end, launched = self._launched[self._knot]
        if self._knot == 0:
            return 0.0
        begin, before = self._launched[self._knot - 1]
        return before + (launched - before) * (place - begin) / (end - begin)
