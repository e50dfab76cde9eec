"""Pairs of nodes measured in rounds: at first at random, then where it is suspicious; and what that will take."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collbench.cluster.fit import Observation, RoundKind, Sharing
from collbench.cluster.nodes import Judgement, judge
from collbench.cluster.simulated import Cluster, measured_rates
from collbench.cluster.switches import Switches
from collbench.measurement.backends.protocol import Backend, Step, Timing, time_step
from collbench.measurement.plan import pair_rounds, relabelled
from collbench.model.errors import BackendError, Failure, StepFailed, UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import DataPoint, Device, Measurement, Members, Pair, Run, Sample, StopReason
from collbench.model.units import algbw, format_size, grouped

# How long a survey of nodes will take: an estimate, whose assumptions each have a name here.

# Measured: NCCL's world and its splits took 0.65 s on 4 GPUs of one host [benchmarks/README.md]. Assumed between hosts:
# a round's communicators, which all start at once, take about twice that, and the world 10 ms more for each rank.
_ROUND_START_S = 1.5
_WORLD_START_S, _RANK_START_S = 0.65, 0.01
# Measured without a network: rank 0 writes a trial to a rank's connection, reads the answer, and judges
# [benchmarks/results/2026-11-23-emulated-hosts].
_MESSAGE_S = 180e-6
TRIALS, BATCHES, WARMUP = 3, 2, 1  # of a round: as of every data point that is screened (docs/method/measuring.md 15)
_BATCH_BYTES = 4 * 2**30  # as the longest batches of copies: 20 ms on 8 cards of 400 Gb/s
_MAX_ITERATIONS = 20  # docs/method/measuring.md 6
# On slower networks a batch ends after this time, or one call: a round of seven batches takes about a second.
_BATCH_S = 0.1


def iterations(size_bytes: int) -> int:
    """Return how many all-reduces of a size make one batch."""
    return max(1, min(_MAX_ITERATIONS, _BATCH_BYTES // size_bytes))


def iterations_for(size_bytes: int, seconds: float) -> int:
    """Return how many all-reduces of a size make one batch if one takes `seconds`."""
    return max(1, min(iterations(size_bytes), int(_BATCH_S / seconds)))


def start_seconds(nodes: int, gpus: int) -> float:
    """Return the seconds until all ranks have met."""
    return _WORLD_START_S + _RANK_START_S * nodes * gpus


def round_seconds(nodes: int, gpus: int, size_bytes: int, gbs: float) -> float:
    """Return the seconds of one round: communicators, then trials of `size_bytes` at `gbs` GB/s of busbw."""
    call = size_bytes * Operation.ALLREDUCE.busbw_factor(2 * gpus) / (gbs * 1e9)
    calls = (WARMUP + TRIALS * BATCHES) * iterations_for(size_bytes, call)
    return _ROUND_START_S + calls * call + TRIALS * _MESSAGE_S * nodes * gpus


# Rounds in which all nodes of a cluster are measured at once, in pairs: first at random, then suspect ones.
#
# N nodes have N(N-1)/2 pairs. A round measures N/2 of them, so a few rounds give each node as many measurements.


# At 2% noise the mean of eight measurements is known to 0.8%: a node that is 10% slow stands out among 128 (the
# simultaneous 95% quantile is 3.4), and a few slow partners do not matter.
SCREENING = 8
# In a quiet round one of this many nodes leaves its leaf.
_FEW = 8
# How often pairs within a group swap partners with random others: more than a few swaps are rarely needed.
_TRIES = 64


@dataclass(frozen=True, slots=True)
class Round:
    """Disjoint pairs that are measured at the same time; a node without a partner rests."""

    kind: RoundKind
    pairs: tuple[Pair, ...]


def matching(nodes: int, groups: Sequence[Members], rng: random.Random) -> tuple[Pair, ...]:
    """Return random pairs within each group; the nodes that are left over, and all others, are paired at random."""
    pairs: list[Pair] = []
    rest = set(range(nodes))
    for group in groups:
        members = rng.sample(group, len(group))
        pairs += zip(members[::2], members[1::2], strict=False)
        rest -= set(members[: len(members) // 2 * 2])
    left = rng.sample(sorted(rest), len(rest))
    return _ordered(pairs + list(zip(left[::2], left[1::2], strict=False)))


def apart(nodes: int, groups: Sequence[Members], rng: random.Random) -> tuple[Pair, ...]:
    """Return random pairs, with as few as possible that lie within a group."""
    group_of = {member: number for number, group in enumerate(groups) for member in group}
    pairs = list(matching(nodes, (), rng))
    spare = sorted({*range(nodes)} - {node for pair in pairs for node in pair})  # one of an odd number

    def together(pair: Pair) -> bool:
        return pair[0] in group_of and group_of[pair[0]] == group_of.get(pair[1])

    for _ in range(_TRIES):
        wrong = [number for number, pair in enumerate(pairs) if together(pair)]
        if not wrong:
            break
        for number in wrong:
            other = rng.randrange(len(pairs) + len(spare))
            if other == len(pairs):
                kept, freed = rng.sample(pairs[number], 2)
                if not together((kept, spare[0])):
                    pairs[number], spare = (kept, spare[0]), [freed]
                continue
            (a, b), (c, d) = pairs[number], pairs[other]
            if other != number and not together((a, d)) and not together((c, b)):
                pairs[number], pairs[other] = (a, d), (c, b)
    return _ordered(pairs)


def screening(nodes: int, leaves: Sequence[Members], rng: random.Random) -> list[Round]:
    """Return the rounds in which every node is measured."""
    if leaves:
        kinds = [(RoundKind.WITHIN_LEAVES, matching), (RoundKind.BETWEEN_LEAVES, apart)] * (SCREENING // 2)
        return [Round(kind, make(nodes, leaves, rng)) for kind, make in kinds]
    # No pair twice before all were measured once; small clusters repeat them.
    rounds: list[list[Pair]] = []
    while nodes > 1 and len(rounds) < SCREENING:
        turn = relabelled(pair_rounds(nodes), nodes, rng)
        rng.shuffle(turn)
        rounds += turn
    return [Round(RoundKind.AT_RANDOM, tuple(pairs)) for pairs in rounds[:SCREENING]]


def _ordered(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Return the pairs as (low, high): a pair has one data point, in whichever order its nodes were drawn."""
    return tuple((min(pair), max(pair)) for pair in pairs)


def quiet(nodes: int, sharing: Sharing, rng: random.Random, turn: int, confirm: Members = ()) -> Round:
    """Return a round in which few pairs share uplinks: those that are fast together stay, suspects change partners.

    In turn suspects meet each other, as two of them may be under one switch, and a few of them each meet a fast node.
    While many nodes are suspects, they meet each other; nodes that have no part in this rest. Or the slow nodes of
    `confirm` are measured again.
    """
    mate = {node: other for a, b in sharing.fast for node, other in ((a, b), (b, a))}
    suspects = [node for node in confirm or sharing.open if node not in mate]
    among = sorted({(min(a, b), max(a, b)) for a, b in sharing.strangers if {a, b} <= set(suspects)})
    pairs: list[Pair] = []
    if among and not confirm and (turn % 2 == 0 or 3 * len(suspects) > nodes):
        kind, taken = RoundKind.AMONG_SUSPECTS, set[int]()
        for pair in rng.sample(among, len(among)):
            if not taken & {*pair}:
                pairs.append(pair)
                taken |= {*pair}
    else:
        kind, rest = (
            RoundKind.CONFIRMING if confirm else RoundKind.QUIET,
            set(range(nodes)) - set(sharing.open) - mate.keys(),
        )
        # Never all of them: those under one switch would always share its uplink.
        for node in rng.sample(suspects, min((len(suspects) + 1) // 2, max(2, nodes // _FEW))):
            unmet = {b for a, b in sharing.strangers if a == node} & (rest | mate.keys())
            others = sorted(unmet or (rest | mate.keys()) & {*sharing.most})
            if others:
                partner = rng.choice(others)
                pairs.append((node, partner))
                rest.discard(partner)
                if partner in mate:
                    rest.add(left := mate.pop(partner))
                    del mate[left]
    return Round(kind, _ordered([*(pair for pair in sharing.fast if mate.get(pair[0]) == pair[1]), *pairs]))


# Pairs of nodes on a backend whose devices name their hosts: each pair is one communicator of all its ranks.


class NodePairs:
    """Measures pairs of nodes into `run`; `names` and `ranks` are each node's, by its index."""

    def __init__(
        self,
        backend: Backend,
        run: Run,
        size_bytes: int,
        lost: Callable[[], Collection[int]] = tuple,
        keep: Callable[[], object] = lambda: None,
    ) -> None:
        """Make room for the messages. Raises UsageError if they do not fit, or if there is only one host.

        `lost` returns the lost ranks; `keep` is called after each trial and each failure, and may save the run.
        """
        self._backend, self._run, self._size_bytes = backend, run, size_bytes
        self._lost, self._keep = lost, keep
        nodes = by_node(backend.devices())
        self.names, self.ranks = tuple(nodes), tuple(nodes.values())
        self._measurements: dict[DataPoint, Measurement] = {}
        self._iterations = 0  # of a batch, by the first round's calls
        room = backend.capacity_bytes()
        if size_bytes > room:
            raise UsageError(
                f"--size {format_size(size_bytes)} does not fit: the fullest device has room for {format_size(room)}"
            )
        backend.reserve(size_bytes)

    def lost(self) -> frozenset[int]:
        """Return the nodes with a rank that was lost."""
        gone = set(self._lost())
        return frozenset(node for node, ranks in enumerate(self.ranks) if gone & set(ranks))

    def measure(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Return the busbw in GB/s of an all-reduce of each pair of nodes, all at once; None if one failed."""
        groups = tuple(self.ranks[a] + self.ranks[b] for a, b in _ordered(pairs))
        step = Step(Work(Operation.ALLREDUCE), groups, self._size_bytes, 1, 1, WARMUP)
        self._iterations = self._iterations or self._tried(step)
        return self._trial(replace(step, iterations=self._iterations or 1, batches=BATCHES))

    def _tried(self, step: Step) -> int:
        """Return how many calls make a batch of the step, by timing one call now; 0 if it fails.

        A failure shows in the trials, too, and the next round tries again.
        """
        try:
            taken = [seconds for group in time_step(self._backend, step).seconds for seconds in group if seconds > 0]
        except StepFailed:
            return 0
        return iterations_for(self._size_bytes, float(np.median(taken))) if taken else iterations(self._size_bytes)

    def _trial(self, step: Step) -> list[float | None]:
        """Measure the step's groups concurrently; if that fails, each isolated, to find out which one failed.

        If a rank was lost, the failed group is known: the others are measured concurrently again.
        """
        before = set(self._lost())
        try:
            timings = [
                time_step(self._backend, replace(step, warmup=0 if trial else WARMUP)) for trial in range(TRIALS)
            ]
        except StepFailed as error:
            gone = set(self._lost())
            kept = tuple(group for group in step.groups if not gone & set(group))
            if len(kept) < len(step.groups) > 1:
                self._fail(step, [group for group in step.groups if group not in kept], error.failure)
                rates = dict(zip(kept, self._trial(replace(step, groups=kept)), strict=True)) if kept else {}
                return [rates.get(group) for group in step.groups]
            if len(step.groups) > 1 and gone != before:
                return self._trial(step)  # the lost rank is in none of these groups
            if len(step.groups) > 1:
                return [rate for group in step.groups for rate in self._trial(replace(step, groups=(group,)))]
            self._fail(step, step.groups, error.failure)
            return [None]
        return [self._record(step, index, timings) for index in range(len(step.groups))]

    def _fail(self, step: Step, groups: Iterable[Members], failure: Failure) -> None:
        """Keep the failure of these groups."""
        for group in groups:
            point = DataPoint(step.work.operation, group, step.size_bytes)
            measurement = self._measurements.get(point) or Measurement(point)
            measurement.stop, measurement.failure = StopReason.FAILED, failure
            self._enter(measurement)

    def _record(self, step: Step, index: int, timings: Sequence[Timing]) -> float:
        """Keep the samples of one of the step's groups, and return busbw of the median trial."""
        group, trials = step.groups[index], [timing.seconds[index] for timing in timings]
        point = DataPoint(step.work.operation, group, step.size_bytes)
        measurement = self._measurements.get(point) or Measurement(point)
        concurrent = len(step.groups) > 1
        plain = any(timing.plain[index : index + 1] == (True,) for timing in timings)
        for timing in timings:
            sample = Sample(
                timing.seconds[index], step.iterations, concurrent, plain=plain, waits=_waits(timing, index)
            )
            measurement.samples.append(sample)
            measurement.stop = measurement.failure = None  # of an earlier round
            self._enter(measurement)
        middle = float(np.median([np.median(seconds) for seconds in trials]))
        return algbw(step.size_bytes, middle) * step.work.operation.busbw_factor(len(group))

    def _enter(self, measurement: Measurement) -> None:
        """Put a measurement with samples or a failure into the run: one with neither, after Ctrl-C, would damage it."""
        if measurement.point not in self._measurements:
            self._measurements[measurement.point] = measurement
            self._run.measurements.append(measurement)
        self._keep()


def _waits(timing: Timing, index: int) -> tuple[float, ...]:
    """Return how long each rank of a group waited before a batch (the median), () if a rank does not report it.

    The wait before the first batch does not count: ranks reach it when rank 0's request reaches them.
    """
    ranks = timing.waits[index] if timing.waits else ()
    return tuple(float(np.median(own[1:])) for own in ranks) if all(len(own) > 1 for own in ranks) else ()


def by_node(devices: Sequence[Device]) -> dict[str, Members]:
    """Return each host's positions, hosts in the order of the ranks. Raises UsageError if there is only one."""
    nodes = grouped((device.host, position) for position, device in enumerate(devices))
    if len(nodes) < 2:
        raise UsageError("all ranks are on one host, which 'collbench pairs' measures: start ranks on several nodes")
    return {host: tuple(positions) for host, positions in nodes.items()}


# From a function that measures pairs of nodes to judged nodes: rounds, what they show, and what to measure next.

# Busbw in GB/s of each pair, all measured at once; None if a pair failed.
MeasurePairs = Callable[[tuple[Pair, ...]], Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What a survey has measured and what it means. `seconds` is estimated where nothing was really measured."""

    rounds: tuple[Round, ...]
    seen: tuple[Observation, ...]
    judgement: Judgement
    seconds: float


def survey_nodes(
    nodes: int,
    known: Sequence[Switches],
    measure: MeasurePairs,
    more: Callable[[int], bool],
    seed: int,
    lost: Callable[[], Collection[int]] = tuple,
) -> Surveyed:
    """Measure `nodes` nodes in rounds until all is decided or `more(rounds made)` is false. Raises BackendError.

    The screening is always made. `known` are the known levels of switches, leaves first: pairs then lie under one leaf
    and under two in turn, which distinguishes a slow node from a slow uplink. `lost` returns the nodes that can no
    longer be measured: their partners are paired among themselves, and lost nodes are not judged.
    """
    begin, made, seen = time.monotonic(), list[Round](), list[Observation]()
    leaves = known[0].members if known else ()
    rng = random.Random(seed)  # noqa: S311  # an order of rounds, no secret

    def take(planned: Round) -> None:
        made.append(planned)
        pairs = rejoined(planned.pairs, lost())
        rates = measure(pairs) if pairs else ()
        seen.extend(Observation(a, b, gbs, planned.kind) for (a, b), gbs in zip(pairs, rates, strict=True) if gbs)

    def judged() -> Judgement:
        if not seen:
            raise BackendError("no pair of nodes could be measured: time one with 'collbench allreduce' to see why")
        gone = {*lost()}
        rest = [observed for observed in seen if not gone & {*observed.pair}]
        if not rest:
            raise BackendError("no pair of the remaining nodes was measured: start them again without the lost nodes")
        return judge(rest, nodes, known)

    for planned in screening(nodes, leaves, rng):
        take(planned)
    while more(len(made)) and (instead := next_round(judged(), nodes, leaves, len(made), rng)) is not None:
        take(instead)
    return Surveyed(tuple(made), tuple(seen), judged(), time.monotonic() - begin)


def next_round(found: Judgement, nodes: int, leaves: Sequence[Members], made: int, rng: random.Random) -> Round | None:
    """Return the round that may decide more after `made` rounds, None if all is decided."""
    if found.sharing is not None and (found.confirm or (found.shared and found.suspects is not None)):
        return quiet(nodes, found.sharing, rng, made, found.confirm)
    if found.suspects is None:
        return None
    if found.suspects and made % 3 != 2:  # every third round pairs suspects with others
        # Suspects of known leaves are whole leaves. The others stay within theirs, too: few pairs across would be fast.
        return Round(RoundKind.AMONG_SUSPECTS, matching(nodes, leaves or found.suspects, rng))
    return Round(RoundKind.SUSPECTS_AND_OTHERS, apart(nodes, leaves or found.suspects, rng))


def rejoined(pairs: Sequence[Pair], lost: Collection[int]) -> tuple[Pair, ...]:
    """Return the pairs without lost nodes, whose partners are paired among themselves."""
    left = [node for pair in pairs if set(pair) & set(lost) for node in pair if node not in lost]
    kept = [pair for pair in pairs if not set(pair) & set(lost)]
    return tuple(kept + list(zip(left[::2], left[1::2], strict=False)))


def survey_cluster(cluster: Cluster, budget_seconds: float, size_bytes: int, seed: int) -> Surveyed:
    """Survey a simulated cluster; rounds end when a real one would have used the budget, by the estimate."""
    noise = np.random.default_rng(seed)
    start = start_seconds(cluster.nodes, cluster.gpus)
    each = round_seconds(cluster.nodes, cluster.gpus, size_bytes, cluster.nic_gbs)

    done = survey_nodes(
        cluster.nodes,
        switches(cluster),
        lambda pairs: measured_rates(cluster, pairs, noise),
        lambda made: start + (made + 1) * each <= budget_seconds,
        seed,
    )
    return Surveyed(done.rounds, done.seen, done.judgement, start + len(done.rounds) * each)


def switches(cluster: Cluster) -> tuple[Switches, ...]:
    """Return the levels of switches that a simulated cluster reports, leaves first."""
    levels_of = (("leaf", cluster.leaf_of), ("pod", cluster.pod_of)) if cluster.reported else ()
    known = []
    for kind, switch_of in levels_of:
        used = sorted(set(switch_of))
        if len(used) > 1:  # one switch for all tells nothing
            members = tuple(
                tuple(node for node in range(cluster.nodes) if switch_of[node] == switch) for switch in used
            )
            known.append(Switches(tuple(f"{kind}{switch}" for switch in used), members))
    return tuple(known)
