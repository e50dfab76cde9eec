"""A collective and compute on one device from a common start, each in its stream. Loads torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from collbench.measurement.backends.torch_streams import Device, Stream, seconds_between


@dataclass(frozen=True, slots=True)
class StreamWork:
    """The work of one stream: `chunks` calls of `chunk(number)`, which queues its work and does not wait for it.

    With `idle_s` each chunk has its own round and the stream idles that many seconds before it (protocol.Load).
    """

    stream: Stream
    chunks: int
    chunk: Callable[[int], object]
    idle_s: tuple[float, ...] = ()

    def queue(self, number: int) -> Any:
        """Queue a chunk; return its end."""
        self.stream.do(lambda: self.chunk(number))
        return self.stream.stamp()


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """The seconds from the common start to the end of each chunk, and whether all work was queued before the start.

    `begins` has the seconds to the begin of each chunk of the collective, if it runs in rounds.
    """

    collective: tuple[float, ...]
    compute: tuple[float, ...]
    begins: tuple[float, ...]
    queued: bool


def run_both(
    device: Device, align: Callable[[], object], collective: StreamWork, compute: StreamWork, delay_s: float
) -> ChunkTimes:
    """Run both from a common start, which comes `delay_s` after this call at the earliest.

    `align`, a tiny collective, brings the ranks together before it. A GPU takes all work before the start: its streams
    then wait for one event.
    """
    side, main = collective.stream, compute.stream
    side.sleep(delay_s)
    start = _together(align, side, main)
    collective_ends, compute_ends, begins = list[Any](), list[Any](), list[Any]()
    if not collective.idle_s:
        collective_ends = [collective.queue(number) for number in range(collective.chunks)]
        compute_ends = [compute.queue(number) for number in range(compute.chunks)]
    for number, rest in enumerate(collective.idle_s):
        if number:
            side.wait(compute_ends[-1])
            _together(align, side, main)
        ends = [compute.queue(chunk) for chunk in range(compute.chunks)]
        side.sleep(rest)
        if not device.runs_ahead:
            side.wait(ends[0])
        begins.append(side.stamp())
        collective_ends.append(collective.queue(number))
        if not device.runs_ahead:
            ends[-1] = _lasting(compute, collective_ends[-1])
        compute_ends += ends
    queued = not (device.runs_ahead and start.query())
    device.finish()

    def seconds(moments: Sequence[Any]) -> tuple[float, ...]:
        return tuple(seconds_between(start, moment) for moment in moments)

    return ChunkTimes(seconds(collective_ends), seconds(compute_ends), seconds(begins), queued)


def _together(align: Callable[[], object], side: Stream, main: Stream) -> Any:
    """Hold both streams until all ranks have reached this point; return the moment that releases them."""
    side.do(align)
    met = side.stamp()
    main.wait(met)
    return met


def _lasting(compute: StreamWork, end: Any) -> Any:
    """Let compute continue until the call has ended, and return its own end.

    Other processes use cores, too, so compute of a fixed length may not cover a call.
    """

    def until_ended() -> None:
        while not end.query():
            compute.chunk(compute.chunks - 1)

    compute.stream.do(until_ended)
    return compute.stream.stamp()
