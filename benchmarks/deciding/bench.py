"""What the parts of decisions.py share: seeds, drawn machines, simulated runs, worker processes, rows of the table."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from collbench.backends.factory import open_simulated
from collbench.bench.plan import Request, make_plan
from collbench.bench.session import empty_run, wrong_data
from collbench.bench.sweep import Watcher, sweep
from collbench.model.errors import CollbenchError, DataCorruption
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run, SkipKind, Skipped
from collbench.sim import fabrics
from collbench.sim.fabrics import Fabric, Noise
from tests.sim import random_fabrics

Item = TypeVar("Item")
Found = TypeVar("Found")

FIRST_SEED = 20_261_121
MIB = 2**20
LARGE = 64 * MIB
SMALL = 8
# `pairs` as it is by default but for the sizes: the largest of these decides, the smallest shows latency.
TWO_SIZES = (SMALL, LARGE)
MOST_NOISE = 0.02  # σ of a trial: the bars hold up to this much
PAIRS = (Work(Operation.ALLREDUCE), Work(Operation.BROADCAST))
NOISY = 0.015  # rows of their own for the noisiest quarter
NAMED_SHARE = 5  # every fifth machine is a shipped one


@dataclass(frozen=True, slots=True)
class Asked:
    """How much to do. `runs` None takes each part's own number; `seed` is the first of all; `jobs` are processes."""

    runs: int | None
    seed: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `met` is None where nothing is asked for."""

    what: str
    measured: str
    bar: str = ""
    met: bool | None = None


@dataclass(slots=True)
class Part:
    """What a part found: its rows, words below them, and every trial, a dataclass that becomes a line of a CSV file."""

    rows: list[Row]
    trials: Sequence[Any]
    notes: list[str] = field(default_factory=list)


def spread(work: Callable[[Item], Found], items: Iterable[Item], jobs: int, chunk: int = 1) -> list[Found]:
    """Return work(item) of all items, in their order, by so many processes."""
    if jobs == 1:
        return [work(item) for item in items]
    with multiprocessing.Pool(jobs) as pool:
        return list(pool.imap(work, items, chunk))


def rng_of(*numbers: int) -> np.random.Generator:
    """Return the generator of a trial: its numbers are the seed, so any one can be drawn again by itself."""
    return np.random.default_rng(numbers)


def healthy(number: int, rng: np.random.Generator) -> Fabric:
    """Return a machine without a fault: every fifth a shipped one, in turn, the others random."""
    if number % NAMED_SHARE == 0:
        names = fabrics.names()
        return fabrics.load(names[number // NAMED_SHARE % len(names)])
    return random_healthy(rng)


def random_healthy(rng: np.random.Generator) -> Fabric:
    while True:
        fabric = random_fabrics.make(rng)
        if not fabric.faults:
            return fabric


def noisy(fabric: Fabric, rng: np.random.Generator, most: float = MOST_NOISE) -> Fabric:
    """Return the machine with trial noise drawn up to `most` and some of the batches' own."""
    noise = Noise(trial=float(rng.uniform(0, most)), batch=float(rng.uniform(0, 0.003)))
    return replace(fabric, noise=noise)


def survey(sizes: tuple[int, ...] | None = TWO_SIZES) -> Request:
    """Return what `collbench pairs` asks for, at these sizes (None: its own 14)."""
    return _request(sizes=sizes, copies=(Variant.PLAIN,), collectives=PAIRS)


def inspection() -> Request:
    """Return what `collbench check` asks for."""
    return _request(sizes=(LARGE,), copies=(Variant.PLAIN, Variant.STAGED, Variant.HOST), collectives=PAIRS)


def pair_rates() -> Request:
    """Return the all-reduces of all pairs and the copies by one engine: what a choice of devices rests on."""
    return _request(sizes=TWO_SIZES, copies=(Variant.PLAIN,), collectives=PAIRS[:1])


def comparison(sets: tuple[tuple[int, ...], ...]) -> Request:
    """Return what `select --verify` asks for: all-reduces of the finalists."""
    return replace(_request(sizes=(LARGE,), copies=(), collectives=PAIRS[:1]), pairs=False, sets=sets)


def _request(sizes: tuple[int, ...] | None, copies: tuple[Variant, ...], collectives: tuple[Work, ...]) -> Request:
    return Request(
        backend="sim",
        devices=None,
        sizes=sizes,
        copies=copies,
        collectives=collectives,
        pairs=True,
        dtype="float32",
        redop="sum",
        nccl=None,
        seed=0,
        command=("pairs",),
    )


def measured(fabric: Fabric, request: Request, seed: int) -> Run:
    """Return the simulated run; what ended it early is kept in it, as `session` does."""
    opened = open_simulated(fabric, None, seed)
    plan, skipped = make_plan(request, opened.backend)
    run = empty_run(request, opened, plan, skipped)
    watcher = Watcher(lambda _done, _total: None, lambda _found: None, opened.flags, opened.clock)
    try:
        sweep(opened.backend, plan, run, request.stopping_rule(), random.Random(seed), watcher)
    except DataCorruption as error:
        run.skipped.append(wrong_data(error))
    except CollbenchError as error:  # nothing works any more: the data points say why
        run.skipped.append(Skipped(SkipKind.OTHER, detail=f"the rest: {error}"))
    run.health_after = opened.health()
    return run


def share(part: int, whole: int) -> str:
    """Return "12 of 10,000 (0.12 %)"."""
    return f"{part:,} of {whole:,} ({part / max(whole, 1):.2%})".replace("%", " %")


def drawn_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    words = {None: "", True: "met", False: "MISSED"}
    return [(row.what, row.measured, row.bar, words[row.met]) for row in rows]
