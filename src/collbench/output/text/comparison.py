"""The pages and the JSON of `collbench compare`: two runs, reference figures, many runs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from collbench.analysis.compare import Change, Comparison, Difference, Group, Kind, Subject, Verdict
from collbench.analysis.outcome import outcome
from collbench.analysis.physics import Nvls
from collbench.analysis.references import Answer, Answers, ReferenceVerdict, Unknown
from collbench.analysis.tiers import kind_of
from collbench.analysis.trend import Line, Trend
from collbench.model.operations import Work
from collbench.model.run import Run
from collbench.model.units import TELLING_BYTES, amount, counted, figure, fixed, format_size, size_span
from collbench.output import sentences
from collbench.output.differences import described
from collbench.output.text.frame import alarm, header, not_judged, origin, sim
from collbench.output.text.layout import Block, Lines, both, filled, short, table, whole
from collbench.runfile.codec import plain

# The page of `collbench compare` for many runs: each work at its largest size by date, then the last by the first.


def trend_page(trend: Trend, names: tuple[str, ...]) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks; `names` are the files', by date as the runs are."""
    mark = sim(trend.runs[0], "sim: ")
    yield from alarms(trend.last)
    yield from short(_verdict(trend.last, mark))
    yield from both("header", Text(_backend(trend.runs[0])))
    dates, lines = list[str](), list[str]()
    for number, (run, steps, name) in enumerate(zip(trend.runs, trend.steps, names, strict=True), 1):
        dates.append(f"run {number:<5} {run.started} {name}")
        # What differs from the run before it.
        lines += [dates[-1], *(f"          {_differs(one, trend.runs[number - 2])}" for one in steps)]
    yield from whole("header", Text("\n".join(lines)))
    differences = [
        f"differs   {_differs(one, trend.last.base)}"
        for one in trend.last.differences
        if one.subject is not Subject.STARTED
    ]
    yield from short(Text("\n".join([*dates[-_FEW_RUNS:], *differences[:_FEW_RUNS]])))
    # The work that lost most to its first run comes first.
    for index, line in enumerate(sorted(trend.lines, key=lambda line: line.points[-1].change)):
        several = "" if line.device_sets == 1 else f", {line.device_sets} sets of devices"
        title = f"{line.work} at {format_size(line.size_bytes)}, GB/s{several}"
        blocks = (Text(f"\n{mark}{title}"), _trend_table(trend, line))
        yield from both("tables", *blocks) if index == 0 else whole("tables", *blocks)
    yield from both("tables", Text(f"\nrun {len(trend.runs)} against run 1, each data point"))
    yield from body(trend.last, (names[0], names[-1]), _FEWEST)


def _backend(run: Run) -> str:
    simulated = sim(run, "sim: SIMULATED machines, nothing here was measured on a GPU")
    return f"backend   {simulated or run.backend}"


def _trend_table(trend: Trend, line: Line) -> RenderableType:
    left = ("run", "date", "where", "worse than run 1")
    rows = table("run", "date", "median", "change", "worst", *left[2:], left=left)
    devices = trend.runs[0].devices
    for point in line.points:
        where = "-".join(devices[position].tag for position in point.worst if position >= 0)
        worse = f"{point.worse} of {point.compared}" if point.worse else ("no" if point.run else "-")
        change = f"{point.change:+.1%}" if point.run else "-"
        date = trend.runs[point.run].started[:16].replace("T", " ")
        worst = figure(point.worst_gbs)
        rows.add_row(str(point.run + 1), date, figure(point.median_gbs), change, worst, where, worse)
    return rows


# The page of `collbench compare --reference`: normal, below or above, by which band, and who says so of what.

_STANDING_STYLES = {
    ReferenceVerdict.BELOW: "bold red",
    ReferenceVerdict.NORMAL: "bold green",
    ReferenceVerdict.ABOVE: "bold cyan",
    ReferenceVerdict.NOT_JUDGED: "bold red",
    ReferenceVerdict.FAILED: "bold red",
}


def reference_page(answers: Answers, width: int) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks: the run, each figure's answer, what no figure speaks for, and a verdict.

    Sentences are broken to `width` columns.
    """
    yield from alarm(answers.run)
    if not answers.judged:
        yield not_judged(
            f"{reference_conclusion(answers).rstrip('.')}; compare it with an earlier healthy run of this machine"
        )
    conclusion = Text(
        reference_conclusion(answers), style=_STANDING_STYLES[ReferenceVerdict.BELOW] if answers.below else ""
    )
    yield from short(conclusion)
    yield from whole("header", Lines(header(answers.run)), Text(""))
    for answer in answers.answers:
        first, source = _answer_lines(answers, answer, width)
        yield from both("tables", first)
        yield from whole("tables", source)
    lines = [*_unknown(answers, width)]
    if lines:
        yield from whole("notes", Text("\n".join(lines)))
    yield from whole("verdicts", conclusion)
    yield from short(Lines(f"\n{origin(answers.run)}"))


def reference_conclusion(answers: Answers) -> str:
    """Return the verdict in one sentence."""
    if not answers.known:
        return f"There is no reference figure for this kind of machine: {_kind(answers)}."
    if not answers.answers:
        return f"There is no reference figure for what this run measured on {_kind(answers)}."
    standings = Counter(answer.standing for answer in answers.answers)
    counts = ", ".join(f"{standings[one]} {one.value}" for one in ReferenceVerdict if standings[one])
    if answers.below:
        return f"Significantly below what healthy machines of this kind reach ({counts})."
    if not answers.judged:
        return f"No reference figure gives a significant answer ({counts})."
    if set(standings) == {ReferenceVerdict.NORMAL}:
        return f"Normal according to {amount(len(answers.answers), 'reference figure')}."
    return f"Nothing is significantly below its band ({counts})."


def normality(answers: Answers) -> str:
    """Return in a line whether a run is normal for its kind of machine, by the figure that it does worst against."""
    if not answers.known or not answers.answers:
        return f"not judged: no reference figure for {_kind(answers)}"
    if not answers.judged:
        return reference_conclusion(answers).rstrip(".")
    order = (ReferenceVerdict.FAILED, ReferenceVerdict.BELOW, ReferenceVerdict.ABOVE, ReferenceVerdict.NORMAL)
    judged = [answer for answer in answers.answers if answer.standing in order]
    worst = min(judged, key=lambda answer: order.index(answer.standing))
    work = Work(worst.figure.operation, worst.figure.variant)
    where = f"{work} at {format_size(worst.size_bytes)}{_on(work, worst.figure.ranks, worst)}"
    return f"{worst.standing.value}: {where} reached {_measured(answers, worst)}; {_band(worst)}"


def _kind(answers: Answers) -> str:
    labels = sorted({path.label for path in answers.run.paths})
    return ", ".join([counted(device.name for device in answers.run.devices), *labels])


def _answer_lines(answers: Answers, answer: Answer, width: int) -> tuple[Text, Text]:
    source = answer.figure
    work = Work(source.operation, source.variant)
    what = f"{work} at {format_size(answer.size_bytes)}{_on(work, source.ranks, answer)}"
    failed = answer.standing is ReferenceVerdict.FAILED
    where = f" on {sentences.device_sets(answer.failed, answers.run.devices)}" if failed else ""
    first = Lines(f"{sim(answers.run, 'sim: ')}{what}: ")
    first.append(answer.standing.value, style=_STANDING_STYLES.get(answer.standing, ""))
    first.append(f"{where}, {_measured(answers, answer)}; {_band(answer)}{_beaten(answers, answer)}")
    condition = f"; {_mismatch(answer)}" if answer.mismatch else ""
    nvls = f", NVLS {source.nvls}" if source.nvls else ""
    nccl = f", NCCL {source.nccl}" if source.nccl else ""
    origins = f"{source.machine}{nvls}{nccl}: {source.conditions} [{source.source}]{condition}"
    return first, Text(filled(origins, width, "  ", "  "))


def _beaten(answers: Answers, answer: Answer) -> str:
    """Return what is impossible, for which the figure is not judged."""
    impossible = answer.impossible
    if answer.standing is not ReferenceVerdict.NOT_JUDGED or impossible is None:
        return ""
    where = sentences.device_sets([impossible.capacity.devices], answers.run.devices)
    what = f"{impossible.point.work} at {format_size(impossible.point.size_bytes)}"
    limit = figure(impossible.capacity.gbs)
    return f"; {what} reached {figure(impossible.rate_gbs)} GB/s, and the capacity of {where} is {limit}"


def _on(work: Work, ranks: int, answer: Answer) -> str:
    if work.operation.is_collective:
        return f" on {ranks} GPUs"
    return f" on {amount(len(answer.sets), 'device' if kind_of(work) == 'device' else 'link')}"


def _measured(answers: Answers, answer: Answer) -> str:
    least, most = answer.sets[0], answer.sets[-1]
    if len(answer.sets) == 1:
        return f"{figure(least.gbs)} GB/s"
    where = "-".join(answers.run.devices[position].tag for position in least.members)
    below = sum(one.standing is ReferenceVerdict.BELOW for one in answer.sets)
    many = f", {below} of {len(answer.sets)} below" if 0 < below < len(answer.sets) else ""
    return f"{figure(least.gbs)} to {figure(most.gbs)} GB/s, lowest on {where}{many}"


def _band(answer: Answer) -> str:
    low, high = answer.figure.band
    if high is None:
        return f"required: {figure(low)} or more"
    return f"band {figure(low)} to {figure(high)}"


def _unknown(answers: Answers, width: int) -> Iterator[str]:
    if not answers.known:
        return
    plain = [one for one in answers.unknown if not one.others]
    if plain:
        names = ", ".join(_name(one) for one in plain)
        yield filled(f"there is no reference figure for {names} on {_kind(answers)}", width)
    for one in answers.unknown:
        if one.others:
            sizes = size_span([size for figure_ in one.others for size in figure_.sizes])
            yield f"there is no reference figure for {_name(one)} at this run's sizes and labels, only for {sizes}"
    if answers.nvls is Nvls.UNKNOWN and any(answer.figure.nvls for answer in answers.answers):
        yield "it is unknown whether NVLS was used: 'collbench allreduce --algorithms' asks NCCL"


def _name(one: Unknown) -> str:
    many = f" on {one.ranks} GPUs" if one.work.operation.is_collective else ""
    return f"{one.work}{many}"


# What `collbench compare --json` prints (docs/exchange.md): comparisons, trends, answers of the reference figures.

_VERSION = 1
_Json = dict[str, Any]
_OF_A_CHANGE = (
    *("base_gbs", "new_gbs", "base_seconds", "new_seconds", "ratio", "delta", "regressed"),
    *("interval", "verdict", "trials"),
)


def of_comparison(comparison: Comparison, status: int) -> str:
    """Return a comparison as JSON text; members are positions of the base, of `only_new` those of the new run."""
    return _dumps("collbench-comparison", status, _comparison(comparison))


def of_trend(trend: Trend, status: int) -> str:
    """Return a trend as JSON text: its lines, and the last run against the first."""
    before = (trend.runs[0], *trend.runs)
    runs = [
        _run(run) | {"differences": _differences(steps, base)}
        for base, run, steps in zip(before, trend.runs, trend.steps, strict=False)
    ]
    body = {"runs": runs, "lines": plain(trend.lines), "last": _comparison(trend.last)}
    return _dumps("collbench-trend", status, body)


def of_answers(answers: Answers, status: int) -> str:
    """Return the results of the reference figures for a run as JSON text; members are positions of the run."""
    body = {
        "run": _run(answers.run),
        "nvls": answers.nvls.value,
        "known": answers.known,
        "answers": [_answer_json(answer) for answer in answers.answers],
        "unknown": [
            {"operation": one.work.operation.value, "variant": one.work.variant.value, "ranks": one.ranks}
            for one in answers.unknown
        ],
    }
    return _dumps("collbench-reference", status, body)


def _dumps(name: str, status: int, body: _Json) -> str:
    head = {"format": name, "format_version": _VERSION, "exit_status": status}
    return json.dumps(head | body, indent=1, ensure_ascii=False) + "\n"


def _comparison(comparison: Comparison) -> _Json:
    return {
        "base": _run(comparison.base),
        "new": _run(comparison.new),
        "devices": matched(comparison),
        "differences": _differences(comparison.differences, comparison.base),
        "fail_below": comparison.fail_below,
        "counts": {verdict.value: comparison.count(verdict) for verdict in Verdict},
        "groups": plain(comparison.groups),
        "points": [
            plain(change.key) | {name: plain(getattr(change, name)) for name in _OF_A_CHANGE}
            for change in comparison.changes
        ],
        "only_base": plain(comparison.only_base),
        "only_new": plain(comparison.only_new),
    }


def _differences(differences: Sequence[Difference], base: Run) -> list[_Json]:
    return [dict(zip(("what", "base", "new"), described(one, base.devices), strict=True)) for one in differences]


def _run(run: Run) -> _Json:
    machine = run.machine
    return {
        "started": run.started,
        "backend": run.backend,
        "fabric": machine.fabric,
        "hostname": machine.hostname,
        "driver": machine.driver,
        "nccl": machine.nccl,
        "devices": [device.tag for device in run.devices],
    }


def _mismatch(answer: Answer) -> str:
    return f"NVLS {answer.figure.nvls} in the reference, {answer.mismatch} in this run" if answer.mismatch else ""


def _answer_json(answer: Answer) -> _Json:
    figure = answer.figure
    low, high = figure.band
    return {
        "operation": figure.operation.value,
        "variant": figure.variant.value,
        "ranks": figure.ranks,
        "size_bytes": answer.size_bytes,
        "standing": answer.standing.value,
        "band_gbs": [low, high],
        "device_sets": plain(answer.sets),
        "mismatch": _mismatch(answer),
        "impossible": _impossible_json(answer),
        "machine": figure.machine,
        "nvls": figure.nvls,
        "nccl": figure.nccl,
        "conditions": figure.conditions,
        "source": figure.source,
    }


def _impossible_json(answer: Answer) -> _Json | None:
    """Return the data point of the run that beats its limit, for which an answer is not judged."""
    impossible = answer.impossible
    if impossible is None:
        return None
    point, limit = impossible.point, impossible.capacity
    data_point = {"work": str(point.work), "members": list(point.members), "size_bytes": point.size_bytes}
    return data_point | {"gbs": impossible.rate_gbs, "limit_gbs": limit.gbs, "devices": list(limit.devices)}


# The page of `collbench compare`: other differences, what became worse or better, counts, a verdict.

_MOST_ROWS = 20  # rows of a verdict; the JSON has all
_FEW_ROWS, _FEWEST = 7, 4  # on the short page, of two runs and of many
_FEW_RUNS = 8  # lines about runs on the short page
_MOST_NAMES = 6
_STYLES = {Verdict.WORSE: "bold red", Verdict.BETTER: "bold green"}
_LEGEND = """\
bandwidth: new / base, with simultaneous 99 % intervals. worse, better:
significantly beyond δ (2 %, below 1M 6 %, at least the run-to-run variation);
same: within δ (90 % interval); undecided: neither"""


def page(comparison: Comparison, names: tuple[str, str]) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks; `names` are the two files'."""
    yield from alarms(comparison)
    yield from short(_verdict(comparison, sim(comparison.base, "sim: ")))
    yield from body(comparison, names)


def body(comparison: Comparison, names: tuple[str, str], few: int = _FEW_ROWS) -> Iterator[RenderableType | Block]:
    """Yield the page without its alarms; of each table the short page has `few` rows."""
    lines = list(head(comparison, names))
    yield from whole("header", Text("\n".join(lines)))
    if few == _FEW_ROWS:
        yield from short(Text("\n".join(lines[:_FEW_RUNS])))
    for verdict in (Verdict.WORSE, Verdict.BETTER):
        yield from whole("tables", *_groups(comparison, verdict, _MOST_ROWS), *_points(comparison, verdict, _MOST_ROWS))
        yield from short(*_groups(comparison, verdict, few), *_points(comparison, verdict, few))
    yield from whole("notes", Text(f"\n{_LEGEND}\n"))
    yield from short(Text())
    yield Text("\n".join(_counts(comparison)))
    yield from whole("verdicts", _verdict(comparison))


def _verdict(comparison: Comparison, before: str = "") -> Text:
    return Text(f"{before}{conclusion(comparison)}", style=_STYLES[Verdict.WORSE] if comparison.regressions else "")


def alarms(comparison: Comparison) -> Iterator[Text]:
    """Yield what comes before all else: what failed in the new run, and what could not be compared."""
    yield from alarm(comparison.new)
    if not comparison.judged:
        yield not_judged(
            "no data point has three trials in both runs, the fewest that show noise: measure both to the end"
        )
    elif comparison.lost:
        points = f"{len(comparison.lost)} of {len(comparison.lost) + len(comparison.changes)} data points of the base"
        yield not_judged(f"{points} are missing in the new run: measure it again, or finish it with --resume")


def head(comparison: Comparison, names: tuple[str, str]) -> Iterator[str]:
    """Yield the lines that say which runs these are, and what differs between them: the candidate causes."""
    base, new = comparison.base, comparison.new
    yield _backend(base)
    for side, run, name in (("base", base, names[0]), ("new", new, names[1])):
        where = run.machine.fabric or run.machine.hostname
        yield f"{side:<9} {name}: {where}, {run.started}"
    yield f"devices   {matched(comparison)}"
    for difference in comparison.differences:
        yield f"differs   {_differs(difference, base)}"


def matched(comparison: Comparison) -> str:
    """Return which devices are counterparts, and by what: "matched by UUID", "… by their order: GPU1 = GPU5"."""
    base, new, match = comparison.base.devices, comparison.new.devices, comparison.match
    how = "matched by UUID"
    if match.by_order:
        tags = [(base[old].tag, new[position].tag) for position, old in match.by_order]
        how = f"{match.by_uuid} matched by UUID, the others" if match.by_uuid else "other devices, matched"
        how += " by their order"
        if match.by_uuid or any(old != now for old, now in tags):
            how += f": {', '.join(f'{old} = {now}' for old, now in tags)}"
    for devices, alone, where in ((base, match.only_base, "base"), (new, match.only_new, "new run")):
        how += f"; only in the {where}: {', '.join(devices[one].tag for one in alone)}" if alone else ""
    return how


def _differs(difference: Difference, base: Run) -> str:
    what, old, now = described(difference, base.devices)
    return f"{what}: {old or 'none'} → {now or 'none'}"


def conclusion(comparison: Comparison) -> str:
    """Return the verdict in one sentence."""
    limit = f"{fixed(100 * comparison.fail_below, 6)} %"
    if not comparison.changes:
        return "The runs have no data point in common: nothing was compared."
    if comparison.regressions:
        return f"Regression: significantly slower by more than {limit} (--fail-below)."
    if Verdict.WORSE in {one.verdict for one in comparison.groups} or comparison.count(Verdict.WORSE):
        return f"Something is significantly slower, but nothing significantly by more than {limit} (--fail-below)."
    if not comparison.judged:
        return "Nothing is significant: no data point has three trials in both runs, the fewest that show noise."
    if comparison.lost or outcome(comparison.new).device_sets:
        return "Nothing that was measured in both runs is significantly slower."
    return "Nothing is significantly slower."


def _groups(comparison: Comparison, verdict: Verdict, most: int) -> Iterator[RenderableType]:
    groups = [group for group in comparison.groups if group.verdict is verdict]
    if not groups:
        return
    yield Text(f"\n{sim(comparison.base, 'sim: ')}{verdict.value} as a whole", style=_STYLES[verdict])
    rows = table("what", "points", "bandwidth", "interval")
    for group in sorted(groups, key=lambda group: -abs(1 - group.ratio))[:most]:
        rows.add_row(group_name(comparison, group), str(group.points), *_ratio(group.ratio, group.interval))
    yield rows
    yield from _more(len(groups) - most)


def group_name(comparison: Comparison, group: Group) -> str:
    """Name what a group's data points share: the devices, or the work and its size."""
    if group.kind is Kind.DEVICES:
        return f"{_device_names(comparison.base, group.members)}: all measurements on it"
    return f"{group.work} at {format_size(group.size_bytes)}: everywhere"


def _points(comparison: Comparison, verdict: Verdict, most: int) -> Iterator[RenderableType]:
    changes = [change for change in comparison.changes if change.verdict is verdict]
    if not changes:
        return
    groups = _rows(comparison, changes)
    yield Text(f"\n{sim(comparison.base, 'sim: ')}{verdict.value}", style=_STYLES[verdict])
    rows = table("where", "points", "size", "base", "new", "bandwidth", "interval", keys=3)
    for name, row_changes in groups[:most]:
        shown = max(row_changes, key=lambda change: change.key.size_bytes)
        if shown.key.size_bytes < TELLING_BYTES:  # of small messages the time
            figures = [f"{figure(seconds * 1e6)} µs" for seconds in (shown.base_seconds, shown.new_seconds)]
        else:
            figures = [f"{figure(gbs)} GB/s" for gbs in (shown.base_gbs, shown.new_gbs)]
        size = format_size(shown.key.size_bytes)
        rows.add_row(name, str(len(row_changes)), size, *figures, *_ratio(shown.ratio, shown.interval))
    yield rows
    yield from _more(len(groups) - most)


def _rows(comparison: Comparison, changes: Sequence[Change]) -> list[tuple[str, list[Change]]]:
    """Return a row for each work and its devices, one for all of a work where all are alike; strongest first."""
    works: dict[tuple[str, int], set[tuple[int, ...]]] = defaultdict(set)
    for change in comparison.changes:
        works[change.key.work, len(change.key.members)].add(change.key.members)
    by_devices: dict[tuple[str, tuple[int, ...]], list[Change]] = defaultdict(list)
    for change in changes:
        by_devices[change.key.work, change.key.members].append(change)
    rows: dict[str, list[Change]] = defaultdict(list)
    for (work, devices), device_changes in by_devices.items():
        every = works[work, len(devices)]
        whole = len(every) > 2 and all((work, other) in by_devices for other in every)
        name = f"{work} on all {len(every)}" if whole else f"{work} {_device_names(comparison.base, devices, work)}"
        rows[name] += device_changes
    return sorted(rows.items(), key=lambda row: -max(abs(1 - change.ratio) for change in row[1]))


def _device_names(run: Run, positions: Sequence[int], work: str = "") -> str:
    tags = [run.devices[position].tag for position in positions]
    if len(tags) > _MOST_NAMES:
        return f"{tags[0]} … {tags[-1]} ({len(tags)} devices)"
    return ("→" if "-write" in work or "-read" in work else "-").join(tags)


def _ratio(ratio: float, interval: tuple[float, float] | None) -> tuple[str, str]:
    bounds = "-" if interval is None else f"{interval[0]:.3f}-{interval[1]:.3f}"
    return f"{ratio:.3f}×", bounds


def _counts(comparison: Comparison) -> Iterator[str]:
    counts = ", ".join(f"{comparison.count(verdict)} {verdict.value}" for verdict in Verdict)
    yield f"points    {len(comparison.changes)} data points in both: {counts}"
    few = sum(change.interval is None for change in comparison.changes)
    if few:
        yield f"few       {few} data points have fewer than three trials in a run, too few to estimate noise: undecided"
    for side, run, keys in (
        ("base", comparison.base, comparison.only_base),
        ("new", comparison.new, comparison.only_new),
    ):
        if keys:
            works = ", ".join(sorted({key.work for key in keys}))
            sizes = size_span([key.size_bytes for key in keys])
            yield f"missing   {len(keys)} data points only in the {side} run ({run.started}): {works}; {sizes}"


def _more(count: int) -> Iterator[RenderableType]:
    if count > 0:
        yield Text(f"and {count} more: --json has them all")
