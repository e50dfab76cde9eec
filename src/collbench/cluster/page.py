"""The page and the JSON of `collbench nodes`: slow nodes and uplinks, and which nodes to take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collbench.cluster.nodes import (
    UNKNOWN,
    Effect,
    Judgement,
    LateNode,
    NodeChoice,
    State,
    Uplink,
)
from collbench.cluster.switches import format_node_list
from collbench.model.errors import ExitStatus, RunFileError
from collbench.model.run import Run, capabilities
from collbench.model.units import DELTA, amount, fixed, verb
from collbench.report import sentences
from collbench.report.frame import ALARM, not_judged
from collbench.report.layout import Lines, Page, whole
from collbench.runfile.codec import head, picked, plain

_FEW_FINDINGS = 12  # lines on the short page


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NodeSurvey:
    """What a survey found, and where its figures come from; no `choice` if none was asked for.

    - `names`: of the nodes; `rounds`: the kind of each measured round.
    - `seconds`: the survey took; for a simulation, the estimate for a real cluster.
    - `lost`: a line for each pair that failed; `failed`: the headline of a run with failures; `gone`: a line for each
      lost rank; `failure_status`: how the command ends for these.
    - `network`: changes on ports of network cards during the survey; `late`: nodes that arrive late at batches.
    - `plain`: pairs were timed by plain launches, not by replays of a graph.
    - `switches`: the number of switches at each level, leaves first, as `switches_from` reports.
    - `truth`: what only a simulation knows, GB/s: the chosen nodes' all-reduce busbw, and an upper bound for any nodes.
    - `path`: the run's file; `unsaved`: why there is none.
    """

    backend: str
    where: str
    names: tuple[str, ...]
    rounds: tuple[str, ...]
    measurements: int
    seconds: float
    seed: int
    judgement: Judgement
    choice: NodeChoice | None = None
    lost: tuple[str, ...] = ()
    failed: str = ""
    network: tuple[str, ...] = ()
    late: tuple[LateNode, ...] = ()
    gone: tuple[str, ...] = ()
    plain: bool = False
    switches: tuple[int, ...] = ()
    switches_from: str = ""
    truth: tuple[float, float] | None = None
    failure_status: ExitStatus = ExitStatus.DONE
    path: Path | None = None
    unsaved: RunFileError | None = None

    def __repr__(self) -> str:
        """Return one line, for people."""
        found = f"{len(self.judgement.slow_nodes)} slow nodes, {len(self.judgement.slow_uplinks)} slow uplinks"
        chosen = "none chosen" if self.choice is None else f"{len(self.choice.members)} chosen"
        return f"<NodeSurvey of {amount(len(self.judgement.nodes), 'node')}: {found}, {chosen}>"

    @property
    def status(self) -> ExitStatus:
        """How the command ends: with what failed, a failure where no node was judged, or something that is slow."""
        judged = ExitStatus.DONE if self.judgement.judged else ExitStatus.FAILED
        slow = ExitStatus.CONTRADICTION if self.judgement.accuses else ExitStatus.DONE
        return max(self.failure_status, judged, slow)

    @property
    def mark(self) -> str:
        """The mark of each figure: " (sim)" if it is simulated."""
        return " (sim)" if capabilities(self.backend).simulated else ""


# What JSON has of a survey beside what was judged and chosen.
_OF_SURVEY = (
    *("where", "names", "rounds", "measurements", "seconds", "seed", "lost", "failed", "network", "late", "gone"),
    *("plain", "switches", "switches_from"),
)


def page(survey: NodeSurvey) -> Page:
    """Yield the page's blocks; the short page has only the first findings."""
    if survey.failed:
        yield Lines(survey.failed, style=ALARM)
    yield from (Lines(f"lost      {how}") for how in survey.gone)
    if not survey.judgement.judged:
        yield not_judged(_not_judged(survey.judgement))
    if survey.choice is not None:
        yield from map(Lines, _chosen(survey, survey.choice))
    findings = [Lines(line) for line in _findings(survey, survey.judgement)]
    yield from findings[:_FEW_FINDINGS]
    yield from whole("verdicts", *findings[_FEW_FINDINGS:])
    yield Lines(f"backend   {survey.backend}{': nothing is measured' if survey.mark else ''}")
    yield Lines(f"nodes     {survey.where}")
    yield from map(Lines, _rounds(survey))
    if survey.truth is not None:
        reached, bound = map(fixed, survey.truth)
        yield Lines(f"truth     the chosen nodes reach {reached} GB/s busbw; no choice can exceed {bound} GB/s (sim)")


def as_plain(survey: NodeSurvey) -> dict[str, object]:
    """Return the same as JSON's own types; the backend "sim" says what the figures are."""
    choice, judged = survey.choice, plain(replace(survey.judgement, sharing=None))
    del judged["sharing"], judged["confirm"]  # for the next round
    return head("nodes", survey.backend) | {
        "exit_status": survey.status,
        **picked(survey, *_OF_SURVEY),
        "judgement": judged,
        "choice": None
        if choice is None
        else {
            **plain(choice),
            "left_out": [[node, left_out(why)] for node, why in choice.left_out],
            "nodes": [survey.names[node] for node in choice.members],
        },
        "truth": survey.truth and dict(zip(("busbw_gbs", "bound_gbs"), survey.truth, strict=True)),
    }


def lost(run: Run) -> tuple[str, ...]:
    """Return a line for each pair of nodes that failed: the hosts, and why."""
    lines = []
    for measurement in run.measurements:
        if measurement.failure is not None:
            hosts = dict.fromkeys(run.devices[rank].host for rank in measurement.point.members)
            lines.append(f"{' and '.join(hosts)}: {sentences.failure(measurement.failure, run.devices)}")
    return tuple(lines)


def _rounds(survey: NodeSurvey) -> Iterator[str]:
    if survey.switches_from:
        counts = ", under ".join(f"{count:,}" for count in survey.switches)
        yield f"switches  {counts or 'one for all these nodes'}, as {survey.switches_from} reports"
    kinds = ", ".join(f"{survey.rounds.count(kind)} {kind}" for kind in dict.fromkeys(survey.rounds))
    count = len(survey.names)
    there = "there is one pair" if count == 2 else f"there are {count * (count - 1) // 2:,} pairs"
    pairs = f"{survey.measurements:,} measurements; {there}"
    spent = f"{survey.seconds:.0f} s{' estimated for a real cluster' if survey.mark else ''}"
    yield f"rounds    {len(survey.rounds)} ({kinds}): {pairs}; {spent}{survey.mark}, seed {survey.seed}"
    if survey.plain:
        yield "timed     by plain launches, as in a job: between hosts, NCCL runs captured graphs slower"
    yield from (f"failed    {what}" for what in survey.lost)
    yield from (f"network   {what}" for what in survey.network)


def _findings(survey: NodeSurvey, judgement: Judgement) -> Iterator[str]:
    mark = survey.mark
    for node in judgement.slow_nodes:
        yield f"slow      {survey.names[node]}: {described(judgement.nodes[node])}{mark}"
    for uplink in judgement.slow_uplinks:
        yield f"{uplink.effect.state:9} {_uplink(uplink, survey.names)}{mark}"
    either, undecided = (
        [(node, effect) for node, effect in enumerate(judgement.nodes) if effect.state is state]
        for state in (State.EITHER, State.UNDECIDED)
    )
    yield from _across(judgement, mark)
    if judgement.judged and not (judgement.slow_nodes or judgement.slow_uplinks):
        nothing = "no node and no uplink is slower than the others; if all are slow, only the typical rate shows it"
        if doubtful := len(either) + len(undecided):
            nothing = f"nothing slow for certain: {amount(doubtful, 'node')} {verb(doubtful, 'is', 'are')} in doubt"
        yield f"found     {nothing}{mark}"
    noise = f"noise {judgement.noise:.1%} per measurement"
    yield f"typical   a pair reaches {fixed(judgement.typical_gbs)} GB/s busbw; {noise}{mark}"
    if judgement.fast_pair:
        pair = format_node_list([survey.names[node] for node in judgement.fast_pair])
        yield f"undecided only {pair} are fast with each other: the others are slow, or these two share a switch{mark}"
    yield from (f"late      {_late(node, survey.names)}" for node in survey.late)
    for node, effect in either:
        yield f"either    {survey.names[node]}: {described(effect)}{mark}"
    for node, effect in undecided if judgement.judged else ():  # else their intervals say what the first line says
        yield f"undecided {survey.names[node]}: {described(effect)}{mark}"


def _across(judgement: Judgement, mark: str) -> Iterator[str]:
    """Yield what pairs lose that share uplinks with others, where no single node or uplink is the reason."""
    if judgement.busy_pairs is not None and not judgement.across_intervals:
        uplinks = "oversubscribed uplinks" if judgement.shared else "slow or oversubscribed uplinks, or noise"
        for change in judgement.across:
            busy = f"{judgement.busy_pairs:,} pairs of nodes that are fast with others lose {-change:.0%}"
            yield f"across    {busy} while many run: {uplinks}; --switches FILE says whose{mark}"
        return
    for change, (low, high) in zip(judgement.across, judgement.across_intervals, strict=True):
        if change < -DELTA:
            perhaps, why = ("", "") if high < -DELTA else ("perhaps ", ", or noise")
            least, most = (round(-end, 3) + 0.0 for end in (high, low))  # no -0.0%
            lost = f"{perhaps}lose {-change:.0%} ({least:.1%} to {most:.1%}) if all run at once"
            yield f"across    pairs across switches {lost}: slow or oversubscribed uplinks{why}{mark}"


def _not_judged(judgement: Judgement) -> str:
    if len(judgement.nodes) == 2:
        return "two nodes form only one pair, which does not show which of them is slow"
    pairs = f"these pairs do not distinguish the {len(judgement.nodes)} nodes"
    if judgement.suspects is None:
        return f"{pairs}: they differ more than their nodes could explain, and more rounds would not change that"
    return f"{pairs}; a longer --budget measures more"


def _late(node: LateNode, names: Sequence[str]) -> str:
    low, high = (fixed(1e3 * end, 2) for end in node.interval)
    after = f"{fixed(1e3 * node.seconds, 2)} ms after its partners (median; 95% {low} to {high})"
    return f"{names[node.node]} arrives at batches {after}, in {node.later} of {node.seen} trials"


def described(effect: Effect) -> str:
    """Return how slow a node is."""
    if effect == UNKNOWN:
        return "it was not measured"
    low, high = effect.interval
    if effect.state is State.UNDECIDED and effect.ratio >= -DELTA:
        return f"uncertain: {1 + low:.0%} to {1 + high:.0%} of the typical node"
    if effect.state is State.EITHER:
        return f"{-effect.ratio:.1%} below the typical node: slow, or healthy behind an oversubscribed uplink"
    perhaps = "" if effect.state is State.SLOW else "perhaps "
    return f"{perhaps}{-effect.ratio:.1%} below the typical node ({-high:.1%} to {-low:.1%})"


def left_out(why: Effect | Uplink | str) -> str:
    """Return why a node was not taken."""
    if isinstance(why, str):
        return why
    if isinstance(why, Effect):
        return described(why)
    slow = f"{-why.effect.ratio:.0%} below the others"
    return f"the uplinks of {why.name} are {slow}" if why.name else f"its leaf's uplinks are {slow}"


def _uplink(uplink: Uplink, names: Sequence[str]) -> str:
    nodes = format_node_list([names[node] for node in uplink.members])
    low, high = uplink.effect.interval
    doubt = ", slow or oversubscribed" if uplink.effect.state is State.EITHER else ""
    how = f"{-uplink.effect.ratio:.1%} below the others ({-high:.1%} to {-low:.1%}){doubt}"
    if uplink.name:
        return f"{uplink.name}'s uplinks: {how}; under it {nodes}"
    return f"an uplink that {nodes} share: {how}; among themselves they are fast"


def _chosen(survey: NodeSurvey, choice: NodeChoice) -> Iterator[str]:
    names = format_node_list([survey.names[node] for node in choice.members])
    yield f"chosen    {names}{survey.mark}"
    yield f"why       {choice.reason}{survey.mark}"
    if choice.band is not None:
        low, high = choice.band
        yield f"predicted all-reduce busbw {fixed(low)}–{fixed(high)} GB/s{survey.mark}"
    if choice.heuristic:
        yield "search    heuristic: switches are filled greedily"
    by_reason: dict[str, list[str]] = defaultdict(list)
    for node, why in choice.left_out:
        own, reason = survey.judgement.nodes[node], left_out(why)
        is_slow = own.state is State.SLOW and reason == described(own)  # a line of its own says how slow
        by_reason["slow" if is_slow else reason].append(survey.names[node])
    yield from (f"left out  {format_node_list(nodes)}: {text}{survey.mark}" for text, nodes in by_reason.items())
