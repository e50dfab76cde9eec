"""Simulated training jobs of known steps, as scripts for the player of tests/native: nothing here reads a record.

A job is a base (what a step sends) with features (accumulation, a periodic loss, …). Times are µs of a virtual clock,
with jitter and stalls. The host may run ahead of its GPU until a loss is read, as torch's does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

BASES = ("ddp", "fsdp", "tp", "tp-dp", "pipeline", "moe")
SCENARIOS: dict[str, tuple[str, ...]] = {
    "accumulation": ("fsdp", "accumulation"),
    "accumulation, norm": ("fsdp", "accumulation", "norm"),
    "accumulation, ddp": ("ddp", "accumulation"),
    "evaluation": ("fsdp", "evaluation"),
    "periodic loss": ("ddp", "loss"),
    "warm-up": ("ddp", "warm-up"),
    "tp": ("tp",),
    "tp-dp": ("tp-dp", "norm"),
    "pipeline": ("pipeline", "norm"),
    "four lengths": ("tp-dp", "four lengths"),
    "random lengths": ("tp-dp", "random lengths"),
    "moe": ("moe",),
}
CROSSINGS: dict[str, tuple[str, ...]] = {
    f"{one} × {other}": tuple(dict.fromkeys((*SCENARIOS[one], *SCENARIOS[other])))
    for one, other in combinations(SCENARIOS, 2)
    if len({*SCENARIOS[one], *SCENARIOS[other]} & set(BASES)) == 1
} | {
    f"{base}, {one}, {other}": (base, one, other)
    for base in BASES
    for one, other in combinations(("accumulation", "norm", "evaluation", "loss", "warm-up"), 2)
}


@dataclass(frozen=True)
class Sent:
    """A call: how long the host pauses before it, what it sends on which communicator, how long its kernel runs."""

    pause: float
    operation: str
    count: int
    communicator: int
    peer: int = 0
    gpu: float = 20.0


Together = tuple[Sent, ...]


@dataclass
class Played:
    """One rank: its script's parts, and of its steps when each begins, the kinds of its calls and their counts."""

    lines: list[str] = field(default_factory=list)
    now: float = 0.0
    steps: list[tuple[float, tuple[tuple[str, int], ...]]] = field(default_factory=list)
    counts: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def usual(self) -> tuple[tuple[str, int], ...]:
        """The kinds of a step after the warm-up."""
        return self.steps[-1][1]

    @property
    def block(self) -> int:
        """The calls of the shortest block whose repetitions are a step: with equal counts where these do not change."""
        counts = [own[0] if len(set(own)) == 1 else 0 for own in zip(*self.counts, strict=True)]
        calls = [*zip(self.usual, counts, strict=True)]
        lengths = (length for length in range(1, len(calls)) if not len(calls) % length)
        return next((length for length in lengths if calls[length:] == calls[:-length]), len(calls))


_NCCL = {"allreduce": "AllReduce", "allgather": "AllGather", "reducescatter": "ReduceScatter", "broadcast": "Broadcast"}
_NCCL |= {"send": "Send", "recv": "Recv"}


class Job:
    """A job of one seed. `ranks` are two of its ranks."""

    def __init__(self, features: Sequence[str], seed: int, *, gpu: bool = False, marks: bool = False) -> None:
        self.features, self.gpu, self.marks = set(features), gpu, marks
        self.base = next(base for base in BASES if base in self.features)
        rng = self.rng = random.Random(f"{sorted(features)} {seed}")
        self.layers = rng.randint(3, 8)
        self.layer = rng.uniform(200, 900)  # µs of a layer's forward pass
        self.jitter = rng.choice([0.01, 0.03, 0.06])
        self.optimizer = rng.uniform(0.06, 0.3) * 3 * self.layers * self.layer
        self.head = rng.choice([0.0, rng.uniform(0.0, 2.0)]) * self.optimizer
        self.steps = rng.randint(25, 60)
        self.micro = rng.choice([2, 3, 4, 8]) if "accumulation" in self.features else 1
        self.no_sync = self.base == "ddp" and rng.random() < 0.5
        self.every, self.first = rng.choice([5, 10]), rng.choice([0, -1])
        self.reads_loss = rng.random() < 0.5
        self.buckets = [rng.randrange(10**5, 10**7) for _ in range(rng.randint(2, 5))]
        self.size = rng.randrange(10**5, 10**7)
        self.lengths = [self.size * part // 4 for part in range(1, 5)]
        self.ranks = [self._rank(number) for number in range(2)]

    # What a step sends, as parts of one call or of calls that NCCL gets together.

    def _length(self, rng: random.Random) -> int:
        if "four lengths" in self.features:
            return rng.choice(self.lengths)
        return rng.randrange(1000, self.size) if "random lengths" in self.features else self.size

    def _forward(self, rank: int, rng: random.Random, count: int) -> list[Together]:
        layer = self.layer
        match self.base:
            case "fsdp":
                return [(Sent(layer, "allgather", self.size, 0),) for _ in range(self.layers)]
            case "tp" | "tp-dp":
                return [(Sent(layer / 2, "allreduce", count, 1),) for _ in range(2 * self.layers)]
            case "moe":
                return [one for _ in range(self.layers) for one in self._exchange(rank, rng, layer)]
        return []

    def _backward(self, rank: int, rng: random.Random, count: int) -> list[Together]:
        layer = 2 * self.layer
        match self.base:
            case "fsdp":
                return [
                    (Sent(layer / 2, operation, self.size, 0),)
                    for _ in range(self.layers)
                    for operation in ("allgather", "reducescatter")
                ]
            case "tp" | "tp-dp":
                return [(Sent(layer / 2, "allreduce", count, 1),) for _ in range(2 * self.layers)]
            case "moe":
                return [one for _ in range(self.layers) for one in self._exchange(rank, rng, layer)]
        return []

    def _exchange(self, rank: int, rng: random.Random, pause: float) -> list[Together]:
        """Return an exchange of counts and one of tokens, and another one back."""
        parts: list[Together] = []
        for share, sizes in ((0.5, [2, 2]), (0.05, [rng.randrange(10**6), rng.randrange(10**6)]), (0.45, [0, 0])):
            counts = sizes if any(sizes) else [rng.randrange(10**6), rng.randrange(10**6)]
            calls = [
                Sent(0.0, operation, size, 0, peer)
                for peer, size in enumerate(counts)
                for operation in ("send", "recv")
                if size
            ]
            parts.append((Sent(pause * share, *_rest(calls[0])), *calls[1:]))
        return parts

    def _micro_batch(self, rank: int, rng: random.Random, last: bool) -> list[Together]:
        count = self._length(rng)
        parts = self._forward(rank, rng, count)
        backward = self._backward(rank, rng, count)
        if backward:  # the loss, in between
            opened = backward[0][0]
            backward[0] = (Sent(opened.pause + self.head, *_rest(opened)), *backward[0][1:])
        parts += backward
        if self.base == "ddp" and (last or not self.no_sync):
            whole = 3 * self.layers * self.layer
            each = 0.6 * whole / len(self.buckets)
            hidden = (self.micro - 1) * whole if self.no_sync else 0.0
            parts += [
                (Sent(each + (0 if index else 0.4 * whole + hidden), "allreduce", size, 0),)
                for index, size in enumerate(self.buckets)
            ]
        if self.base == "pipeline":
            parts += self._pipeline(rank)
        return parts

    def _pipeline(self, rank: int) -> list[Together]:
        """Return one step of a stage, with one forward and one backward pass in turn."""
        micro, stage = 4 + self.layers, self.layer * self.layers / 4
        size, up, down = self.size, rank + 1, rank - 1
        parts: list[Together] = []

        def forward() -> None:
            if rank:
                parts.append((Sent(10, "recv", size, 0, down),))
            parts.append((Sent(stage, "send", size, 0, up),))

        def backward() -> None:
            parts.append((Sent(10, "recv", size, 0, up),))
            if rank:
                parts.append((Sent(2 * stage, "send", size, 0, down),))

        ahead = 3 - rank
        for _ in range(ahead):
            forward()
        for _ in range(micro - ahead):
            forward()
            backward()
        for _ in range(ahead):
            backward()
        return parts

    def _step(self, rank: int, rng: random.Random) -> list[Together]:
        micro = 1 if self.base == "pipeline" else self.micro
        parts = [one for at in range(micro) for one in self._micro_batch(rank, rng, at + 1 == micro)]
        if self.base in ("tp-dp", "moe"):
            parts += [(Sent(30.0, "reducescatter", size, 2),) for size in self.buckets]
        if "norm" in self.features:
            parts.append((Sent(40.0, "allreduce", 1, 0),))
        if self.base == "tp-dp":
            opened = parts[0][0]
            parts[0] = (Sent(opened.pause, *_rest(opened)), *parts[0][1:])
            parts.append((Sent(self.optimizer, "allgather", sum(self.buckets), 2),))
        return parts

    # A rank's script.

    def _rank(self, rank: int) -> Played:  # noqa: C901  # the loop of a program
        played, rng = Played(), random.Random(f"{rank} {self.rng.random()}")
        shared = random.Random(f"sizes {self.layers} {self.layer}")  # what all ranks decide alike
        self._play(played, rng, rank, (Sent(100.0, "broadcast", 10**6, 0),))
        if "warm-up" in self.features:
            for size in (self.size, self.size // 3, 77):
                self._play(played, rng, rank, (Sent(5 * self.layer, "allreduce", size, 0),))
        carried, ahead = 0.0, 0.0
        for number in range(self.steps):
            parts = self._step(rank, shared)
            if self.marks:
                played.lines += ["sleep 1", "mark"]
            before, kinds = played.now, []
            parts[0] = (Sent(parts[0][0].pause + carried, *_rest(parts[0][0])), *parts[0][1:])
            for at, part in enumerate(parts):
                self._play(played, rng, rank, part)
                if not at:
                    before = played.now
                kinds += [(one.operation, one.communicator) for one in part]
            played.steps.append((before, tuple(kinds)))
            played.counts.append(tuple(one.count for part in parts for one in part))
            ahead += rng.uniform(0.0, 0.1)
            carried = 0.0 if self.base == "tp-dp" else self.optimizer
            if "loss" in self.features and number % self.every == self.first % self.every:
                late = rng.random() < 0.5
                self._play(played, rng, rank, (Sent(60.0 + (carried if late else 0), "allreduce", 1, 0),))
                carried = 0.0 if late else carried
                if self.reads_loss:
                    carried += ahead * 3 * self.layers * self.layer  # until the GPU has caught up
                    ahead = 0.0
            if "evaluation" in self.features and number % (2 * self.every) == self.first % (2 * self.every):
                for _ in range(3):
                    for part in self._forward(rank, shared, self._length(shared)):
                        self._play(played, rng, rank, (Sent(part[0].pause + carried, *_rest(part[0])), *part[1:]))
                        carried = 0.0
                self._play(played, rng, rank, (Sent(100.0 + carried, "allreduce", 2, 0),))
                carried = self.layer
        return played

    def _play(self, played: Played, rng: random.Random, rank: int, part: Together) -> None:
        pause = part[0].pause * rng.lognormvariate(0.0, self.jitter) + 2.0
        if rng.random() < 0.003:
            pause *= rng.uniform(2, 8)
        played.now += pause
        played.lines.append(f"sleep {pause:.3f}")
        if self.gpu:
            took = 10 + 20 * rng.random()
            played.lines.append(f"gpu {took * 1e3:.0f} 1 fine")
            played.now += took * sum(one.operation not in ("send", "recv") or one.peer != rank for one in part)
        played.lines += ["("] if len(part) > 1 else []
        for one in part:
            played.lines.append(f"call {one.communicator} {_NCCL[one.operation]} {one.count} ncclFloat32 {one.peer} 0")
        played.lines += [")"] if len(part) > 1 else []

    def script(self, rank: int) -> str:
        """Return what the player reads: rank 0 or 1 of two, and of four where stages follow."""
        size = 4 if self.base == "pipeline" else 2
        communicators = [f"comm 0 100 {rank} {size} world"]
        if self.base in ("tp", "tp-dp", "moe"):
            communicators += [f"comm 1 101 {rank} 2 tp", f"comm 2 {102 + rank} 0 2 dp"]
        ending = ["sleep 1", "mark"] if self.marks else []
        return "\n".join([*communicators, "virtual", *self.ranks[rank].lines, *ending, "finalize 0", ""])

    def seconds(self) -> float:
        """Return the median time of a step of rank 0, in which nothing but a step was sent."""
        starts = [start for start, _ in self.ranks[0].steps]
        lasted = sorted(after - before for before, after in pairwise(starts[3:]))
        return lasted[len(lasted) // 2] / 1e6


def _rest(one: Sent) -> tuple[str, int, int, int]:
    return one.operation, one.count, one.communicator, one.peer
