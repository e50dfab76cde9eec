"""Normal, below or above, and by which figure: the page and the JSON of `compare --reference`, and lines of others."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from collbench.judge.physics import Nvls
from collbench.judge.references import (
    Answer,
    Answers,
    Figure,
    Reference,
    ReferenceVerdict,
    Unjudged,
    place,
    place_among,
    reference_at,
    sizes_of,
)
from collbench.judge.tiers import kind_of
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import capabilities, device_sets, tags
from collbench.model.units import amount, counted, figure, format_size, grouped, size_span, verb
from collbench.report.frame import alarm, header, not_judged, origin, sim
from collbench.report.layout import Lines, Page, Part, both, prose, short, table, whole
from collbench.runfile.codec import document, picked, plain

if TYPE_CHECKING:
    from collbench.report.comparison import Json

_WORK = ("operation", "variant")
_STANDING_STYLES = {
    ReferenceVerdict.BELOW: "bold red",
    ReferenceVerdict.NORMAL: "bold green",
    ReferenceVerdict.ABOVE: "bold cyan",
    ReferenceVerdict.NOT_JUDGED: "bold red",
    ReferenceVerdict.FAILED: "bold red",
}


def page(answers: Answers, name: str) -> Page:
    """Yield the page's blocks: the run, the result of each reference figure, what has none, and a verdict.

    `name` is the run's in a command line.
    """
    yield from alarm(answers.run)
    concluded = Text(conclusion(answers), style=_STANDING_STYLES[ReferenceVerdict.BELOW] if answers.below else "")
    if answers.below:
        yield concluded
        yield from _why(answers, name)
    if not answers.judged:
        what = conclusion(answers)
        yield not_judged(f"{what[0].lower()}{what[1:-1]}; compare it with an earlier healthy run of this machine")
    elif answers.unjudged:
        yield not_judged(f"{_left_out(answers)}: nothing is known about the others")
    if answers.judged and not answers.below:
        yield concluded
    yield from whole("header", Lines(header(answers.run)), Text(""))
    for answer in answers.answers:
        yield from both("tables", _answer_line(answers, answer, sim(answers.run, "sim: ")))
        yield from whole("tables", *(prose(f"  {line}", hang=4) for line in _origins(answer)))
    yield from whole("notes", *map(prose, _unknown(answers)))
    yield from whole("verdicts", concluded)
    yield from short(Lines(f"\n{origin(answers.run)}"))


def conclusion(answers: Answers) -> str:
    """Return the verdict in one sentence."""
    if not answers.answers:
        what = "what this run measured on" if answers.known else "this kind of machine:"
        what = "a simulated machine:" if capabilities(answers.run.backend).simulated else what
        return f"There is no reference figure for {what} {_kind(answers)}."
    standings = Counter(answer.standing for answer in answers.answers)
    counts = ", ".join(f"{standings[verdict]} {verdict.value}" for verdict in ReferenceVerdict if standings[verdict])
    if below := standings[ReferenceVerdict.BELOW]:
        return f"Below normal at {below} of {amount(len(answers.answers), 'reference figure')}."
    if not answers.judged:
        return f"No reference figure gives a significant answer ({counts})."
    if set(standings) == {ReferenceVerdict.NORMAL} and not answers.unjudged:
        return f"Normal according to {amount(len(answers.answers), 'reference figure')}."
    return f"Nothing{' that was judged' if answers.unjudged else ''} is significantly below its band ({counts})."


def _why(answers: Answers, name: str) -> Iterator[Lines]:
    """Yield the run's worst contradiction, which may be why it is below, and the command that explains it."""
    from collbench.judge.diagnose import Diagnosis  # late: only what is below needs verdicts
    from collbench.report.verdicts import explained_by_check, worst_contradiction

    worst = worst_contradiction(Diagnosis(answers.run))
    following = Lines(f"next      'collbench check {name}': what is slow, and why")
    yield explained_by_check(worst, name) if worst else following


def _left_out(answers: Answers) -> str:
    """Return how much of the first work that is judged in part was judged, and how many more works are."""
    first, *more = answers.unjudged
    parts = [f"{first.work}: {first.judged} of {amount(first.total, kind_of(first.work))} judged"]
    if first.labels:
        names = ", ".join(label for label, _ in first.labels)
        count = sum(count for _, count in first.labels)
        parts.append(f"{count} {verb(count, 'has', 'have')} no figure ({names})")
    if first.unmeasured:
        parts.append(f"{len(first.unmeasured)} not measured")
    return "; ".join(parts) + (f"; likewise {amount(len(more), 'other operation')}" if more else "")


def _kind(answers: Answers) -> str:
    labels = sorted({path.label for path in answers.run.paths})
    return ", ".join([counted(device.name for device in answers.run.devices), *labels])


def _answer_line(answers: Answers, answer: Answer, before: str = "") -> Lines:
    """Return what was judged, the result, the rates and the band."""
    source = answer.figure
    work = Work(source.operation, source.variant)
    sets = amount(len(answer.sets), "device" if kind_of(work) == "device" else "link")
    on = f"{source.ranks} GPUs" if work.operation.is_collective else sets
    what = f"{work} at {format_size(answer.size_bytes)} on {on}"
    failed = answer.standing is ReferenceVerdict.FAILED
    where = f" on {device_sets(answer.failed, answers.run.devices)}" if failed else ""
    line = Lines(f"{before}{what}: ")
    line.append(answer.standing.value, style=_STANDING_STYLES.get(answer.standing, ""))
    line.append(f"{where}, {_measured(answers, answer)}; {_band(answer.reference)}{_beaten(answers, answer)}")
    return line


def _origins(answer: Answer) -> Iterator[str]:
    """Yield where each figure comes from, and which of its conditions the run does not meet."""
    versions: dict[str, list[str]] = defaultdict(list)
    for figure_ in answer.reference.figures:
        nvls = f", NVLS {figure_.nvls}" if figure_.nvls else ""
        license_ = f", {figure_.license}" if figure_.license else ""
        versions[f"{figure_.machine}{nvls}{{}}: {figure_.conditions} [{figure_.source}{license_}]"].append(figure_.nccl)
    for text, found in versions.items():
        nccl = ", ".join(filter(None, found))
        yield text.format(f", NCCL {nccl}" if nccl else "")
    if answer.mismatch:
        yield _mismatch(answer)


def _beaten(answers: Answers, answer: Answer) -> str:
    """Return the impossible rate that keeps the figure from being judged, "" for none."""
    impossible = answer.impossible
    if answer.standing is not ReferenceVerdict.NOT_JUDGED or impossible is None:
        return ""
    where = device_sets([impossible.capacity.devices], answers.run.devices)
    what = f"{impossible.point.work} at {format_size(impossible.point.size_bytes)}"
    limit = figure(impossible.capacity.gbs)
    return f"; {what} reached {figure(impossible.rate_gbs)} GB/s, and the capacity of {where} is {limit}"


def _measured(answers: Answers, answer: Answer) -> str:
    least, most = answer.sets[0], answer.sets[-1]
    if len(answer.sets) == 1:
        return f"{figure(least.gbs)} GB/s"
    where = tags(least.members, answers.run.devices, "-")
    below = sum(device_set.standing is ReferenceVerdict.BELOW for device_set in answer.sets)
    many = f", {below} of {len(answer.sets)} below" if 0 < below < len(answer.sets) else ""
    return f"{figure(least.gbs)} to {figure(most.gbs)} GB/s, lowest on {where}{many}"


def _band(reference: Reference) -> str:
    low, high = reference.band
    if high is None:
        return f"required: {figure(low)} or more"
    disagree = ", which disagree" if reference.disagree else ""
    sources = f"{amount(len(reference.sources), 'source')}{disagree}{_why_guide(reference)}"
    return f"band {figure(low)} to {figure(high)} ({sources})"


def _why_guide(reference: Reference) -> str:
    """Return that figures are only a guide, by which nothing is below, and why; "" if they judge."""
    if not reference.orients:
        return ""
    why = "a collective over PCIe" if reference.alone_on_pcie else f"below {format_size(reference.judges_from)}"
    return f", only a guide: {why}"


def _unknown(answers: Answers) -> Iterator[str]:
    if not answers.known:
        return
    plain = [unjudged for unjudged in answers.unknown if not unjudged.others]
    if plain:
        names = ", ".join(_name(unjudged) for unjudged in plain)
        yield f"there is no reference figure for {names} on {_kind(answers)}"
    for unjudged in answers.unknown:
        if unjudged.others:
            sizes = size_span([size for figure_ in unjudged.others for size in figure_.sizes])
            yield f"there is no reference figure for {_name(unjudged)} at this run's sizes and labels, only for {sizes}"
    if answers.nvls is Nvls.UNKNOWN and any(answer.figure.nvls for answer in answers.answers):
        yield "it is unknown whether these GPUs support NVLS"


def _name(unjudged: Unjudged) -> str:
    many = f" on {unjudged.ranks} GPUs" if unjudged.work.operation.is_collective else ""
    return f"{unjudged.work}{many}"


_WORST_FIRST = [ReferenceVerdict[name] for name in ("FAILED", "BELOW", "ABOVE", "NORMAL", "UNDECIDED", "NOT_JUDGED")]


def below(answers: Answers) -> str:
    """Return the first result that is below its band, in one line; "" if there is none."""
    found = (answer for answer in answers.answers if answer.standing is ReferenceVerdict.BELOW)
    return next((_answer_line(answers, answer).plain for answer in found), "")


def normal_line(answers: Answers) -> Iterator[Lines]:
    """Yield the reference figure with the worst result, and what no figure judges."""
    if not answers.answers:
        what = "this on " if answers.known else ""  # of such GPUs others may be known
        yield Lines(f"rates     not judged: no reference figure for {what}{_kind(answers)}")
        return
    worst = min(
        answers.answers,
        key=lambda answer: (_WORST_FIRST.index(answer.standing), not answer.figure.operation.is_collective),
    )
    parts = [_answer_line(answers, worst, "rates     ").plain]
    parts += [_mismatch(worst)] if worst.mismatch else []
    parts += [_left_out(answers)] if answers.unjudged else []
    yield Lines("; ".join(parts))


def dumps(answers: Answers, status: int) -> str:
    """Return the results of the reference figures for a run as JSON text; members are positions of the run."""
    from collbench.report.comparison import run_origin  # late: pages of pairs need a line of this

    body = {"exit_status": status, "run": run_origin(answers.run)} | as_json(answers)
    return document("reference", body, answers.run.backend)


def as_json(answers: Answers) -> Json:
    """Return the results in JSON's own types."""
    return {
        "nvls": answers.nvls.value,
        "known": answers.known,
        "answers": [_answer_json(answer) for answer in answers.answers],
        "unjudged": [
            picked(unjudged.work, *_WORK)
            | {"total": unjudged.total, "labels": dict(unjudged.labels)}
            | picked(unjudged, "unmeasured")
            for unjudged in answers.unjudged
        ],
        "unknown": [picked(unjudged.work, *_WORK) | {"ranks": unjudged.ranks} for unjudged in answers.unknown],
    }


def _mismatch(answer: Answer) -> str:
    return f"NVLS {answer.figure.nvls} in the reference, {answer.mismatch} in this run" if answer.mismatch else ""


def _answer_json(answer: Answer) -> Json:
    figure, reference = answer.figure, answer.reference
    beyond = None
    if answer.impossible is not None:  # the data point that beats its limit, for which an answer is not judged
        point, limit = answer.impossible.point, answer.impossible.capacity
        beyond = {"work": str(point.work), **picked(point, "members", "size_bytes")}
        beyond |= {"gbs": answer.impossible.rate_gbs, "limit_gbs": limit.gbs, "devices": list(limit.devices)}
    return picked(figure, *_WORK, "ranks") | {
        **picked(answer, "size_bytes", "standing"),
        "band_gbs": list(reference.band),
        "sources": len(reference.sources),
        "disagree": reference.disagree,
        "guide_only": reference.orients,
        "device_sets": plain(answer.sets),
        "mismatch": _mismatch(answer),
        "impossible": beyond,
        "nvls": figure.nvls,
        "figures": [
            picked(published, "machine", "nccl", "conditions", "source", "license")
            | {"measured_gbs": plain(published.values_at(answer.size_bytes))}
            for published in reference.figures
        ],
    }


# All published figures: `collbench reference`.


def _covered(kinds: Iterable[tuple[Figure, ...]]) -> Iterator[Json]:
    """Yield what figures of each kind cover, and what is normal at the largest of their sizes, GB/s."""

    def order(kind: tuple[Figure, ...]) -> tuple[object, ...]:
        return kind[0].gpus, [*Operation].index(kind[0].operation), kind[0].variant, kind[0].ranks

    for kind in sorted(kinds, key=order):
        sizes = sizes_of(kind)
        found = [reference for size in sizes if (reference := reference_at(kind, size))]
        yield picked(kind[0], "machine", "gpus", "links", *_WORK, "ranks", "nvls") | {
            "sizes": sizes,
            "sources": tuple(dict.fromkeys(published.origin for published in kind)),
            "disagree": tuple(reference.size_bytes for reference in found if reference.disagree),
            "minimum": kind[0].at_least is not None,
            "judged_from_bytes": next((reference.size_bytes for reference in found if not reference.orients), None),
            "band_gbs": list(found[-1].band),
        }


_GUIDE = "guide"  # a figure by which nothing is judged


def coverage(kinds: Iterable[tuple[Figure, ...]]) -> Iterator[Part]:
    """Yield what figures cover: for each machine its name and a table."""
    heads = ("operation", "GPUs", "links", "NVLS", "sizes", "judged ≥", "sources", "GB/s, largest")
    for machine, covered in grouped((row["machine"], row) for row in _covered(kinds)).items():
        yield Text(machine)
        yield table(*heads, rows=map(_coverage_row, covered), left={*heads} - {"GPUs", heads[-1]}, keys=4)
        yield Text("")


def _coverage_row(row: Json) -> tuple[str, ...]:
    low, high = row["band_gbs"]
    return (
        str(Work(Operation(row["operation"]), Variant(row["variant"]))),
        str(row["ranks"]),
        row["links"].replace("|", " ") or "-",
        row["nvls"] or "-",
        size_span(row["sizes"]),
        _GUIDE if row["judged_from_bytes"] is None else format_size(row["judged_from_bytes"]),
        f"{len(row['sources'])}{', disagree' if row['disagree'] else ''}",
        f"{figure(low)} or more" if high is None else f"{figure(low)}-{figure(high)}",
    )


def placed(references: Sequence[Reference], gbs: float | None) -> str:
    """Return in one line what is normal on one machine at one size, and with a rate in GB/s whether it is.

    What was measured is the first of the references; the others are minima of acceptance tests.
    """
    first = references[0]
    of = first.figure
    nvls = f", NVLS {of.nvls}" if of.nvls else ""
    where = f"{amount(of.ranks, 'GPU')} ({of.machine}{nvls})"
    what = f"{Work(of.operation, of.variant)} at {format_size(first.size_bytes)} on {where}"
    bands = "; ".join(filter(None, [_band(first) if first.sources else "", _required(references)]))
    if gbs is None:
        return f"{what}, GB/s: {bands}"
    standing = place_among(references, gbs)
    answer, beyond = standing.value, ""
    if standing is ReferenceVerdict.NOT_JUDGED:
        answer, beyond = "not judged", f", {_beside(first, gbs)}"
    elif standing is ReferenceVerdict.IMPOSSIBLE and first.ceiling is not None:
        beyond = f", above the {figure(first.ceiling)} that the links carry"
    elif standing is ReferenceVerdict.BELOW and place(first, gbs) is not standing:
        answer = "below what is required"
    elif standing is ReferenceVerdict.UNDECIDED:
        answer = "at the lower end"
    elif not first.sources:
        answer = {
            ReferenceVerdict.BELOW: "below what is required",
            ReferenceVerdict.NORMAL: "at least what is required",
        }[standing]
    return f"{what}: {answer}, {figure(gbs)} GB/s{beyond}; {bands}"


def _required(references: Sequence[Reference]) -> str:
    """Return the minima of acceptance tests, the strictest first; "" for none."""
    asking = sorted({(reference.band[0], reference.figure.origin) for reference in references if not reference.sources})
    if len(asking) < 2:
        return "".join(f"required: {figure(gbs)} or more" for gbs, _ in asking)
    tests = ", ".join(f"{figure(gbs)} or more ({origin.partition('/')[0]})" for gbs, origin in reversed(asking))
    return f"required: {tests}"


def _beside(reference: Reference, gbs: float) -> str:
    """Return where a rate stands beside the band of a guide."""
    low, high = reference.band
    if reference.may_have_a_bridge and gbs > (reference.slot_gbs or math.inf):
        return "more than PCIe carries: there is no figure of such GPUs with a bridge"
    if gbs < low:
        return f"{1 - gbs / low:.0%} below it"
    return "within it" if high is None or gbs <= high else f"{gbs / high - 1:.0%} above it"


def usual(reference: Reference, gbs: float, size_bytes: int, growth: float | None) -> str:
    """Return that a rate may be usual with another NVLS setting, of which there are figures of another size only.

    `growth` is how many times as fast that size is as this one with the known setting; None if that is not known.
    """
    there, here = format_size(reference.size_bytes), format_size(size_bytes)
    high = reference.band[1]
    known = "off" if reference.figure.nvls == "on" else "on"
    part = ""
    if growth is not None:
        part = f", and {here} reaches {1 / growth:.2f} of {there}'s rate with NVLS {known}"
    may = "is more than usual" if high is not None and gbs > high else "may be usual"
    return f"if NVLS is {reference.figure.nvls}, {figure(gbs)} GB/s {may}: the {_band(reference)} is of {there}{part}"


def nowhere(kinds: Iterable[Iterable[Figure]], size_bytes: int) -> str:
    """Return that there is nothing to compare a rate with, and the nearest sizes of which there are figures."""
    sizes = sorted(
        {size for kind in kinds for size in sizes_of(kind)}, key=lambda size: abs(math.log(size / size_bytes))
    )
    nearest = " and ".join(map(format_size, sorted(sizes[:2])))
    return f"nothing to compare with at this size; the nearest figures of such a machine are of {nearest}"


def placed_json(references: Mapping[Reference, float | None], gbs: float | None, status: int) -> str:
    """Return the same of several figures as JSON text, each with the rate that it judges, None for none."""
    normal = [
        picked(reference.figure, "machine", "gpus", "links", *_WORK, "ranks", "nvls")
        | {"size_bytes": reference.size_bytes, "sources": tuple(reference.sources), "disagree": reference.disagree}
        | {
            "guide_only": reference.orients,
            "minimum": reference.figure.at_least is not None,
            "band_gbs": list(reference.band),
        }
        | {"limit_gbs": reference.ceiling, "standing": None if rate is None else place(reference, rate)}
        for reference, rate in references.items()
    ]
    return document("reference-rate", {"exit_status": status, "busbw_gbs": gbs, "normal": plain(normal)})


def coverage_json(kinds: Iterable[tuple[Figure, ...]], status: int) -> str:
    """Return the same as JSON text."""
    return document("references", {"exit_status": status, "references": [*_covered(kinds)]})
