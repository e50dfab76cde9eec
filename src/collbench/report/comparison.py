"""The page and the JSON of `collbench compare`: what differs, what became worse or better, counts, a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from rich.text import Text

from collbench.judge.between_runs import MIN_LINKS, OF_FEW_LINKS, VariationSource
from collbench.judge.compare import DISTURBED, Change, ChangeGroup, ChangeVerdict, Comparison, GroupKind
from collbench.judge.outcome import outcome
from collbench.model import units
from collbench.model.operations import Variant
from collbench.model.run import FlagKind, Run, tags
from collbench.model.units import TELLING_BYTES, amount, counted, figure, fixed, format_size, size_span, span, verb
from collbench.report.frame import ALARM, alarm, not_judged, sim
from collbench.report.layout import Lines, Page, Part, more, short, table, whole
from collbench.runfile.codec import document, picked, plain

# What `collbench compare --json` prints (docs/compare.md).

Json = dict[str, Any]
_OF_A_CHANGE = (
    *("base_gbs", "new_gbs", "base_seconds", "new_seconds", "ratio", "delta", "regressed"),
    *("interval", "verdict", "trials", "between"),
)
_OF_A_GROUP = (
    *("kind", "work", "members", "points", "size_bytes"),
    *("ratio", "interval", "delta", "verdict", "regressed"),
)


def as_json(comparison: Comparison) -> str:
    """Return a comparison as JSON text; members are positions in the base run, those of `only_new` in the new run."""
    body = {
        "exit_status": comparison.status,
        "base": run_origin(comparison.base),
        "new": run_origin(comparison.new),
        "devices": matched(comparison),
        "differences": plain(comparison.differences),
        "fail_below": comparison.fail_below,
        "history": comparison.history,
        "counts": {verdict.value: comparison.count(verdict) for verdict in ChangeVerdict},
        "groups": [picked(group, *_OF_A_GROUP) for group in comparison.groups],
        "points": [plain(change.key) | picked(change, *_OF_A_CHANGE) for change in comparison.changes],
        "only_base": plain(comparison.only_base),
        "only_new": plain(comparison.only_new),
    }
    return document("comparison", body, comparison.base.backend)


def run_origin(run: Run) -> Json:
    """Return as JSON which run it is: its machine, devices and start."""
    machine = picked(run.machine, "fabric", "hostname", "driver", "nccl")
    return picked(run, "started", "backend") | machine | {"devices": [device.tag for device in run.devices]}


_MAX_ROWS = 20  # rows of a verdict; the JSON has all
_FEW_ROWS = 7  # on the short page
_FEW_LINES = 8  # about the runs on the short page
_MAX_NAMES = 6
_SLOWING = (FlagKind.THROTTLED, FlagKind.SHARED)  # what makes a link slower; heat alone does not
_ALL = ": --json has them all"
_STYLES = {ChangeVerdict.WORSE: "bold red", ChangeVerdict.BETTER: "bold green"}
_LEGEND = """\
bandwidth: new / base, with simultaneous 99% intervals, which allow for what
differs from run to run. worse, better: significantly beyond δ (2%, below 1M
6%); same: within δ (90% interval); undecided: neither"""


def page(comparison: Comparison, names: tuple[str, str]) -> Page:
    """Yield the page's blocks; `names` are those of the two files."""
    yield from alarms(comparison)
    yield from _verdict(comparison, names, sim(comparison.base, "sim: "))
    yield from body(comparison, names)


def body(comparison: Comparison, names: tuple[str, str]) -> Page:
    """Yield the page without its alarms and verdict."""
    lines = list(head(comparison, names))
    yield from whole("header", Lines("\n".join(lines)))
    yield from short(Lines("\n".join(lines[:_FEW_LINES])))
    for verdict in (ChangeVerdict.WORSE, ChangeVerdict.BETTER):
        yield from whole("tables", *_changed(comparison, verdict, _MAX_ROWS))
        yield from short(*_changed(comparison, verdict, _FEW_ROWS))
    yield from whole("notes", Text(f"\n{_LEGEND}\n"))
    yield from short(Text())
    yield Lines("\n".join(_counts(comparison)))
    yield from whole("verdicts", *_verdict(comparison, names))


def _verdict(comparison: Comparison, names: tuple[str, str], before: str = "") -> Iterator[Text]:
    """Yield why most is undecided, if a run shows it by itself, the verdict, and which devices are others."""
    found = conclusion(comparison)
    if why := disturbed(comparison, names):
        yield Text(f"{before}{why}", style=ALARM)
        found = _found(comparison)
    yield Text(f"{before}{found}", style=_STYLES[ChangeVerdict.WORSE] if comparison.regressions else "")
    if others := other_devices(comparison):
        yield Text(f"{before}{others}", style=ALARM)


def disturbed(comparison: Comparison, names: tuple[str, str]) -> str:
    """Return which run was disturbed while it was measured, what its page says, and what it shows; "" if none was.

    It is "" unless most is undecided: what disturbs some links passes for variation between runs.
    """
    if not comparison.judged or not comparison.mostly_undecided:
        return ""
    from collbench.judge import diagnose  # late: most comparisons need no verdicts
    from collbench.judge.diagnose.blame import THROTTLED
    from collbench.report.verdicts import finding

    def passing(verdict: diagnose.Verdict) -> bool:
        unsteady = verdict.kind is diagnose.Kind.UNSTEADY
        return unsteady or verdict.by_other_processes or verdict.cause.name == THROTTLED

    clauses = []
    for run, name in zip((comparison.base, comparison.new), names, strict=True):
        if seen := [finding(verdict) for verdict in diagnose.judge(run) if passing(verdict)]:
            more = f" and {len(seen) - 1} more" if seen[1:] else ""
            clauses.append(f"{name} was disturbed: {seen[0]}{more}")
    if not clauses:
        return ""
    return f"{_undecided(comparison)} because {'; '.join([*clauses, *_changed_pairs(comparison)])}."


def _changed_pairs(comparison: Comparison) -> Iterator[str]:
    """Yield how many pairs are slower, and how many faster, by more than --fail-below, whatever is significant."""
    pairs = _pairs(comparison)
    ratios, kept = [pair.ratio for pair in pairs], 1 - comparison.fail_below
    for how, count in (
        ("slower", sum(ratio < kept for ratio in ratios)),
        ("faster", sum(kept * ratio > 1 for ratio in ratios)),
    ):
        if count:
            changed = f"{count} of {amount(len(pairs), 'pair')} {verb(count, 'is', 'are')}"
            yield f"{changed} more than {_limit(comparison)} {how}"


def _pairs(comparison: Comparison) -> list[ChangeGroup]:
    return [group for group in comparison.groups if group.kind is GroupKind.DEVICES and len(group.members) == 2]


def alarms(comparison: Comparison) -> Iterator[Text]:
    """Yield the first lines: what failed in the new run, and what is not compared."""
    yield from alarm(comparison.new)
    if not comparison.judged:
        yield not_judged(
            "no data point has three trials in both runs, the fewest that show noise: measure both to the end"
        )
    elif comparison.lost:
        lost = len(comparison.lost)
        points = f"{lost} of {amount(lost + len(comparison.changes), 'data point')} of the base"
        lacking = comparison.match.only_base
        why = f"it lacks {tags(lacking, comparison.base.devices)}" if lacking else "measure it again"
        yield not_judged(f"{points}, missing in the new run: {why}")
    elif not comparison.new.complete:
        yield not_judged("the new run is incomplete: measure it again")


def head(comparison: Comparison, names: tuple[str, str]) -> Iterator[str]:
    """Yield which runs these are and what differs between them, which may be the cause of a change."""
    base, new = comparison.base, comparison.new
    simulated = sim(base, "sim: SIMULATED machines, nothing here was measured on a GPU")
    yield f"backend   {simulated or base.backend}"
    for side, run, name in (("base", base, names[0]), ("new", new, names[1])):
        where = run.machine.fabric or run.machine.hostname
        yield f"{side:<9} {name}: {where}, {run.started}"
    yield f"devices   {matched(comparison)}"
    if variation := runs_vary(comparison):
        yield f"runs      {variation}"
    for difference in comparison.differences:
        yield f"differs   {difference.what}: {difference.base or 'none'} → {difference.new or 'none'}"


def other_devices(comparison: Comparison) -> str:
    """Return which devices stand in place of which: "The new run is of other devices: …"; "" if all match."""
    pairs = comparison.match.by_order
    old = counted(comparison.base.devices[position].name for _, position in pairs)
    new = counted(comparison.new.devices[position].name for position, _ in pairs)
    others = comparison.match.by_uuid
    same = f"; {others} {verb(others, 'other is', 'others are')} the same" if others else ""
    replaced = "" if new == old else f" in place of {old}"
    return f"The new run is of other devices: {new}{replaced}{same}." if pairs else ""


def matched(comparison: Comparison) -> str:
    """Return which devices correspond, and how that is known: "matched by UUID", "… by their order: GPU1 = GPU5"."""
    base, new, match = comparison.base.devices, comparison.new.devices, comparison.match
    how = "matched by UUID"
    if match.by_order:
        pairs = [(base[old].tag, new[position].tag) for position, old in match.by_order]
        how = f"{match.by_uuid} matched by UUID, the others" if match.by_uuid else "other devices, matched"
        how += " by their order"
        if match.by_uuid or any(old != now for old, now in pairs):
            how += f": {', '.join(f'{old} = {now}' for old, now in pairs)}"
    for devices, alone, where in ((base, match.only_base, "base"), (new, match.only_new, "new run")):
        how += f"; only in the {where}: {tags(alone, devices)}" if alone else ""
    return how


def runs_vary(comparison: Comparison) -> str:
    """Return by how much the largest messages vary from run to run, and how that is known; "" where nothing is."""
    largest = max((change.key.size_bytes for change in comparison.changes), default=0)
    found = [
        change.between for change in comparison.changes if change.key.size_bytes == largest and change.between.sigma
    ]
    if not found:
        return ""
    spread = span([100 * variation.sigma for variation in found], "{:.2f}%".format)
    if comparison.history:
        how = f", estimated from {amount(comparison.history + 1, 'run')}"
    elif any(variation.origin is VariationSource.COMPARISON for variation in found):
        how = ", as these two runs show (--history FILE shows more)"
    elif any(variation.origin is VariationSource.FEW_LINKS for variation in found):
        how = f": fewer than {MIN_LINKS} links count as at least {OF_FEW_LINKS:.1%} (--history FILE estimates it)"
    else:
        how = " by default (--history FILE estimates it)"
    return f"vary by {spread} at {format_size(largest)}{how}"


def conclusion(comparison: Comparison) -> str:
    """Return the verdict in one sentence; if most data points are undecided, how many, and which pairs changed.

    That they are is the answer where nothing is slower.
    """
    found = _found(comparison)
    if not comparison.mostly_undecided:
        return found
    clauses = [found.removesuffix("."), _undecided(comparison)]
    if found.startswith("Nothing"):  # most is not known to be as fast: that is the answer
        undecided = comparison.count(ChangeVerdict.UNDECIDED)
        nothing = clauses[0].removeprefix("Nothing")
        clauses = [f"Undecided: {undecided} of {amount(len(comparison.changes), 'data point')}", f"nothing{nothing}"]
    changed = (ChangeVerdict.WORSE, ChangeVerdict.BETTER)
    if any(group.verdict in changed for group in comparison.groups if group.kind is GroupKind.WORK):
        return f"{'; '.join(clauses)}."  # all pairs changed: whether some of them vary is no question
    clauses += _changed_pairs(comparison)
    kept = 1 - comparison.fail_below
    doubtful = any(
        pair.verdict is ChangeVerdict.UNDECIDED and not kept <= pair.ratio <= 1 / kept for pair in _pairs(comparison)
    )
    vary = ": earlier runs tell whether pairs vary so (--history FILE)" if doubtful and not comparison.history else ""
    return f"{'; '.join(clauses)}{vary}."


def _undecided(comparison: Comparison) -> str:
    undecided = comparison.count(ChangeVerdict.UNDECIDED)
    return f"{undecided} of {amount(len(comparison.changes), 'data point')} {verb(undecided, 'is', 'are')} undecided"


def _limit(comparison: Comparison) -> str:
    return f"{fixed(100 * comparison.fail_below, 6)}%"


def _found(comparison: Comparison) -> str:
    limit = f"{_limit(comparison)} (--fail-below)"
    if not comparison.changes:
        return "The runs have no data point in common: nothing was compared."
    if comparison.regressions:
        count = sum(change.regressed for change in comparison.changes)
        points = f"; {count} of {amount(len(comparison.changes), 'data point')} regressed"
        points = points if 0 < count < len(comparison.changes) else ""
        # NCCL's variables are the likeliest cause, and easily undone.
        variables = [difference for difference in comparison.differences if difference.what.startswith("NCCL_")]
        differ = "".join(f"; {variable.what} differs: {variable.base} → {variable.new}" for variable in variables)
        disturbed_trials = [
            difference
            for difference in comparison.differences
            if difference.what == DISTURBED
            and any(kind in difference.new and kind not in difference.base for kind in _SLOWING)
        ]
        differ += "".join(f"; {trials.what}: {trials.base} → {trials.new}" for trials in disturbed_trials)
        slowest = _slowest(comparison, comparison.regressions)
        return f"Regression: {slowest}, significantly more than {limit}{points}{differ}."
    judged: list[Change | ChangeGroup] = [*comparison.groups, *comparison.changes]
    if worse := [change for change in judged if change.verdict is ChangeVerdict.WORSE]:
        return f"Slower: {_slowest(comparison, worse)}; nothing significantly by more than {limit}."
    if not comparison.judged:
        return "Nothing is significant: no data point has three trials in both runs, the fewest that show noise."
    only = ((len(comparison.only_base), "base"), (len(comparison.only_new), "new run"))
    alone = [
        f"{amount(count, 'data point')} {verb(count, 'is', 'are')} only in the {run}" for count, run in only if count
    ]
    if alone or not comparison.new.complete or outcome(comparison.new).device_sets:
        nothing = f"Nothing that was measured in both runs is significantly slower{_faster(comparison)}"
        return "; ".join([nothing, *alone]) + "."
    return _not_slower(comparison)


def _not_slower(comparison: Comparison) -> str:
    """Return the verdict where nothing is slower, or all or few links are by no more than the runs may differ."""
    shifted: list[Change | ChangeGroup] = [
        group
        for group in comparison.groups
        if (group.kind, group.verdict) == (GroupKind.WORK, ChangeVerdict.UNDECIDED) and group.shift < -group.delta
    ]
    shifted = shifted or [
        change
        for change in comparison.changes
        if change.verdict is ChangeVerdict.UNDECIDED
        and change.slower_in_trials
        and change.between.origin is VariationSource.FEW_LINKS
        and change.key.size_bytes >= TELLING_BYTES
    ]
    if shifted:
        return f"Undecided without --history: {_slowest(comparison, shifted)}, by which runs may differ."
    return f"Nothing is significantly slower{_faster(comparison)}."


def _faster(comparison: Comparison) -> str:
    better = comparison.count(ChangeVerdict.BETTER)
    faster = f"; {better} of {amount(len(comparison.changes), 'data point')} {verb(better, 'is', 'are')} faster"
    return faster if better else ""


def _slowest(comparison: Comparison, slower: Sequence[Change | ChangeGroup]) -> str:
    """Return what lost most and how much: "… on GPU0→GPU3: 45.1% slower; also …", and how many more places lost."""
    # Where everything is slower, which work or GPU lost most is chance.
    telling = [change for change in comparison.changes if change.key.size_bytes >= TELLING_BYTES]
    for points, which in ((comparison.changes, ""), (telling, f" from {format_size(TELLING_BYTES)} on")):
        if len({change.key.work for change in points}) > 1 and all(change in slower for change in points):
            shares = span([100 * (1 - change.ratio) for change in points], "{:.0f}%".format)
            return f"all {len(points)} data points{which} are {shares} slower"
    first, *others = [text for _, text in sorted(_places(comparison, slower))]
    also = f"; also {others[0]}" if others else ""
    return f"{first}{also}{f' and {len(others) - 1} more' if others[1:] else ''}"


def _places(comparison: Comparison, slower: Sequence[Change | ChangeGroup]) -> Iterator[tuple[float, str]]:
    """Yield the ratio of each place or work that lost and a text that names it: GPUs, works, pairs, data points.

    What other places explain is left out: those of fewer devices, GPUs that lost, works that are slower on average.
    """
    groups = [group for group in slower if isinstance(group, ChangeGroup)]
    changes = [change for change in slower if isinstance(change, Change)]
    copies = _largest_copies(comparison)
    lost, theirs = _lost(comparison, groups)
    works = [group for group in groups if group.kind is GroupKind.WORK and not lost]
    if lost:
        yield _lost_pairs(comparison, lost, theirs, copies)
    on_average = {group.work for group in works}
    least = min((group.ratio for group in works), default=1.0)
    own = [
        group
        for group in groups
        if group.kind is GroupKind.DEVICES
        and lost.isdisjoint(group.members)
        and (group.interval[1] < least or not {*_changed_works(comparison, group)} <= on_average)
    ]
    sets = [{*group.members} for group in own]

    def elsewhere(work: str) -> bool:
        at = [{*change.key.members} for change in changes if change.key.work == work]
        return not at or any(devices not in sets for devices in at)

    yield from _slower_works(comparison, [group for group in works if elsewhere(group.work)])
    for group in own:
        if not _explained(group.members, [others for others in sets if others != {*group.members}]):
            ratio, name = _named(comparison, group, copies)
            yield ratio, f"{name}: {1 - ratio:.1%} slower"
    left = [
        change
        for change in changes
        if lost.isdisjoint(change.key.members)
        and change.key.work not in on_average
        and {*change.key.members} not in sets
        and not _explained(change.key.members, sets)
    ]
    # Of these what a row of the page shows, if one is among them.
    shown = {change.key for _, _, change in _rows(comparison, ChangeVerdict.WORSE)}
    at = units.grouped((tuple(sorted(change.key.members)), change) for change in left)
    for members, some in at.items():
        if _explained(members, [{*others} for others in at if others != members]):
            continue
        worst = min([change for change in some if change.key in shown] or some, key=lambda change: change.ratio)
        key = worst.key
        name = f"{key.work} at {format_size(key.size_bytes)} on {_device_names(comparison, key.members, key.work)}"
        yield worst.ratio, f"{name}: {1 - worst.ratio:.1%} slower"


def _explained(members: Sequence[int], sets: Sequence[set[int]]) -> bool:
    """Return whether one of the sets, a link or more, is among these devices."""
    return any(len(others) > 1 and others <= {*members} for others in sets)


def _changed_works(comparison: Comparison, group: ChangeGroup) -> Iterator[str]:
    """Yield the works that changed as a group of devices did, on these."""
    for change in comparison.changes:
        if change.verdict is group.verdict and {*change.key.members} == {*group.members}:
            yield change.key.work


def _slower_works(comparison: Comparison, groups: Sequence[ChangeGroup]) -> Iterator[tuple[float, str]]:
    """Yield the works that are slower on average; all of several collectives are one."""
    names = {change.key.work for change in comparison.changes if change.operation.is_collective}
    collectives = [group for group in groups if group.work in names]
    every = len(names) > 1 and {group.work for group in collectives} == names
    if every:
        shares = span([100 * (1 - group.ratio) for group in collectives], "{:.1f}%".format)
        sizes = size_span([group.size_bytes for group in collectives])
        yield min(group.ratio for group in collectives), f"all collectives at {sizes} on average: {shares} slower"
    for group in groups:
        if not every or group not in collectives:
            name = _group_name(comparison, group, f" at {format_size(group.size_bytes)}")
            yield group.ratio, f"{name}: {1 - group.ratio:.1%} slower"


def _lost(comparison: Comparison, groups: Sequence[ChangeGroup]) -> tuple[set[int], list[ChangeGroup]]:
    """Return the GPUs all of whose pairs are among the groups, two or more, and these pairs; where there are any.

    Which of the pairs is the slowest is chance. All GPUs are none of these if only some works changed.
    """
    changed = {group.members for group in groups if group.kind is GroupKind.DEVICES}
    pairs = _pairs(comparison)
    healthy = {device for pair in pairs if pair.members not in changed for device in pair.members}
    lost = {device for pair in pairs for device in pair.members} - healthy
    theirs = [pair for pair in pairs if not lost.isdisjoint(pair.members)]
    works = {change.key.work for change in comparison.changes if len(change.key.members) == 2}
    if len(theirs) < 2 or (not healthy and not works <= {group.work for group in groups}):
        return set(), []
    return lost, theirs


def _lost_pairs(
    comparison: Comparison, lost: set[int], theirs: Sequence[ChangeGroup], copies: _Copies
) -> tuple[float, str]:
    """Return the least ratio of the GPUs that lost, and which they are."""
    every = len(theirs) == len(_pairs(comparison))
    whose = "" if every else f" of {tags(sorted(lost), comparison.base.devices)}"
    way = " in one direction" if all(_one_way(pair, copies) for pair in theirs) else ""
    ratios = [_named(comparison, pair, copies)[0] for pair in theirs]
    shares = span([100 * (1 - ratio) for ratio in ratios], "{:.1f}%".format)
    return min(ratios), f"all {len(theirs)} pairs{whose}{way}: {shares} slower"


def _named(comparison: Comparison, group: ChangeGroup, copies: _Copies) -> tuple[float, str]:
    """Return a group's ratio and name; of a pair of which one direction changed that direction's."""
    changed = _one_way(group, copies)
    if not changed:
        return group.ratio, _group_name(comparison, group, f" at {format_size(group.size_bytes)}")
    key = changed[0].key
    where = _device_names(comparison, key.members, key.work)
    return median(change.ratio for change in changed), f"copies at {format_size(key.size_bytes)} {where}"


# The largest copies of each work by link.
_Copies = dict[tuple[int, ...], list[Change]]


def _largest_copies(comparison: Comparison) -> _Copies:
    sizes = units.grouped((change.key.work, change.key.size_bytes) for change in comparison.changes)
    largest = {work: max(of_work) for work, of_work in sizes.items()}
    copies = (change for change in comparison.changes if change.operation.is_copy)
    return units.grouped(
        (change.key.members, change) for change in copies if change.key.size_bytes == largest[change.key.work]
    )


def _one_way(group: ChangeGroup, copies: _Copies) -> list[Change]:
    """Return the largest copies of one direction of a group's pair, if they changed as it did and the others did not.

    The mean of both directions is the rate of neither.
    """
    links = (group.members, group.members[::-1]) if len(group.members) == 2 else ()
    directions = [copies[link] for link in links if link in copies]
    changed = [some for some in directions if all(change.verdict is group.verdict for change in some)]
    others = [some for some in directions if not any(change.verdict is group.verdict for change in some)]
    return changed[0] if changed and others else []


def _group_name(comparison: Comparison, group: ChangeGroup, at: str = "") -> str:
    """Return what a group's data points share: the devices, or the work and its size (`at`)."""
    if group.kind is GroupKind.DEVICES:
        return f"{_shared(comparison, group)} of {_device_names(comparison, group.members)}"
    return f"{group.work}{at} on average"


def _shared(comparison: Comparison, group: ChangeGroup) -> str:
    """Return what a group of devices judges: of one GPU its own copies only, not its links and collectives."""
    if len(group.members) > 1:
        return "all"
    own = {change.key.work for change in comparison.changes if change.key.members == group.members}
    return "copies of host memory" if all(f" {Variant.HOST}" in work for work in own) else "copies"


_Row = tuple[Change | ChangeGroup, tuple[str, ...]]  # of a table, and what it shows


def _changed(comparison: Comparison, verdict: ChangeVerdict, most: int) -> Iterator[Part]:
    """Yield a table of what has this verdict: a row for each place, then what has it as a whole, then data points."""
    copies = _largest_copies(comparison)
    changed = [group for group in comparison.groups if group.verdict is verdict]
    lost, _ = _lost(comparison, changed)
    found = list[_Row]()
    for group in sorted(changed, key=lambda group: -abs(1 - group.ratio)):
        if not _one_way(group, copies):
            size = "" if group.kind is GroupKind.DEVICES else format_size(group.size_bytes)
            cells = (_group_name(comparison, group), str(group.points), size, "", "")
            found.append((group, (*cells, *_ratio(group.ratio, group.interval))))
    for name, count, shown in _rows(comparison, verdict):
        if shown.key.size_bytes < TELLING_BYTES:
            figures = [f"{figure(seconds * 1e6)} µs" for seconds in (shown.base_seconds, shown.new_seconds)]
        else:
            figures = [f"{figure(gbs)} GB/s" for gbs in (shown.base_gbs, shown.new_gbs)]
        size = format_size(shown.key.size_bytes)
        found.append((shown, (name, str(count), size, *figures, *_ratio(shown.ratio, shown.interval))))
    # A place with many rows must not hide another: the short page shows the first ones only.
    works = {group.work for group in changed if group.kind is GroupKind.WORK}
    seen = set[object]()
    first, further = list[_Row](), list[_Row]()
    for judged, row in found:
        members = judged.members if isinstance(judged, ChangeGroup) else judged.key.members
        work = judged.work if isinstance(judged, ChangeGroup) else judged.key.work
        place = "lost" if not lost.isdisjoint(members) else work if work in works else frozenset(members)
        (further if place in seen else first).append((judged, row))
        seen.add(place)
    first.sort(key=lambda one: -abs(1 - one[0].ratio))
    rows = [row for _, row in (*first, *further)]
    if rows:
        yield Text(f"\n{sim(comparison.base, 'sim: ')}{verdict.value}", style=_STYLES[verdict])
        heads = ("what", "points", "size", "base", "new", "bandwidth", "interval")
        yield table(*heads, rows=rows[:most], keys=3, optional=heads[2:5])  # columns that these rows use
        yield from more(len(rows) - most, _ALL)


def _rows(comparison: Comparison, verdict: ChangeVerdict) -> list[tuple[str, int, Change]]:
    """Return a row for each work and set of devices that has this verdict, the largest change that is shown first.

    A row has a name, the number of its data points and the one whose figures it shows, that of the largest message. A
    work has a single row if all of its sets of devices changed.
    """
    changes = [change for change in comparison.changes if change.verdict is verdict]
    keys = [change.key for change in comparison.changes]
    works = units.grouped(((key.work, len(key.members)), key.members) for key in keys)
    changed = {(change.key.work, change.key.members) for change in changes}

    def name(work: str, devices: tuple[int, ...]) -> str:
        every = {*works[work, len(devices)]}
        all_changed = len(every) > 2 and all((work, other) in changed for other in every)
        where = f"on all {len(every)}" if all_changed else _device_names(comparison, devices, work)
        return f"{work} {where}"

    rows = units.grouped((name(change.key.work, change.key.members), change) for change in changes)
    found = [(name, len(some), max(some, key=lambda change: change.key.size_bytes)) for name, some in rows.items()]
    return sorted(found, key=lambda row: -abs(1 - row[2].ratio))


def _device_names(comparison: Comparison, positions: Sequence[int], work: str = "") -> str:
    tags = [comparison.base.devices[position].tag for position in positions]
    if len(tags) > _MAX_NAMES:
        return f"{tags[0]} … {tags[-1]} ({len(tags)} devices)"
    return ("→" if "-write" in work or "-read" in work else "-").join(tags)


def _ratio(ratio: float, interval: tuple[float, float] | None) -> tuple[str, str]:
    bounds = "-" if interval is None else f"{interval[0]:.3f}-{interval[1]:.3f}"
    return f"{ratio:.3f}×", bounds


def _counts(comparison: Comparison) -> Iterator[str]:
    counts = ", ".join(f"{comparison.count(verdict)} {verdict.value}" for verdict in ChangeVerdict)
    unlike = " (none of these is shown)" if comparison.count(ChangeVerdict.UNDECIDED) else ""  # UNDECIDED is the last
    yield f"points    {amount(len(comparison.changes), 'data point')} in both: {counts}{unlike}"
    few = sum(change.interval is None for change in comparison.changes)
    if few:
        points = f"{amount(few, 'data point')} {verb(few, 'has', 'have')}"
        yield f"few       {points} fewer than three trials in a run, too few to estimate noise: undecided"
    for side, run, keys in (
        ("base", comparison.base, comparison.only_base),
        ("new", comparison.new, comparison.only_new),
    ):
        if keys:
            works = ", ".join(sorted({key.work for key in keys}))
            sizes = size_span([key.size_bytes for key in keys])
            points = amount(len(keys), "data point")
            yield f"missing   {points} only in the {side} run ({run.started}): {works}; {sizes}"
