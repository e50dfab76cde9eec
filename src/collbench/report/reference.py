"""The page of `collbench compare --reference`: normal, below or above, by which band, and who says so of what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from collbench.comparison.reference import Answer, Answers, Standing, Unknown
from collbench.machine.nvls import Nvls
from collbench.operations import Variant, Work
from collbench.outcome import named
from collbench.report.blocks import Lines
from collbench.report.header import header
from collbench.report.outcome import alarm, not_judged
from collbench.report.prose import filled
from collbench.units import figure, format_size

_STYLES = {
    Standing.BELOW: "bold red",
    Standing.NORMAL: "bold green",
    Standing.ABOVE: "bold cyan",
    Standing.NOT_JUDGED: "bold red",
    Standing.FAILED: "bold red",
}


def page(answers: Answers, width: int) -> Iterator[RenderableType]:
    """Yield the page's blocks: the run, each figure's answer, what no figure speaks for, and a verdict.

    Sentences are broken to `width` columns.
    """
    yield from alarm(answers.run)
    if not answers.judged:
        yield not_judged(f"{conclusion(answers).rstrip('.')}; compare it with a run of the machine's own good days")
    yield Lines(header(answers.run))
    yield Text("")
    for answer in answers.answers:
        yield from _answer(answers, answer, width)
    lines = [*_unknown(answers, width)]
    if lines:
        yield Text("\n".join(lines))
    yield Text(conclusion(answers), style=_STYLES[Standing.BELOW] if answers.below else "")


def conclusion(answers: Answers) -> str:
    """Return the verdict in one sentence."""
    if not answers.known:
        return f"No figure for this machine kind: {_kind(answers)}."
    if not answers.answers:
        return f"No figure speaks for what this run measured on {_kind(answers)}."
    standings = Counter(answer.standing for answer in answers.answers)
    told = ", ".join(f"{standings[one]} {one.value}" for one in Standing if standings[one])
    if answers.below:
        return f"Below what healthy machines of this kind reach, for certain ({told})."
    if not answers.judged:
        return f"No figure says anything for certain ({told})."
    everything = set(standings) == {Standing.NORMAL}
    return f"{'Normal' if everything else 'Nothing is below its band for certain'} ({told})."


def _kind(answers: Answers) -> str:
    names = Counter(device.name for device in answers.run.devices)
    labels = sorted({path.label for path in answers.run.paths})
    devices = ", ".join(f"{count} × {name}" for name, count in names.items())
    return f"{devices}{', ' if labels else ''}{', '.join(labels)}"


def _answer(answers: Answers, answer: Answer, width: int) -> Iterator[RenderableType]:
    source = answer.figure
    work = Work(source.operation, source.variant)
    simulated = "sim: " if answers.run.backend == "sim" else ""
    what = f"{simulated}{work} at {format_size(answer.size_bytes)}{_on(work, source.ranks, answer)}: "
    yield (
        Lines(what)
        .append(answer.standing.value, style=_STYLES.get(answer.standing, ""))
        .append(f"{_failed(answers, answer)}, {_measured(answers, answer)}; {_band(answer)}{_beaten(answers, answer)}")
    )
    condition = f"; {answer.mismatch}" if answer.mismatch else ""
    nvls = f", NVLS {source.nvls}" if source.nvls else ""
    nccl = f", NCCL {source.nccl}" if source.nccl else ""
    told = f"{source.machine}{nvls}{nccl}: {source.conditions} [{source.source}]{condition}"
    yield Text(filled(told, width, "  ", "  "))


def _failed(answers: Answers, answer: Answer) -> str:
    return f" on {named(answers.run, answer.failed)}" if answer.standing is Standing.FAILED else ""


def _beaten(answers: Answers, answer: Answer) -> str:
    """Return what is impossible, for which the figure is not judged."""
    beaten = answer.impossible
    if answer.standing is not Standing.NOT_JUDGED or beaten is None:
        return ""
    where = named(answers.run, [beaten.capacity.devices])
    what = f"{beaten.cell.work} at {format_size(beaten.cell.size_bytes)}"
    return f"; {what} reached {figure(beaten.rate_gbs)} GB/s where {where} can carry {figure(beaten.capacity.gbs)}"


def _on(work: Work, ranks: int, answer: Answer) -> str:
    if work.operation.is_collective:
        return f" on {ranks} GPUs"
    kind = "device" if work.variant is Variant.HOST else "link"
    return f" on {len(answer.places)} {kind}{'s' if len(answer.places) > 1 else ''}"


def _measured(answers: Answers, answer: Answer) -> str:
    least, most = answer.places[0], answer.places[-1]
    if len(answer.places) == 1:
        return f"{figure(least.gbs)} GB/s"
    where = "-".join(answers.run.devices[member].tag for member in least.members)
    below = sum(place.standing is Standing.BELOW for place in answer.places)
    many = f", {below} of {len(answer.places)} below" if 0 < below < len(answer.places) else ""
    return f"{figure(least.gbs)} to {figure(most.gbs)} GB/s, least on {where}{many}"


def _band(answer: Answer) -> str:
    low, high = answer.figure.band
    if high is None:
        return f"asked for: {figure(low)} or more"
    return f"band {figure(low)} to {figure(high)}"


def _unknown(answers: Answers, width: int) -> Iterator[str]:
    if not answers.known:
        return
    plain = [one for one in answers.unknown if not one.others]
    if plain:
        names = ", ".join(_name(one) for one in plain)
        yield filled(f"no figure for {names} on {_kind(answers)}", width)
    for one in answers.unknown:
        if one.others:
            sizes = sorted({size for figure_ in one.others for size in figure_.sizes})
            span = format_size(sizes[0]) if len(sizes) == 1 else f"{format_size(sizes[0])} to {format_size(sizes[-1])}"
            yield f"no figure for {_name(one)} at this run's sizes and labels: there are some for {span}"
    if answers.nvls is Nvls.UNKNOWN and any(answer.figure.nvls for answer in answers.answers):
        yield "nothing tells whether NVLS was used: 'collbench allreduce --algorithms' asks NCCL"


def _name(one: Unknown) -> str:
    many = f" on {one.ranks} GPUs" if one.work.operation.is_collective else ""
    return f"{one.work}{many}"
