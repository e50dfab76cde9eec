"""nccl-tests' flags that collbench takes only where they change nothing: else a line says what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from collbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class _Flag:
    """A flag, the values with which it asks for what collbench does anyway (None: all of them), and what to do else."""

    short: str
    long: str
    harmless: frozenset[int] | None
    instead: str = ""


_OFF = frozenset({0})
# nccl-tests 2.19.6, src/common.cu. Its defaults are harmless; so is what only touches its own start or its own table.
_FLAGS = (
    _Flag("-a", "--average", frozenset({3}), "the time is always the slowest rank's, -a 3"),
    _Flag("-m", "--agg_iters", frozenset({1}), "calls are not grouped; -G 1 shows them without their launches"),
    _Flag("-N", "--run_cycles", frozenset({1}), "each size is visited several times anyway; for more use --precision"),
    _Flag("-p", "--parallel_init", None),
    _Flag("-z", "--blocking", _OFF, "the launch loop does not wait for each call; leave it out"),
    _Flag("-y", "--stream_null", _OFF, "collectives run on streams of their own; leave it out"),
    _Flag("-T", "--timeout", _OFF, "a cell that hangs is given up without it; limit the whole run with --budget 10s"),
    _Flag("-C", "--report_cputime", _OFF, "the processor's own time is not measured; leave it out"),
    _Flag("-S", "--report_timestamps", _OFF, "the run's start stands in the header; leave it out"),
    _Flag("-R", "--local_register", _OFF, "buffers are not registered with NCCL; leave it out"),
    _Flag("-x", "--cta_policy", _OFF, "set NCCL's own variable NCCL_CTA_POLICY, which is obeyed and recorded"),
    _Flag("-D", "--device_implementation", _OFF, "NCCL's own collectives are measured; leave it out"),
    _Flag("-V", "--device_cta_count", None),
    _Flag("-M", "--memory", _OFF, "NCCL's memory is not reported; leave it out"),
    _Flag("-u", "--unalign", _OFF, "buffers stay aligned, as training's are; leave it out"),
    _Flag("-I", "--per_iter_timing", _OFF, "every timed block is in the run file: save it with --output FILE"),
    _Flag("-K", "--per_iter_skip", None),
)


def _option(flag: _Flag) -> Callable[[Any], Any]:
    def check(_context: click.Context, _option: click.Parameter, value: int | None) -> None:
        if value is not None and flag.harmless is not None and value not in flag.harmless:
            raise UsageError(f"{flag.short} {value} ({flag.long[2:]} in nccl-tests): {flag.instead}")

    return click.option(flag.short, flag.long, type=int, hidden=True, expose_value=False, callback=check)


REFUSED: tuple[Callable[[Any], Any], ...] = tuple(_option(flag) for flag in _FLAGS)
