"""The page and the JSON of `collbench predict`: what communication costs a training step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from collbench.jobs.predict.assumptions import (
    Assumed,
    BeyondSizes,
    EqualBlocks,
    General,
    HeadShare,
    LikeOperation,
    LikePair,
    LikeSet,
    OfStep,
    OfStrategy,
    OfTime,
)
from collbench.jobs.predict.contention import OverlapUse
from collbench.jobs.predict.networks import PARAMS
from collbench.jobs.predict.predict import Compared, Cost, PredictedSet, Prediction, Sets
from collbench.jobs.predict.timing import Span
from collbench.judge.stats import DELTA, FEWEST_TRIALS
from collbench.model.operations import Registration
from collbench.model.run import Device, Run, tags
from collbench.model.units import abridged, amount, fixed, size_span, span
from collbench.report import choice_text
from collbench.report.prose import NARROW, filled, named
from collbench.report.text.frame import header, origin, sim
from collbench.report.text.layout import Block, short, table, whole

FORMAT, VERSION = "collbench-prediction", 1
_INDENT = " " * 10
_LEGEND = """\
sent: what each GPU sends in a step. raw: all transfers one after the other;
exposed: the part that compute waits for, as scheduled; band: with perfect
overlap, and with none. Shares are of the step. lost: worst minus best; its
share is of the best set's step"""
_LOSING_LEGEND = """\
sent: what each GPU sends in a step. raw: all transfers one after the other,
isolated; exposed: compute's wait plus its slowdown by overlapping transfers, as
scheduled; band: with perfect overlap, and with none. Shares are of the step.
lost: worst minus best; its share is of the best set's step"""
_RAW_LEGEND = """\
sent: what each GPU sends in a step. raw: all transfers one after the other.
lost: worst minus best"""


@dataclass(frozen=True, slots=True)
class _Scale:
    """The unit of a page's times, and how many units a second has."""

    unit: str
    per_second: float

    def figure(self, seconds: float) -> str:
        """Return a time with three significant digits: "0.84", "22.4"; above 100 all digits, "1530"."""
        value = _unsigned(seconds * self.per_second, 2)
        if abs(value) >= 99.95:
            return f"{value:.0f}"
        return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"

    def band(self, times: Span) -> str:
        """Return "0.00–5.28"."""
        return f"{self.figure(times[0])}–{self.figure(times[2])}"

    def known(self, times: Span) -> str:
        """Return the middle, with the band unless its ends print alike: "1.32 (1.01–2.08)"."""
        narrow = self.figure(times[0]) == self.figure(times[2])
        return self.figure(times[1]) + ("" if narrow else f" ({self.band(times)})")


_MS, _S = _Scale("ms", 1e3), _Scale("s", 1.0)
_MANY_SECONDS, _MANY_BYTES = 9.9995, 999.9e9  # from here on a table in ms or MB would break 80 columns


def _printed(seconds: float) -> str:
    """Return a time in a sentence: "22.4 ms", "12.3 s"."""
    scale = _S if abs(seconds) >= _MANY_SECONDS else _MS
    return f"{scale.figure(seconds)} {scale.unit}"


def page(run: Run, prediction: Prediction) -> Iterator[Block]:
    """Yield the page's blocks: the question, a table for each number of GPUs, assumptions, and conclusions."""
    mark = sim(run, " (sim)")
    timed = prediction.question.step_seconds is not None
    costs = [cost for case in prediction.cases for cost in (case.best, case.worst) if cost]
    longest = max(seconds for cost in costs for seconds in (*cost.raw, *(cost.step or ())))
    scale = _S if longest >= _MANY_SECONDS else _MS
    concluded = "\n".join(filled(sentence, NARROW) for sentence in conclusions(prediction, mark))
    yield from short(Text(concluded))
    yield from whole("header", Text(f"{header(run)}\n{_question(prediction)}"))
    titles = [filled(_title(run, prediction, gpus) + mark, NARROW, rest=_INDENT) for gpus in prediction.question.gpus]
    yield from short(Text("\n" + "\n".join(titles)), _overview(prediction.cases, scale, timed=timed))
    for gpus, title in zip(prediction.question.gpus, titles, strict=True):
        rows = _table([case for case in prediction.cases if case.gpus == gpus], scale, timed=timed)
        yield from whole("tables", Text(f"\n{title}"), rows)
    legend = (_LOSING_LEGEND if prediction.overlap else _LEGEND) if timed else _RAW_LEGEND
    yield from whole("tables", Text(f"\n{legend}"))
    lines = [
        f"left out  {run.devices[excluded.member].tag}: {choice_text.left_out(excluded)}"
        for excluded in prediction.left_out
    ]
    lines += [named(f"left out  {gpus} GPUs: {why}", NARROW) for gpus, why in prediction.unpredicted]
    lines += [named(f"overlap   {line}", NARROW) for line in _overlap_lines(run, prediction)]
    yield from short(Text("\n".join(["", *lines, origin(run), _question(prediction)])))
    lines += [named(f"assumed   {assumption}", NARROW) for assumption in assumptions(prediction.assumed, run.devices)]
    yield from whole("notes", Text("\n" + "\n".join(lines)))
    yield from whole("verdicts", Text(f"\n{concluded}"))


def _overview(cases: Sequence[PredictedSet], scale: _Scale, *, timed: bool) -> Table:
    """Return the short page's table: a row for each number of GPUs and strategy, on the best and the worst set."""
    what = "exposed" if timed else "raw"
    heads = ["GPUs", "strategy", f"{what} on best, {scale.unit}", f"on worst, {scale.unit}"]
    if timed:
        heads.append("step longer by")
    rows = table(*heads, left=("strategy",), keys=2)
    for case in cases:
        figures = []
        for cost in (case.best, case.worst):
            if cost is None:
                figures.append("-")
                continue
            figures.append(scale.figure(cost.exposed[1]) if timed and cost.exposed else scale.known(cost.raw))
        lost = [_percent(case.lost_share)] if timed else []
        rows.add_row(str(case.gpus), case.strategy, *figures, *lost)
    return rows


def as_json(run: Run, prediction: Prediction) -> dict[str, Any]:
    """Return the prediction in JSON's own types, as docs/predict.md describes them: seconds, bytes and ratios."""
    question, network = prediction.question, prediction.question.network
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "backend": run.backend,
        "fabric": run.machine.fabric,
        "hostname": run.machine.hostname,
        "started": run.started,
        "model": {
            "name": network.name,
            "parameters": network.parameters,
            "blocks": len(network.blocks),
            "source": network.source,
        },
        "parameter_bytes": question.parameter_bytes,
        "gradient_bytes": question.gradient_bytes,
        "micro_batches": question.micro_batches,
        "bucket_bytes": question.bucket_bytes,
        "shard": question.shards,
        "step_seconds": question.step_seconds,
        "measured_on_best": question.measured_on_best,
        "gpu_seconds": question.gpu_seconds,
        "host_phases": question.host_phases and list(question.host_phases.shares),
        "cases": [_case_json(run, case, compared(prediction.sets[case.gpus])) for case in prediction.cases],
        "left_out": [
            {"device": run.devices[o.member].tag, "reason": choice_text.left_out(o)} for o in prediction.left_out
        ],
        "unpredicted": [{"gpus": gpus, "reason": why} for gpus, why in prediction.unpredicted],
        "assumptions": [*assumptions(prediction.assumed, run.devices)],
        "registration": prediction.registration.value,
        "overlap": [_use_json(run, use) for use in prediction.overlap],
    }


def _use_json(run: Run, use: OverlapUse) -> dict[str, Any]:
    curve = use.curve
    return {
        "operation": use.operation.value,
        "devices": [run.devices[position].tag for position in use.members],
        "source": curve.source,
        "measured_operation": curve.operation.value,
        "measured_devices": [run.devices[position].tag for position in curve.members],
        "measured_sizes": list(curve.sizes),
        "nccl": curve.nccl,
        "compute": str(curve.compute),
        "unused": curve.unused,
        "sizes": [round(size) for size in use.sizes],
        "collective_factor": list(use.transfers),
        "compute_factor": list(use.compute),
        "borrowed": use.borrowed,
        "elsewhere": use.elsewhere,
        "beyond": use.beyond,
    }


def _case_json(run: Run, case: PredictedSet, note: str) -> dict[str, Any]:
    return {
        "strategy": case.strategy,
        "gpus": case.gpus,
        "sent_bytes": {operation.value: size for operation, size in case.sent.items()},
        "messages": {operation.value: count for operation, count in case.messages.items()},
        "bus_bytes": round(case.bus_bytes),
        "compute_seconds": case.compute,
        "best": _cost_json(run, case.best),
        "worst": _cost_json(run, case.worst) if case.worst else None,
        "lost_seconds": _span_json(case.lost),
        "lost_share": case.lost_share,
        "note": note,
    }


def _cost_json(run: Run, cost: Cost) -> dict[str, Any]:
    return {
        "devices": [run.devices[position].tag for position in cost.members],
        "raw_seconds": _span_json(cost.raw),
        "exposed_seconds": _span_json(cost.exposed),
        "step_seconds": _span_json(cost.step),
        "slowed_seconds": cost.slowed,
        "raw_share": cost.share(cost.raw),
        "exposed_share": cost.share(cost.exposed) if cost.exposed else None,
    }


def _span_json(times: Span | None) -> dict[str, float] | None:
    return None if times is None else dict(zip(("low", "middle", "high"), times, strict=True))


def _question(prediction: Prediction) -> str:
    question, network = prediction.question, prediction.question.network
    count = network.parameters
    many = f"{fixed(count / 1e9)}B" if count >= 10**9 else f"{fixed(count / 1e6)}M"
    size = "" if network.source == PARAMS else f" {many} parameters,"
    lines = [
        named(f"model     {network.name}:{size} {len(network.blocks)} blocks ({network.source})", NARROW),
        f"bytes     {question.parameter_bytes} per parameter, {question.gradient_bytes} per gradient; "
        f"{question.micro_batches} micro-batch{'' if question.micro_batches == 1 else 'es'} per step",
    ]
    if question.step_seconds is None:
        lines.append("step      not given, so only raw communication times are predicted")
    else:
        what = "measured on the best set, communication included" if question.measured_on_best else "of compute alone"
        own = question.gpu_seconds
        host = f"; {_printed(own)} if the GPU never waited for the host" if own is not None else ""
        lines.append(named(f"step      {_printed(question.step_seconds)} {what}{host}", NARROW))
    if prediction.registration is not Registration.NONE:
        lines.append(f"memory    registered ({prediction.registration}): the times are those on such memory")
    return "\n".join(lines)


def _overlap_lines(run: Run, prediction: Prediction) -> Iterator[str]:
    """Yield the measured cost of overlap, a line for operations with equal costs, or that it was not measured."""
    if prediction.question.step_seconds is None:
        return
    if not prediction.overlap:
        yield (
            "not measured: the step assumes that communication and compute do not slow each other; "
            "'collbench overlap' measures it"
        )
    titles: dict[str, list[str]] = defaultdict(list)
    for operation, curve in dict.fromkeys((use.operation, use.curve) for use in prediction.overlap):
        uses = [use for use in prediction.overlap if (use.operation, use.curve) == (operation, curve)]
        transfers, compute = _factors([use.transfers for use in uses]), _factors([use.compute for use in uses])
        mark = sim(run, " (sim)")
        cost = f"{transfers}, compute {compute} overlapping {curve.compute}{mark}, {Path(curve.source).name}"
        titles["; ".join([cost, *_doubts(run, uses, prediction.registration)])].append(operation.collective.title)
    yield from (f"{_listed(names)} {clause}" for clause, names in titles.items())


def _doubts(run: Run, uses: Sequence[OverlapUse], registration: Registration) -> Iterator[str]:
    """Yield the differences between the measured overlap and that of the step."""
    curve = uses[0].curve
    if uses[0].borrowed:
        yield f"taken from {curve.operation.collective.title}"
    if any(use.elsewhere for use in uses):
        yield f"measured on {tags(curve.members, run.devices)}"
    if any(use.beyond for use in uses):
        yield f"sizes beyond {size_span(curve.sizes)}: as at the nearest measured size"
    if curve.unused:
        yield f"{amount(curve.unused, 'data point')} unused: failed, or fewer than three trials"
    if curve.nccl != run.machine.nccl:
        yield f"measured with NCCL {curve.nccl or 'unknown'}, the transfer times with {run.machine.nccl or 'unknown'}"
    if registration is not Registration.NONE:
        yield "measured on unregistered memory"


def _factors(ranges: Sequence[tuple[float, float]]) -> str:
    """Return the lowest and the highest of some factors: "1.90–10.40x"."""
    low, high = min(ends[0] for ends in ranges), max(ends[1] for ends in ranges)
    return f"{span(f'{low:.2f}', f'{high:.2f}', '–')}x"


def _title(run: Run, prediction: Prediction, gpus: int) -> str:
    sets = prediction.sets[gpus]
    best, worst = (tags(devices or (), run.devices) for devices in (sets.best, sets.worst))
    title = f"{gpus} GPUs: best {best}" + (f"; worst {worst}" if worst else "")
    note = compared(sets)
    return title + (f" ({note})" if note else "")


def _table(cases: Sequence[PredictedSet], scale: _Scale, *, timed: bool) -> Table:
    unit, size = ("GB", 1e9) if max(case.bus_bytes for case in cases) >= _MANY_BYTES else ("MB", 1e6)
    heads = ["strategy", "set", f"{unit} sent", f"raw {scale.unit}"]
    heads += ["share", f"exposed {scale.unit}", "band", "share", f"step {scale.unit}"] if timed else []
    rows = table(*heads, left=("strategy", "set"))
    for case in cases:
        rows.add_row(case.strategy, "best", f"{case.bus_bytes / size:,.0f}", *_figures(case.best, scale))
        if case.worst:
            rows.add_row("", "worst", "", *_figures(case.worst, scale))
            rows.add_row("", "lost", "", *_losses(case, case.worst, scale))
    return rows


def _figures(cost: Cost, scale: _Scale) -> list[str]:
    if cost.exposed is None or cost.step is None:
        return [scale.known(cost.raw)]
    raw = scale.figure(cost.raw[1])
    exposed = [scale.figure(cost.exposed[1]), scale.band(cost.exposed), _percent(cost.share(cost.exposed))]
    return [raw, _percent(cost.share(cost.raw)), *exposed, scale.figure(cost.step[1])]


def _losses(case: PredictedSet, worst: Cost, scale: _Scale) -> list[str]:
    """Return the worst set's figures minus the best's; shares are of the best set's step."""
    raw = scale.figure(worst.raw[1] - case.best.raw[1])
    if case.lost is None or case.lost_share is None:
        return [raw]
    lost = scale.figure(case.lost[1])
    return [raw, "", lost, scale.band(case.lost), _percent(case.lost_share), lost]


def conclusions(prediction: Prediction, sim: str = "") -> Iterator[str]:
    """Yield a sentence for each number of GPUs: for which strategies the choice of a set matters."""
    timed = prediction.question.step_seconds is not None
    for gpus in prediction.question.gpus:
        cases = [case for case in prediction.cases if case.gpus == gpus]
        sets = prediction.sets[gpus]
        if sets.worst is None:
            exposed = [f"{case.strategy} {_printed(case.best.exposed[1])}" for case in cases if case.best.exposed]
            none = "no set is predicted to be slower than the best" if sets.by is Compared.ALL else ""
            known = "; ".join(filter(None, (none, compared(sets))))
            yield f"On {gpus} GPUs{sim} {known}" + (
                f". Exposed communication per step: {_listed(exposed)}." if exposed else "."
            )
        else:
            matters = _matters(cases, sets) if timed else _communicates(cases)
            yield f"On {gpus} GPUs{sim} {'; '.join((matters, *_doubtful(sets)))}."
    if not timed:
        yield "Add --step-time TIME to predict how much of this is hidden behind compute."


def _matters(cases: Sequence[PredictedSet], sets: Sets) -> str:
    """Return which strategies lose on the worst set, and how much of a step."""
    same, lost, gained = _by_loss(cases)
    parts = []
    if same:
        most = max(cost.exposed[1] for case in same for cost in (case.best, case.worst) if cost and cost.exposed)
        leave = "leaves" if len(same) == 1 else "leave"
        names = _listed([case.strategy for case in same])
        parts.append(f"{names} {leave} at most {_printed(most)} exposed on either set")
        parts[0] += ": the choice does not matter" if sets.whole else ""
    if lost:
        parts.append(f"the worst set lengthens a step by {_listed([*map(_lost, lost)])}")
    if gained:
        shortened = _listed([*map(_lost, gained)])
        parts.append(f"the worst set shortens a step by {shortened}, because it suits their groups better")
    return "; ".join(parts)


def _communicates(cases: Sequence[PredictedSet]) -> str:
    """Return how much longer each strategy communicates on the worst set; the step's length is not known."""
    same, lost, gained = _by_loss(cases)
    parts = []
    if same:
        names, verb = _listed([case.strategy for case in same]), "communicates" if len(same) == 1 else "communicate"
        parts.append(f"{names} {verb} as long on either set, within {DELTA:.0%}")
    if lost:
        parts.append(f"a step communicates longer on the worst set, by {_listed([*map(_lost, lost)])}")
    if gained:
        shorter = _listed([*map(_lost, gained)])
        parts.append(f"a step communicates less on the worst set, by {shorter}, because it suits their groups better")
    return "; ".join(parts)


def _by_loss(cases: Sequence[PredictedSet]) -> tuple[list[PredictedSet], list[PredictedSet], list[PredictedSet]]:
    """Return the cases that are as long on the worst set as on the best, that are longer, and that are shorter."""
    same = [case for case in cases if abs(case.longer) < DELTA]
    return same, [case for case in cases if case.longer >= DELTA], [case for case in cases if case.longer <= -DELTA]


def _lost(case: PredictedSet) -> str:
    if case.lost is None:
        return ""
    share = "" if case.lost_share is None else f" ({_percent(abs(case.lost_share))})"
    return f"{_printed(abs(case.lost[1]))}{share} with {case.strategy}"


def _doubtful(sets: Sets) -> Iterator[str]:
    """Yield why a worse set than those that were compared may exist."""
    if sets.unmeasured:
        yield f"{amount(sets.unmeasured, 'pair')} not measured, so a worse set may exist"
    if sets.trials is not None:
        yield f"uncertain: some sets have {sets.trials} of the {FEWEST_TRIALS} trials needed to estimate noise"


def _listed(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.0%}" if abs(share) >= 0.0995 else f"{_unsigned(share, 3):.1%}"


def _unsigned(value: float, digits: int) -> float:
    """Return a value; 0 for one that is printed as 0, because "-0.0%" claims a direction."""
    return value if round(value, digits) else 0.0


_COMPARED = {
    Compared.ALL: "",
    Compared.HEURISTIC: "best and worst by a heuristic search",
    Compared.ONE_SET: "there is one set of {k}, so there is nothing to choose",
    Compared.MEASURED: "of the sets that were measured",
    Compared.ONE_MEASURED: "one set of {k} and no pairs were measured, so there is nothing to compare",
}


def compared(sets: Sets) -> str:
    """Return which sets a prediction compares; "" for all sets."""
    known = (
        _COMPARED[sets.by].format(k=len(sets.best)) if isinstance(sets.by, Compared) else choice_text.grounds(sets.by)
    )
    return "; ".join(filter(None, (known, *_doubtful(sets))))


# The assumptions of a prediction, as text.

_MOST_SETS = 3

_LAST_MICRO_BATCH = "once a step, on the last micro-batch (no_sync before)"
_GATHERS_OVERLAP = "each unit is gathered while the previous unit computes"
_DDP_BUCKETS = "in DDP's buckets; the new parameters are gathered in one message after the optimizer"
# What each strategy sends, and when.
_STRATEGIES = {
    "ddp": f"gradients are all-reduced {_LAST_MICRO_BATCH}, in buckets, as backward fills them",
    "zero1": f"gradients are reduce-scattered {_LAST_MICRO_BATCH}, {_DDP_BUCKETS}",
    "zero2": f"gradients are reduce-scattered on every micro-batch, {_DDP_BUCKETS}",
    "zero3": f"every unit is gathered before its forward and its backward of every micro-batch; {_GATHERS_OVERLAP}",
    "fsdp": f"PyTorch's fully_shard on every block, the root gathered from forward to backward; {_GATHERS_OVERLAP}",
    "hsdp": "as fsdp among the GPUs of one copy, neighbors in rank, then an all-reduce among the copies; "
    "best and worst are by a collective over all GPUs",
}
_GENERAL = {
    General.BACKWARD: "backward takes 2/3 of a step's compute, each layer its share of the multiply-adds",
    General.OVERLAP_MEASURED: "one transfer at a time; while it overlaps compute, both are slower by the factors of "
    "the overlap runs",
    General.OVERLAP_FREE: "one transfer at a time, and it does not slow compute: communication kernels take no SMs "
    "from compute",
    General.HOST_LAUNCHES: "the GPU runs a kernel only after the host launched it; each layer takes a share of the "
    "host's time by its tensors; the host starts with the GPU and never waits for it; the step ends when both end",
    General.OPTIMIZER: "the optimizer's GPU time counts as backward",
    General.HOST_PHASES: "the host takes 1/3 of its time for forward, 2/3 for backward and none for the optimizer; "
    "--host-phases changes this",
}


def assumptions(assumed: Sequence[Assumed], devices: Sequence[Device]) -> Iterator[str]:
    """Yield each assumption as a clause; one about a time begins with its operations and devices."""
    for one in assumed:
        where = ""
        if one.operations:
            operations = _listed([operation.collective.title for operation in one.operations])
            sets = abridged([tags(positions, devices) for positions in one.sets], _MOST_SETS, "; ")
            where = f"{operations} on {sets}: "
        yield from (f"{where}{text}" for text in _texts(one.what, devices))


def of_times(assumed: Sequence[OfTime], devices: Sequence[Device]) -> str:
    """Return the assumptions about one time as text, "" for none."""
    return ", ".join(text for one in assumed for text in _texts(one, devices))


def _texts(what: OfTime | OfStep, devices: Sequence[Device]) -> Iterator[str]:
    match what:
        case LikeOperation(operation, share):
            times = {0.5: "half the bytes", 1.0: "the same bytes", 2.0: "twice the bytes"}[share]
            yield f"as long as the measured {operation.collective.title} of {times}"
        case LikeSet(positions, further):
            also = "".join(f", {text}" for text in _texts(further, devices)) if further else ""
            yield f"as on {tags(positions, devices)}, which are predicted alike{also}"
        case LikePair(rates, operation, pair):
            shape = f"the {operation.collective.title} of {tags(pair, devices)}"
            yield f"a ring at {choice_text.band(rates)} ({choice_text.band_basis(rates)}), shaped as {shape}"
        case BeyondSizes(least, most):
            yield f"sizes beyond the measured {size_span((least, most))} by extrapolation of latency and bandwidth"
        case EqualBlocks(count, guessed):
            if guessed:
                yield f"{count} layers, the default of --layers"
            yield f"all parameters are in {count} equal transformer blocks, none in embeddings"
        case HeadShare(share):
            others = "the other layers their share of the multiply-adds"
            yield f"head and loss take {share:.0%} of the GPU's time, {others}"
        case OfStrategy(name):
            yield f"{name}: {_STRATEGIES[name]}"
        case General():
            yield _GENERAL[what]
