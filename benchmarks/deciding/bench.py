"""Shared by the parts of decisions.py: seeds, random machines, simulated runs, worker processes, rows of the table."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from collbench.measurement.backends.factory import open_simulated
from collbench.measurement.confirm import confirm
from collbench.measurement.plan import Request, empty_run, make_plan
from collbench.measurement.sweep import Watcher, sweep, wrong_data
from collbench.model.errors import CollbenchError, DataCorruption
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run, SkipKind, Skipped
from collbench.sim import fabrics
from collbench.sim.fabrics import Fabric, Noise
from tests.sim import random_fabrics

Item = TypeVar("Item")
Result = TypeVar("Result")

FIRST_SEED = 20_261_121
MIB = 2**20
LARGE = 64 * MIB
SMALL = 8
# `collbench pairs` with two sizes instead of 14: the largest decides, the smallest shows latency.
TWO_SIZES = (SMALL, LARGE)
MAX_NOISE = 0.02  # standard deviation of a trial's log time: the bars hold up to here
PAIRS = (Work(Operation.ALLREDUCE), Work(Operation.BROADCAST))
NOISY = 0.015  # the quarter of runs above this has rows of its own
SHIPPED_EVERY = 5  # every fifth machine is one of those that collbench ships


@dataclass(frozen=True, slots=True)
class Options:
    """How much to simulate. `runs` None: each part's default; `seed` begins every trial's seed; `jobs`: processes."""

    runs: int | None
    seed: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `met` is None for a row without a bar."""

    what: str
    measured: str
    bar: str = ""
    met: bool | None = None


@dataclass(slots=True)
class Part:
    """Results of a part: its rows, notes below them, and every trial, a dataclass that becomes a line of a CSV file."""

    rows: list[Row]
    trials: Sequence[Any]
    notes: list[str] = field(default_factory=list)


def map_in_order(work: Callable[[Item], Result], items: Iterable[Item], jobs: int, chunk: int = 1) -> list[Result]:
    """Return work(item) of all items, in their order, computed by `jobs` processes."""
    if jobs == 1:
        return [work(item) for item in items]
    with multiprocessing.Pool(jobs) as pool:
        return list(pool.imap(work, items, chunk))


def trial_rng(*numbers: int) -> np.random.Generator:
    """Return the generator of one trial, seeded by its numbers, so that any trial can be repeated by itself."""
    return np.random.default_rng(numbers)


def healthy(number: int, rng: np.random.Generator) -> Fabric:
    """Return a machine without a fault: every fifth is a shipped one, in turn; the others are random."""
    if number % SHIPPED_EVERY == 0:
        names = fabrics.names()
        return fabrics.load(names[number // SHIPPED_EVERY % len(names)])
    return random_healthy(rng)


def random_healthy(rng: np.random.Generator) -> Fabric:
    while True:
        fabric = random_fabrics.make(rng)
        if not fabric.faults:
            return fabric


def noisy(fabric: Fabric, rng: np.random.Generator, max_noise: float = MAX_NOISE) -> Fabric:
    """Return the machine with random noise: up to `max_noise` per trial, and up to 0.3% per batch."""
    noise = Noise(trial=float(rng.uniform(0, max_noise)), batch=float(rng.uniform(0, 0.003)))
    return replace(fabric, noise=noise)


def pairs_request(sizes: tuple[int, ...] | None = TWO_SIZES) -> Request:
    """Return the request of `collbench pairs`, at these sizes (None: its default 14)."""
    return _request(sizes=sizes, copies=(Variant.PLAIN,), collectives=PAIRS)


def check_request() -> Request:
    """Return the request of `collbench check`."""
    return _request(sizes=(LARGE,), copies=(Variant.PLAIN, Variant.STAGED, Variant.HOST), collectives=PAIRS)


def selection_request() -> Request:
    """Return the request of `collbench select`: the all-reduces of all pairs, and the copies by one engine."""
    return _request(sizes=TWO_SIZES, copies=(Variant.PLAIN,), collectives=PAIRS[:1])


def verification_request(sets: tuple[tuple[int, ...], ...]) -> Request:
    """Return the request of `select --verify`: all-reduces of the finalists."""
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


def simulated_run(fabric: Fabric, request: Request, seed: int, *, confirmed: bool = False) -> Run:
    """Return the simulated run; `confirmed`, as `pairs` and `check` make it: what is accused is measured again.

    An error that ends it early is recorded in it, as api/measuring.py does.
    """
    opened = open_simulated(fabric, None, seed)
    plan, skipped = make_plan(request, opened.backend)
    run = empty_run(request, opened, plan, skipped)
    watcher = Watcher(lambda _done, _total: None, lambda: None, opened.flags, opened.clock)
    try:
        sweep(opened.backend, plan, run, request.stopping_rule(), random.Random(seed), watcher)
        if confirmed:
            confirm(opened.backend, plan, run, request.stopping_rule(), watcher, lambda _line: None)
    except DataCorruption as error:
        run.skipped.append(wrong_data(error))
    except CollbenchError as error:  # nothing works any more: the data points say why
        run.skipped.append(Skipped(SkipKind.OTHER, detail=f"the rest: {error}"))
    run.health_after = opened.health()
    return run


def share(part: int, whole: int) -> str:
    """Return "12 of 10,000 (0.12%)"."""
    return f"{part:,} of {whole:,} ({part / max(whole, 1):.2%})".replace("%", " %")


def drawn_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    verdicts = {None: "", True: "met", False: "MISSED"}
    return [(row.what, row.measured, row.bar, verdicts[row.met]) for row in rows]
