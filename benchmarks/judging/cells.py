"""The cells of verdicts.py: a fault under a noise, many random machines each, and what collbench said of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from math import inf, sqrt

import numpy as np
from deciding.bench import check_request, pairs_request

from collbench.judge import diagnose
from collbench.judge.diagnose.elements import Part
from collbench.judge.diagnose.verdict import Cause, Kind, Severity, Verdict
from collbench.judge.tiers import Relation, rank_pairs
from collbench.model.operations import Operation

from .machines import FAMILIES, FAULTS, THIRDS, UNEVEN, Made, Truth, make
from .measured import (
    Ceiling,
    Correlated,
    Drift,
    EachItsOwn,
    Lasting,
    Noise,
    OnePair,
    Situation,
    TwoModes,
    Wild,
    measure,
)

NOISES: dict[str, Callable[[float, np.random.Generator, Made], Noise]] = {
    "normal": lambda sigma, rng, _made: Noise(sigma, rng),
    "one noisy pair": lambda sigma, rng, made: OnePair(sigma, rng, _some_pair(made, rng)),
    "two modes": lambda sigma, rng, _made: TwoModes(sigma, rng),
    "lasting modes": lambda sigma, rng, _made: Lasting(sigma, rng),
    "each its own": lambda sigma, rng, _made: EachItsOwn(sigma, rng),
    "wild": lambda sigma, rng, _made: Wild(sigma, rng),
    "AR(1)": lambda sigma, rng, _made: Correlated(sigma, rng),
    "ceiling": lambda sigma, rng, _made: Ceiling(sigma, rng),
    "drift": lambda sigma, rng, _made: Drift(sigma, rng),
}

_OF_GPU = (Part.GPU, Part.ONE_DIRECTION)
_FORWARDS = (Part.FORWARDING, Part.FORWARDING_ROOT)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is done to machines: a fault, a noise of so much, an idle process on one GPU."""

    fault: str
    noise: str
    sigma: float
    idle: bool = False

    def __str__(self) -> str:
        """Return the row's name."""
        more = ", an idle process" if self.idle else ""
        return f"{self.fault}, {self.noise} {self.sigma:.1%}{more}"


@dataclass(frozen=True, slots=True)
class Said:
    """What `check` would say of one machine."""

    cell: str
    number: int
    family: str
    gpus: int
    accused: bool  # it ends with 3
    first_right: bool  # the first verdict names a fault's place
    all_right: bool  # each fault is named by some verdict
    others: int  # verdicts that name another place
    left_open: bool  # the first line says of some fault's place that it may be slow, and no verdict names it
    kinds: str


def check(cell: Cell, seed: int, number: int) -> Said:
    """Make one machine, measure it as `check` does, and judge it."""
    rng = np.random.default_rng((seed, sum(map(ord, str(cell))), number))
    family, made = _made(cell, rng, number)
    situation, run_seed = _situation(cell, made, rng), int(rng.integers(2**31))
    if cell.fault in THIRDS:
        phases = measure(made, situation, check_request(), run_seed).phases
        situation = replace(_situation(cell, made, rng), slower=_for_a_third(cell.fault, made, phases))
    run = measure(made, situation, check_request(), run_seed)
    diagnosis = diagnose.Diagnosis(run)
    found = [verdict for verdict in diagnosis.verdicts if verdict.severity is not Severity.INFO]
    truths = made.truth
    right = [verdict for verdict in found if any(_names(verdict, truth, made) for truth in truths)]
    return Said(
        cell=str(cell),
        number=number,
        family=family,
        gpus=made.count,
        accused=bool(found),
        first_right=found[0] in right if found else all(truth.may_be_silent for truth in truths),
        all_right=all(_named(found, truth, made) for truth in truths)
        or (len(truths) > 1 and _says_several(found, truths)),
        others=len(found) - len(right),
        left_open=any(_may_be(diagnosis, truth, truths) for truth in truths if not _named(found, truth, made)),
        kinds=" ".join(
            f"{one.kind.value}:{'-'.join(map(str, one.members))}{'?' if one.cause.either else ''}" for one in found
        ),
    )


def _made(cell: Cell, rng: np.random.Generator, number: int) -> tuple[str, Made]:
    """Return the next random machine on which the fault has a place, and its family."""
    while True:
        family = (*FAMILIES, UNEVEN)[number % (len(FAMILIES) + 1)]
        made = FAULTS[cell.fault](make(family, rng), rng)
        if made is not None:
            return family, made
        number += 1


def _may_be(diagnosis: diagnose.Diagnosis, truth: Truth, truths: Sequence[Truth]) -> bool:
    """Return whether the first line says that the place of a fault may be slow."""
    gpus = tuple(map(int, re.findall(r"GPU(\d+)", diagnosis.left_open)))
    slow = frozenset[int]().union(*(some.gpus for some in truths))
    labels = {path.label for path in diagnosis.run.paths if path.devices in truth.links}
    far = truth.gpu is None and labels <= diagnosis.far_below.keys()
    below = not truth.gpus.isdisjoint(gpus) and slow.issuperset(gpus)
    return far or below or (gpus in truth.links and truth.gpu in (None, *gpus))


def _for_a_third(fault: str, made: Made, phases: Mapping[str, float]) -> tuple[int, float, float, float]:
    """Return which GPU has what share of its rates from which second to which; in the last third to the very end.

    It is a third of the trials: what happens before them is in no figure.
    """
    third, share = THIRDS[fault]
    before, long = phases["warm-up"] + phases["interference check"], phases["trials"] / 3
    begin, end = (before + place * long for place in (third, third + 1))
    return made.truth[0].gpu or 0, share, begin, inf if third == 2 else end


def _situation(cell: Cell, made: Made, rng: np.random.Generator) -> Situation:
    noise = NOISES[cell.noise](cell.sigma, rng, made)
    idle = None
    if cell.idle:
        blamed = {truth.gpu for truth in made.truth}
        idle = int(rng.choice([gpu for gpu in range(made.count) if gpu not in blamed]))
    return Situation(noise, idle)


def _some_pair(made: Made, rng: np.random.Generator) -> frozenset[int]:
    pairs = [*combinations(range(made.count), 2)]
    return frozenset(pairs[int(rng.integers(len(pairs)))])


def _names(verdict: Verdict, truth: Truth, made: Made) -> bool:
    """Return whether a verdict names the place of a fault: its GPU, or links that are all slow by it."""
    if truth.seen:
        refused = truth.seen == "peers_refused" and verdict.kind is Kind.P2P_CAP_MISMATCH
        at = truth.gpu in (None, *verdict.cause.devices, *verdict.members)
        return refused or (verdict.cause.name == truth.seen and at)
    if verdict.cause.either or truth.kind == "one slow root":
        return any(_is_at(part, truth) for part in [*chain(*verdict.cause.either)] or [verdict.cause])
    gpu = verdict.members[0] if len(verdict.members) == 1 else None
    if verdict.cause.name in _OF_GPU:
        (gpu,) = verdict.cause.devices
    if truth.gpu is not None or gpu is not None:
        return gpu == truth.gpu
    if verdict.kind is Kind.CONTENTION or not verdict.pairs:
        return False
    if truth.may_be_silent:  # what all share is not some pairs'
        alike = {path.devices for path in made.paths if path.devices in truth.links and path.label == verdict.label}
        return {*verdict.pairs} == alike
    return all({(a, b), (b, a)} & truth.links for a, b in verdict.pairs)


def _is_at(part: Cause, truth: Truth) -> bool:
    if part.name in _OF_GPU:
        return part.devices == (truth.gpu,)
    if truth.kind == "one slow root":
        return part.name in _FORWARDS and {*part.devices} == truth.gpus
    if part.name in (Part.UPLINK, Part.ROOT):
        return truth.gpu is None and all((a in part.devices) != (b in part.devices) for a, b in truth.links)
    return truth.gpu is None and {gpu for link in truth.links for gpu in link} <= {*part.devices}


def _named(found: Sequence[Verdict], truth: Truth, made: Made) -> bool:
    silent = truth.may_be_silent and (not found or bool(truth.seen))
    return silent or any(_names(verdict, truth, made) for verdict in found)


def _says_several(found: Sequence[Verdict], truths: Sequence[Truth]) -> bool:
    """Return whether one verdict says that slow links of all faults have several causes."""
    pairs = [{(min(link), max(link)) for link in truth.links} for truth in truths]
    several = [{*verdict.pairs} for verdict in found if verdict.cause.name == "several"]
    return any(all(links & pair for pair in pairs) for links in several)


# A pair of NVLinks or a port that is 4% slower: is it ever called tied?


@dataclass(frozen=True, slots=True)
class Tied:
    """What `pairs` says of the slow pair."""

    cell: str
    number: int
    gpus: int
    tied: bool  # the slow pair is "tied", or all pairs are
    all_tied: bool
    different: bool
    best: bool  # it would be chosen


def tie(cell: Cell, seed: int, number: int, slower: float = 0.04) -> Tied:
    """Make an NVSwitch machine with one slower pair, and rank its pairs; `one noisy pair` is that pair."""
    rng = np.random.default_rng((seed, sum(map(ord, str(cell))) + 1, number))
    made = make("nvswitch", rng)
    while made.count < 8:
        made = make("nvswitch", rng)
    a, b = (int(gpu) for gpu in sorted(rng.choice(made.count, 2, replace=False)))
    made = made.slowed({f"NVLinks {a} to {b}": 1 - slower, f"NVLinks {b} to {a}": 1 - slower})
    noise = OnePair(cell.sigma, rng, frozenset((a, b))) if cell.noise == "one noisy pair" else None
    situation = Situation(noise or NOISES[cell.noise](cell.sigma, rng, made))
    run = measure(made, situation, pairs_request(), int(rng.integers(2**31)))
    ranking = rank_pairs(run, Operation.ALLREDUCE, max(run.settings.sizes))
    if ranking is None:
        raise SystemExit("pairs measured nothing")
    relation = next(link.relation for link in ranking.standings if link.members == (a, b))
    return Tied(
        cell=str(cell),
        number=number,
        gpus=made.count,
        tied=ranking.all_tied or relation is Relation.TIED,
        all_tied=ranking.all_tied,
        different=relation is Relation.DIFFERENT,
        best=ranking.standings[0].members == (a, b),
    )


def margin(count: int, of: int) -> str:
    """Return "1.2% (12 of 1,000)" with half of its 95% interval."""
    share = count / max(1, of)
    return f"{share:6.1%} ±{1.96 * sqrt(max(share * (1 - share), 1 / max(1, of)) / max(1, of)):.1%} ({count} of {of})"
