"""Small all-reduces as inference sends them: by size and memory, for a token, and as vLLM's own are published."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

from collbench.judge.registration import Winner, side_by_side, winners
from collbench.judge.stats import summarize
from collbench.judge.tails import Tails, tails
from collbench.model.capabilities import capabilities
from collbench.model.operations import Operation, Registration, Variant
from collbench.model.ranges import Positive, Several
from collbench.model.run import Run
from collbench.runfile.codec import build

# A decode batch of one token of hidden size 8192 in bfloat16, as of Llama-70B.
TOKEN_BYTES, TOKEN_HIDDEN = 16 * 2**10, 8192
# With tensor parallelism a layer has one after attention, and one after the MLP.
ALLREDUCES_A_LAYER = 2


@dataclass(frozen=True, slots=True)
class Timed:
    """An all-reduce of one size on one kind of memory: seconds in a CUDA graph, and single launches if there are any.

    A graph's figure is the median of the trials.
    """

    size_bytes: int
    kind: Registration
    seconds: float
    launches: Tails | None

    def launch_at(self, percent: int) -> float | None:
        """Return a percentile of the single launches' seconds, None if they are too few."""
        spread = self.launches and (self.launches.transfer or self.launches.waited)
        return spread.at(percent) if spread else None


@dataclass(frozen=True, slots=True)
class CustomAllReduce:
    """Published times of vLLM's custom all-reduce on one kind of GPU; `gpus` is a regular expression for its name."""

    gpus: str
    machine: str
    ranks: Several
    vllm: str
    microseconds: tuple[Positive, ...]  # at each of the file's sizes


@dataclass(frozen=True, slots=True)
class Published:
    """The file of these times (benchmarks/published_latencies.py makes it, and says which machines it leaves out)."""

    format: str
    format_version: int
    collected: str
    conditions: str
    source: str
    license: str
    sizes: tuple[int, ...]
    figures: tuple[CustomAllReduce, ...]


@cache
def published() -> Published:
    """Return the shipped file. Raises ValueError for a file that is none: it is a part of the program."""
    text = resources.files("collbench.judge").joinpath("custom_all_reduce.json").read_text(encoding="utf-8")
    file: Published = build(Published, json.loads(text), "custom_all_reduce.json")
    return file


@dataclass(frozen=True, slots=True)
class SmallAllreduces:
    """What a run says about small all-reduces over all its devices.

    `custom` are vLLM's published times on as many GPUs of this kind, None if there are none. `token_seconds` is what
    the all-reduces of a token take, by kind of memory; empty if its size was not measured.
    """

    timed: tuple[Timed, ...]  # by size, then by kind
    winners: tuple[Winner, ...]
    token_seconds: dict[Registration, float]
    custom: CustomAllReduce | None

    @property
    def kinds(self) -> tuple[Registration, ...]:
        """The kinds of memory that were measured."""
        return tuple(kind for kind in Registration if any(one.kind is kind for one in self.timed))

    def at(self, size_bytes: int) -> dict[Registration, Timed]:
        """Return what was measured at one size."""
        return {one.kind: one for one in self.timed if one.size_bytes == size_bytes}

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes in bytes that were measured, ascending."""
        return tuple(sorted({one.size_bytes for one in self.timed}))

    def custom_seconds(self, size_bytes: int) -> float | None:
        """Return vLLM's published time at one size, None if there is none."""
        if self.custom is None or size_bytes not in published().sizes:
            return None
        return self.custom.microseconds[published().sizes.index(size_bytes)] * 1e-6


def small_allreduces(run: Run) -> SmallAllreduces:
    """Return what a run of `latency --collectives` says."""
    everybody = tuple(range(len(run.devices)))
    launches = {one.point: one for one in tails(run)}
    timed = tuple(
        Timed(size, kind, summarize(measurement).seconds, launches.get(measurement.point))
        for size, by_kind in side_by_side(run, Operation.ALLREDUCE, everybody, Variant.PLAIN).items()
        for kind, measurement in by_kind.items()
    )
    calls = run.settings.layers * ALLREDUCES_A_LAYER
    token = {one.kind: one.seconds * calls for one in timed if one.size_bytes == TOKEN_BYTES}
    return SmallAllreduces(
        timed,
        winners(run, Operation.ALLREDUCE, everybody, Variant.PLAIN),
        token,
        next(_alike(run), None),
    )


def _alike(run: Run) -> Iterator[CustomAllReduce]:
    """Yield the published times of such a machine, of no simulated one."""
    names = {device.name for device in run.devices}
    if len(names) == 1 and not capabilities(run.backend).simulated:
        (name,) = names
        yield from (one for one in published().figures if one.ranks == len(run.devices) and re.search(one.gpus, name))
