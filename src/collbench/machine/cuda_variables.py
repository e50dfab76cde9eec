"""Variables of CUDA and torch that change figures: which a run records, and which would make a figure false."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from collbench.model.errors import UsageError

# Their values are numbers and words, nothing private [CUDA Programming Guide, "CUDA Environment Variables"].
OF_CUDA = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
)
# [PyTorch, "CUDA Environment Variables"]. Only what allocates by torch heeds them.
OF_TORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")


def recorded(environment: Mapping[str, str] = os.environ, *, torch: bool = False) -> dict[str, str]:
    """Return the variables that are set and change figures, NCCL's and CUDA's, and no others: the rest is private."""
    names = (*OF_CUDA, *(OF_TORCH if torch else ()))
    return {name: value for name, value in environment.items() if name.startswith("NCCL_") or name in names}


# Where a figure would be false (docs/method/measuring.md 5).


class Use(StrEnum):
    """What measures on GPUs: collbench's own process, which queues copies and collectives, or workers with torch."""

    NATIVE = "copies and collectives"
    OVERLAP = "overlap"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Falsified:
    """A variable as it is set, why it makes figures false, and which figures."""

    name: str
    value: str
    why: str
    uses: tuple[Use, ...]


def falsified(environment: Mapping[str, str]) -> Iterator[Falsified]:
    """Yield each variable that makes figures false."""
    if switched_on(launches := environment.get("CUDA_LAUNCH_BLOCKING")):
        why = "every launch waits until its kernel has ended, so nothing can be queued, and NCCL may hang"
        yield Falsified("CUDA_LAUNCH_BLOCKING", launches or "", why, tuple(Use))
    if (connections := environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "")).strip() == "1":
        why = "all streams of a GPU share one queue, in which the compute would wait behind the collective"
        yield Falsified("CUDA_DEVICE_MAX_CONNECTIONS", connections, why, (Use.OVERLAP,))
    if (uncached := environment.get("PYTORCH_NO_CUDA_MEMORY_CACHING")) is not None:  # with any value
        why = "torch takes and returns memory by calls that wait for the GPU, so nothing can be queued"
        yield Falsified("PYTORCH_NO_CUDA_MEMORY_CACHING", uncached, why, (Use.OVERLAP, Use.REPLAY))


def refuse(use: Use, environment: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError for the first variable that makes these figures false."""
    for one in falsified(environment):
        if use in one.uses:
            raise UsageError(f"{one.name}={one.value}: {one.why}", f"unset {one.name}")


def switched_on(value: str | None) -> bool:
    """Return whether CUDA reads a variable that is 0 or 1 as 1."""
    return (value or "").strip() not in ("", "0")
