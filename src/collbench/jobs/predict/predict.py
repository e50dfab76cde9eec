"""The cost of communication in a training step on the best and the worst set of GPUs (docs/method.md 12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import comb, inf

import numpy as np

from collbench.choose.bands import by_pairs, ceiling, on_one_plane, predict
from collbench.choose.choice import Band, Grounds, LeftOut, Members, TooFewLeft
from collbench.choose.problem import SelectionProblem, from_run, left_out
from collbench.choose.problem import evidence as deciding_ranking
from collbench.choose.rings import MOST_MEMBERS
from collbench.choose.search import grown, search
from collbench.choose.select import choose
from collbench.choose.wiring import wiring
from collbench.jobs.predict.assumptions import Assumed, General, OfStep, OfStrategy, OfTime
from collbench.jobs.predict.contention import Contended, OverlapCurve, OverlapUse, contended
from collbench.jobs.predict.networks import Network
from collbench.jobs.predict.step import (
    AS_THE_GPU,
    BUCKET_BYTES,
    STRATEGIES,
    Group,
    Host,
    Job,
    Phases,
    Transfer,
    compute_of,
    pace,
    schedule,
    step_seconds,
)
from collbench.jobs.predict.timing import Evidence, NoEvidence, Span, Timings, assumed_of
from collbench.judge.stats import FEWEST_TRIALS
from collbench.machine.labels import is_nvlink
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Registration
from collbench.model.units import abridged, fixed

# The sets of k devices that a prediction compares: the one that `select` chooses, and the worst.

# Bounds rarely leave more sets open than this; a band of eight devices takes a millisecond.
_MOST_JUDGED = 300
_ROUNDING = 1e-9


class Compared(StrEnum):
    """Which sets of k devices were compared."""

    ALL = "all"
    HEURISTIC = "by a heuristic search"
    ONE_SET = "there is one"
    MEASURED = "those that were measured"
    ONE_MEASURED = "one was measured"


@dataclass(frozen=True, slots=True)
class Sets:
    """The best set of k devices and the worst (None if no set is worse); `by` says how they were found.

    So many pairs of the devices are `unmeasured`; `trials` are the fewest of a measured set, None if that is enough.
    """

    best: Members
    worst: Members | None
    by: Compared | Grounds
    unmeasured: int = 0
    trials: int | None = None

    @property
    def whole(self) -> bool:
        """True if every pair was measured often enough to say that sets do not differ."""
        return not self.unmeasured and self.trials is None


class Machine:
    """A machine as the pairs of its run show it: predictions for any set of its devices."""

    def __init__(self, evidence: Evidence) -> None:
        """Take all that was measured; devices that are faulty are left out."""
        run = evidence.run
        self._evidence = evidence
        self.left_out = left_out(run, allow_busy=True)
        gone = {left.member for left in self.left_out}
        self._fit = [position for position in range(len(run.devices)) if position not in gone]
        ranking = deciding_ranking(run, self._fit)
        self._problem: SelectionProblem | None = None if ranking is None else from_run(run, self._fit, ranking)

    @property
    def delta(self) -> float:
        """The ratio up to which two sets are equal."""
        return self._problem.delta if self._problem else 0.0

    def band(self, members: Members) -> Band | None:
        """Return the all-reduce busbw that a set is predicted to reach, GB/s; None if pairs do not show it."""
        problem = self._problem
        if problem is None or not set(members) <= set(problem.order):
            return None
        band = predict(problem.wired.of(sorted(problem.order.index(member) for member in members)))
        return band if band.lo > 0 else None

    def port(self, members: Members) -> tuple[float, bool]:
        """Return what a set's narrowest port sends at most, GB/s, ∞ if not known; and whether a switch joins the set.

        If no pairs were measured, PCIe labels prove nothing: a virtual machine may hide NVLinks behind them.
        """
        problem = self._problem
        if problem is not None and set(members) <= set(problem.order):
            wired = problem.wired.of(sorted(problem.order.index(member) for member in members))
            return ceiling(wired), on_one_plane(wired)
        run, index = self._evidence.run, {member: at for at, member in enumerate(sorted(members))}
        paths = {
            (index[min(path.devices)], index[max(path.devices)]): path
            for path in run.paths
            if set(path.devices) <= index.keys() and is_nvlink(path.label)
        }
        if len(paths) < comb(len(index), 2):
            return inf, False
        wired = wiring([run.devices[member] for member in index], paths, np.zeros((len(index), len(index))))
        return ceiling(wired), on_one_plane(wired)

    def sets(self, k: int, rank: Callable[[Members], float]) -> Sets:
        """Return the sets to compare. Without measured pairs, `rank` orders the sets that were measured, least first.

        Raises UsageError for an impossible k.
        """
        if not 2 <= k <= len(self._fit):
            raise TooFewLeft(k, self._evidence.run.devices, self.left_out, predicting=True)
        problem = self._problem
        if problem is None or len(problem.order) < k:
            return self._measured(k, rank)
        choice = choose(self._evidence.run, k, allow_busy=True)
        best, trials = choice.members, choice.trials
        if k == len(problem.order):
            return Sets(best, None, Compared.ONE_SET)
        if problem.tied:
            return Sets(best, None, problem.grounds)
        worst = _worst(problem, k)
        by = Compared.ALL if len(problem.order) <= MOST_MEMBERS else Compared.HEURISTIC
        unmeasured = int(np.count_nonzero(np.triu(problem.wired.missing)))
        few = trials if trials is not None and trials < FEWEST_TRIALS else None
        return Sets(best, worst if worst != best else None, by, unmeasured, few)

    def _measured(self, k: int, rank: Callable[[Members], float]) -> Sets:
        measured = sorted((some for some in self._evidence.sets if len(some) == k), key=rank)
        if not measured:
            raise NoEvidence(
                f"cannot predict for {k} devices: neither pairs nor a collective on {k} of them was measured; "
                "add the run file of 'collbench pairs'"
            )
        if len(measured) == 1:
            return Sets(measured[0], None, Compared.ONE_MEASURED)
        return Sets(measured[0], measured[-1], Compared.MEASURED)


def _worst(problem: SelectionProblem, k: int) -> Members:
    """Return the set with the lowest `lo`; above 16 devices, of a few sets with slow pairs."""
    if len(problem.order) > MOST_MEMBERS:
        slow = replace(problem.wired, rates=_turned(problem.wired.rates), links=np.zeros_like(problem.wired.links))
        sets: Sequence[Members] = sorted(grown(slow, k))
        bounds = [0.0] * len(sets)
    else:
        candidates = search(problem.wired, k, problem.delta)
        order = np.argsort(candidates.lo, kind="stable")
        # For meshes that cannot be best, `lo` is the rate over PCIe or of a single ring, never more than the band's.
        sets = [tuple(some) for some in candidates.sets[order].tolist()]
        bounds = candidates.lo[order].tolist()
    lowest, slowest = np.inf, sets[0]
    for members, bound in list(zip(sets, bounds, strict=True))[:_MOST_JUDGED]:
        if bound >= lowest * (1 - _ROUNDING):
            break
        carried = by_pairs(problem.wired.of(members)).lo
        if 0 < carried < lowest * (1 - _ROUNDING):
            lowest, slowest = carried, members
    return tuple(sorted(problem.order[index] for index in slowest))


def _turned(rates: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
    """Return rates in the opposite order, so that growing the best set grows the worst."""
    slower = np.minimum(rates, rates.T)
    turned = np.where(slower > 0, 1 / np.maximum(slower, _ROUNDING), 0.0)
    np.fill_diagonal(turned, 0.0)
    return turned


# The question and the answer.

# Without measured pairs, sets are ordered by their all-reduce of this size: DDP's bucket.
_RANKED_BYTES = BUCKET_BYTES


@dataclass(frozen=True, slots=True)
class Question:
    """What to predict. `step_seconds` is a step without communication, or with `measured_on_best` one on the best set.

    `shards` is the number of GPUs that hold one copy of the model under HSDP, None if not given. `gpu_seconds` is the
    step if the GPU never waited for the host, None if it never does; `host_phases` is how the host's time is divided.
    """

    network: Network
    strategies: tuple[str, ...]
    gpus: tuple[int, ...]
    parameter_bytes: int
    gradient_bytes: int
    micro_batches: int = 1
    bucket_bytes: int = BUCKET_BYTES
    shards: int | None = None
    step_seconds: float | None = None
    measured_on_best: bool = False
    gpu_seconds: float | None = None
    host_phases: Phases | None = None

    @property
    def host(self) -> Host | None:
        """The host's lane, None if the GPU never waits for it."""
        if self.gpu_seconds is None:
            return None
        return Host(self.gpu_seconds, pace(self.network, self.micro_batches, self.host_phases or AS_THE_GPU))


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a step's communication on one set, in seconds; spans are (least, middle, most).

    `raw` is the time of all transfers one after the other. `exposed` is the part of it for which compute waits: the
    least with perfect overlap, the most without any, the middle as scheduled. `step` is compute plus `exposed`; both
    are None without a step time. `slowed` are the seconds by which transfers slow compute down, None if no overlap was
    measured.
    """

    members: Members
    raw: Span
    exposed: Span | None = None
    step: Span | None = None
    slowed: float | None = None

    def share(self, part: Span) -> float | None:
        """Return the middle of a part as a share of the step, None without one."""
        return None if self.step is None else part[1] / self.step[1]


@dataclass(frozen=True, slots=True)
class PredictedSet:
    """One strategy on a number of GPUs: what a step sends by operation, and its cost on the best and the worst set.

    `sent` sums message sizes as docs/method.md 2.1 defines them; `bus_bytes` is what each GPU sends in rings. `compute`
    are the step's seconds without communication, None if not given; `worst` is None if no set is worse.
    """

    strategy: str
    gpus: int
    sent: dict[Operation, int]
    messages: dict[Operation, int]
    bus_bytes: float
    compute: float | None
    best: Cost
    worst: Cost | None

    @property
    def lost(self) -> Span | None:
        """Seconds that a step loses on the worst set: of the steps if they are known, else of the raw times."""
        if self.worst is None:
            return None
        mine, its = self.best.raw, self.worst.raw
        if self.best.step and self.worst.step:
            mine, its = self.best.step, self.worst.step
        low, middle, high = (b - a for a, b in zip(mine, its, strict=True))
        return min(low, middle), middle, max(middle, high)

    @property
    def lost_share(self) -> float | None:
        """The same as a share of the best set's step, None without a step time."""
        return self.lost[1] / self.best.step[1] if self.lost and self.best.step else None

    @property
    def longer(self) -> float:
        """The same as a share of the best set's step, or without a step time of its raw time; 0 if no set is worse."""
        return self.lost[1] / (self.best.step or self.best.raw)[1] if self.lost else 0.0


@dataclass(frozen=True, slots=True, repr=False)
class Prediction:
    """The predictions, by number of GPUs and then by strategy; the sets of each number; what was assumed.

    `overlap` is what was used of measured overlaps, () if the steps assume that overlap costs nothing. Times are for
    memory of the kind `registration`. `unpredicted` are numbers of GPUs without evidence, with the reason.
    """

    question: Question
    cases: tuple[PredictedSet, ...]
    sets: dict[int, Sets]
    assumed: tuple[Assumed, ...]
    left_out: tuple[LeftOut, ...]
    overlap: tuple[OverlapUse, ...] = ()
    registration: Registration = Registration.NONE
    unpredicted: tuple[tuple[int, str], ...] = ()

    def __repr__(self) -> str:
        """Return one line, for people."""
        cases = [f"{case.strategy} on {case.gpus} GPUs" for case in self.cases]
        return f"<Prediction of {self.question.network.name}: {abridged(cases, 6)}>"


class Predictor:
    """Answers from one machine's evidence; collects what it assumed on the way."""

    def __init__(self, evidence: Evidence, overlaps: Sequence[OverlapCurve] = ()) -> None:
        """Take all that was measured: links, and what a collective and compute cost each other."""
        self._evidence, self._overlaps = evidence, overlaps
        self._used: dict[OverlapUse, None] = {}
        self._machine = Machine(evidence)
        self._timings = Timings(evidence, self._machine.band, self._machine.delta, self._machine.port)
        # Each assumption with what it was made of, in the order met: operations and devices.
        self._assumed: dict[OfTime, list[tuple[Operation, Members]]] = {}

    def predict(self, question: Question, *, where_possible: bool = False) -> Prediction:
        """Return the prediction. Raises UsageError for a question that has no meaning on this machine.

        With `where_possible`, numbers of GPUs without evidence are left out, unless all are.
        """
        for gpus in question.gpus:
            for strategy in question.strategies:
                job_of(question, strategy, gpus)  # refuses impossible jobs before anything is computed
        sets: dict[int, Sets] = {}
        cases: list[PredictedSet] = []
        unpredicted: list[tuple[int, str]] = []
        for gpus in question.gpus:
            try:
                found = self._machine.sets(gpus, self._rank)
                cases += [self._predicted(question, strategy, gpus, found) for strategy in question.strategies]
                sets[gpus] = found
            except NoEvidence as error:
                unpredicted.append((gpus, str(error)))
                if not where_possible or len(unpredicted) == len(question.gpus):
                    raise
        question = replace(question, gpus=tuple(sets))
        used = tuple(self._used) if question.step_seconds is not None else ()
        assumed = [Assumed(what) for what in _general(question, overlap=bool(used))]
        for assumption, made_of in self._assumed.items():
            operations, members = zip(*made_of, strict=True)
            assumed.append(Assumed(assumption, tuple(dict.fromkeys(operations)), tuple(dict.fromkeys(members))))
        return Prediction(
            question=question,
            cases=tuple(cases),
            sets=sets,
            assumed=tuple(assumed),
            left_out=self._machine.left_out,
            overlap=used,
            registration=self._evidence.registration,
            unpredicted=tuple(unpredicted),
        )

    def cost(self, question: Question, strategy: str, members: Members, compute: float | None) -> Cost:
        """Return the cost of a step with these compute seconds on exactly these devices, by position."""
        transfers = _transfers(question, strategy, len(members))
        return self._priced(question, transfers, members, compute)

    def compute(self, question: Question, strategy: str, members: Members) -> float | None:
        """Return the compute seconds of a step: as given, or of the step measured on these devices, None if neither."""
        if question.step_seconds is None or not question.measured_on_best:
            return question.step_seconds
        transfers = _transfers(question, strategy, len(members))
        middle = [span[1] for span in self._spans(transfers, members, question)]
        slower = self._contended(transfers, middle, members, question)
        seconds = compute_of(question.step_seconds, transfers, middle, question.host, slower.middle if slower else None)
        if seconds is not None:
            return seconds
        step, tags = f"--step-time {fixed(question.step_seconds * 1e3)}ms", self._evidence.tags(members)
        if question.step_seconds < sum(middle) or question.gpu_seconds is None:
            raise UsageError(
                f"{step} is less than {strategy}'s communication alone takes on {tags}, {fixed(sum(middle) * 1e3)} ms: "
                "is it a step without communication?"
            )
        raise UsageError(
            f"{step} is less than --gpu-time {fixed(question.gpu_seconds * 1e3)}ms takes with {strategy}'s "
            f"communication on {tags}: leave --gpu-time out, or check how both were timed"
        )

    def _predicted(self, question: Question, strategy: str, gpus: int, sets: Sets) -> PredictedSet:
        transfers = _transfers(question, strategy, gpus)
        ranks = {group: len(groups(group, sets.best, question.shards)[0]) for group in Group}
        sent, messages, through = Counter[Operation](), Counter[Operation](), 0.0
        for transfer in transfers:
            sent[transfer.operation] += transfer.size_bytes
            messages[transfer.operation] += 1
            through += transfer.size_bytes * transfer.operation.busbw_factor(ranks[transfer.group])
        compute = self.compute(question, strategy, sets.best)
        return PredictedSet(
            strategy=strategy,
            gpus=gpus,
            sent=dict(sent),
            messages=dict(messages),
            bus_bytes=through,
            compute=compute,
            best=self._priced(question, transfers, sets.best, compute),
            worst=self._priced(question, transfers, sets.worst, compute) if sets.worst else None,
        )

    def _priced(
        self, question: Question, transfers: Sequence[Transfer], members: Members, compute: float | None
    ) -> Cost:
        spans = self._spans(transfers, members, question)
        slower = self._contended(transfers, [span[1] for span in spans], members, question)
        if slower is not None:
            self._used |= dict.fromkeys(slower.uses)
        return _cost(members, transfers, spans, compute, question.host, slower)

    def _contended(
        self, transfers: Sequence[Transfer], seconds: Sequence[float], members: Members, question: Question
    ) -> Contended | None:
        return contended(self._overlaps, transfers, seconds, lambda group: groups(group, members, question.shards)[0])

    def _rank(self, members: Members) -> float:
        return self._timings.of(Operation.ALLREDUCE, members).seconds(_RANKED_BYTES)[1]

    def _spans(self, transfers: Sequence[Transfer], members: Members, question: Question) -> list[Span]:
        """Return each transfer's seconds; if several groups run concurrently, the seconds of the slowest."""
        known: dict[tuple[Operation, int, Group], Span] = {}
        sizes: dict[tuple[Operation, Group], list[int]] = {}
        for transfer in transfers:
            key = transfer.operation, transfer.size_bytes, transfer.group
            if key not in known:
                sizes.setdefault((transfer.operation, transfer.group), []).append(transfer.size_bytes)
                seconds = [
                    self._timings.of(transfer.operation, some).seconds(transfer.size_bytes)
                    for some in groups(transfer.group, members, question.shards)
                ]
                low, middle, high = (max(parts) for parts in zip(*seconds, strict=True))
                known[key] = low, middle, high
        self._note(sizes, members, question)
        return [known[transfer.operation, transfer.size_bytes, transfer.group] for transfer in transfers]

    def _note(self, sizes: dict[tuple[Operation, Group], list[int]], members: Members, question: Question) -> None:
        """Record what was assumed, and for which devices."""
        for (operation, group), bytes_sent in sizes.items():
            for some in groups(group, members, question.shards):
                timing = self._timings.of(operation, some)
                for assumption in assumed_of(timing, bytes_sent):
                    self._assumed.setdefault(assumption, []).append((operation, tuple(sorted(some))))


def job_of(question: Question, strategy: str, gpus: int) -> Job:
    """Return the job on this many GPUs. Raises UsageError if they are not a multiple of HSDP's shards."""
    shards = question.shards or gpus
    if strategy == "hsdp":
        if question.shards is None:
            raise UsageError("--strategy hsdp needs --shard N: how many GPUs hold one copy of the model")
        if gpus % shards:
            raise UsageError(f"--shard {shards} does not divide {gpus} GPUs: hsdp needs whole copies of the model")
    return Job(
        network=question.network,
        parameter_bytes=question.parameter_bytes,
        gradient_bytes=question.gradient_bytes,
        micro_batches=question.micro_batches,
        bucket_bytes=question.bucket_bytes,
        shards=shards,
        replicas=gpus // shards,
    )


def _transfers(question: Question, strategy: str, gpus: int) -> list[Transfer]:
    return list(STRATEGIES[strategy](job_of(question, strategy, gpus)))


def groups(group: Group, members: Members, shards: int | None) -> list[Members]:
    """Return the sets that run a collective at the same time; the GPUs of one copy have successive ranks."""
    if group is Group.ALL or shards is None:
        return [members]
    if group is Group.SHARD:
        return [members[start : start + shards] for start in range(0, len(members), shards)]
    return [members[start::shards] for start in range(shards)]


def _cost(
    members: Members,
    transfers: Sequence[Transfer],
    spans: Sequence[Span],
    compute: float | None,
    host: Host | None,
    slower: Contended | None,
) -> Cost:
    low, middle, high = (sum(span[end] for span in spans) for end in range(3))
    raw = low, middle, high
    if compute is None:
        return Cost(members, raw)
    scheduled = schedule(transfers, [span[1] for span in spans], compute, host, slower.middle if slower else None)
    if slower is not None:  # if overlap costs more than it gains, no overlap is not the worst
        most = step_seconds(transfers, [span[2] for span in spans], compute, host, slower.most)
        high = max(high, scheduled.step - compute, most - compute)
    exposed = max(0.0, low - compute), scheduled.step - compute, high
    step = compute + exposed[0], compute + exposed[1], compute + exposed[2]
    return Cost(members, raw, exposed, step, None if slower is None else scheduled.slowed)


def _general(question: Question, *, overlap: bool) -> Iterator[OfStep]:
    """Yield the assumptions that do not depend on measurements."""
    yield from question.network.assumed
    yield from map(OfStrategy, question.strategies)
    if question.step_seconds is not None:
        yield General.BACKWARD
        yield General.OVERLAP_MEASURED if overlap else General.OVERLAP_FREE
    if question.gpu_seconds is not None:
        yield General.HOST_LAUNCHES
        yield General.OPTIMIZER
        if question.host_phases is None:
            yield General.HOST_PHASES
