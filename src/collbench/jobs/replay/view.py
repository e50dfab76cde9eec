"""A replay's figures, and how they are shown: page, answer in HTML, rows for other tools (`report/views.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.text import Text

from collbench.ablations.ablation import Ratio
from collbench.ablations.page import effect
from collbench.jobs.replay.results import Replay, ReplayedCall, ReplayTrial, replays_of
from collbench.model.operations import Operation
from collbench.model.run import Run, capabilities, tags
from collbench.model.units import amount, fixed, format_message_size, sentence
from collbench.overlaps.view import TrialFigure, half_interval, median_figure, milliseconds, times, with_interval
from collbench.report import sentences
from collbench.report.frame import header, origin, sim, troubled
from collbench.report.layout import Lines, Page, Table, both, listed, short, table, whole
from collbench.report.rows import Column, Row, Type, devices_of, outcome_of
from collbench.report.views import Html
from collbench.runfile.codec import picked

_SHOWN = 0.5e-6  # seconds that a page does not round to 0


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """One arm, seconds a step, of the slowest rank (docs/method/collectives.md 10).

    `step` is with pauses and calls, `pauses` without the calls, `exposed` what the calls add, trial by trial.
    `communication` is the sum of a rank's calls within the step, without waiting.
    `by_kind` is the seconds of one call of each of `Replay.calls`.
    """

    step: TrialFigure
    pauses: TrialFigure
    exposed: TrialFigure
    communication: TrialFigure
    by_kind: tuple[TrialFigure, ...]


def summarize(replay: Replay) -> ReplaySummary:
    """Return the figures of an arm with at least one trial."""

    def over_trials(value: Callable[[ReplayTrial], float]) -> TrialFigure:
        return median_figure([value(trial) for trial in replay.trials])

    return ReplaySummary(
        step=over_trials(step_seconds),
        pauses=over_trials(lambda trial: max(trial.pauses)),
        exposed=over_trials(lambda trial: step_seconds(trial) - max(trial.pauses)),
        communication=over_trials(communication_seconds),
        by_kind=tuple(
            median_figure([trial.call_seconds[kind] for trial in replay.trials]) for kind in range(len(replay.calls))
        ),
    )


def ratio(first: Replay, other: Replay) -> TrialFigure | None:
    """Return how many times as long an arm communicates as the first one, trial by trial: they took turns.

    None without a trial of both.
    """
    pairs = list(zip(first.trials, other.trials, strict=False))
    if not pairs:
        return None
    return median_figure(
        [communication_seconds(b) / communication_seconds(a) for a, b in pairs if communication_seconds(a) > 0]
    )


def step_seconds(trial: ReplayTrial) -> float:
    """Return a step's seconds on the slowest rank."""
    return max(trial.step)


def communication_seconds(trial: ReplayTrial) -> float:
    """Return the seconds of communication on the rank that has most."""
    return max(trial.communication)


_LEGEND = """\
step: pauses and calls, slowest rank, median of the trials with its 95% interval
exposed: step minus pauses alone; communication: sum of the calls in a step,
each timed on the rank that waited least"""
_MAX_KINDS = 12
_MAX_NAMES = 8
HELD = "a replay"


def page(run: Run) -> Page:
    """Yield the page's blocks: the answer, the figures of each arm, the kinds of call, what failed."""
    measured = [replay for replay in replays_of(run) if replay.trials]
    if measured:
        for line in _worth(run, measured):
            yield Lines(sentence(line + _mark(run)))
        yield Lines(sentence(answer(run) + _mark(run)))
        yield from whole("header", Lines(header(run)))
        title = f"\n{sim(run)}a step of {measured[0].job}, idle in the pauses, ms"
        yield from both("tables", Text(title), _arms(measured))
        yield from both("tables", Text(f"\n{sim(run)}one call within the step{_arm(measured[0])}, ms"))
        yield from whole("tables", _kinds(measured))
        yield from short(*listed(_kinds(measured), _MAX_KINDS))
        yield from both("tables", Text(_LEGEND))
    else:
        yield Lines("No step was replayed.")
        yield from whole("header", Lines(header(run)))
    lines = [*_notes(run)]
    if lines:
        yield Lines("\n" + "\n".join(lines))
    yield from short(Lines("\n" + "\n".join([*troubled(run), origin(run)])))


def _mark(run: Run) -> str:
    """Return the mark of a headline whose figures are not measured, or not on GPUs."""
    return " (CPU cores with gloo, not GPUs)" if capabilities(run.backend).cores else sim(run, " (sim)")


def answer(run: Run) -> str:
    """Return "the step of job.json on GPU0, GPU1 communicates for 3.21 ms, and 1.10 ms are exposed"."""
    first = next(replay for replay in replays_of(run) if replay.trials)
    summary = summarize(first)
    communicates = f"communicates for {milliseconds(summary.communication.value)} ms{_arm(first)}"
    return f"{_what(run, first)} {communicates}, and {_exposed(summary.exposed)}"


def _exposed(figure: TrialFigure) -> str:
    """Return how much is exposed: a difference whose interval has 0 in it may be none, and is never less."""
    low, high = figure.interval or (figure.value, figure.value)
    if low > 0:
        return f"{milliseconds(figure.value)} ms are exposed"
    return f"at most {milliseconds(high)} ms are exposed" if high >= _SHOWN else "nothing is exposed"


def _worth(run: Run, measured: list[Replay]) -> Iterator[str]:
    """Yield what the second of two arms costs in communication."""
    if len(measured) != len(replays_of(run)) or not measured[-1].without:
        return
    first, other = measured
    change, lacking = ratio(first, other), [*map(_lacking, other.without)]
    arms = f"with {' and '.join(lacking)}", _without(other)
    what = "the communication of a step"
    if change is None or change.interval is None:
        yield f"{len(other.trials)} trials are too few to say what {arms[1]} changes in {what}"
    else:
        yield effect(Ratio(change.value, *change.interval), what, arms, lacking)


def _what(run: Run, replay: Replay) -> str:
    few = len(replay.members) <= _MAX_NAMES
    where = tags(replay.members, run.devices) if few else amount(len(replay.members), "rank")
    return f"the step of {replay.job} on {where}"


def _arm(replay: Replay) -> str:
    """Return " without P2P", which distinguishes an arm; "" for the arm without a change."""
    return f" {_without(replay)}" if replay.without else ""


def _without(replay: Replay) -> str:
    return "without " + " and ".join(map(_lacking, replay.without))


def _lacking(denied: str) -> str:
    return "NVLink" if denied == "nvlink" else denied.upper()


def _arms(measured: list[Replay]) -> Table:
    """Return a row for each arm, after the job's own if that is known; with several arms, ratios to the first one."""
    recorded = [measured[0].recorded_seconds, measured[0].recorded_step_seconds]
    rows: list[tuple[str, ...]] = []
    if any(recorded):
        communication, step = ("-" if seconds is None else milliseconds(seconds) for seconds in recorded)
        rows.append(("in the job", communication, "", step))
    for replay in measured:
        summary, change = summarize(replay), ratio(measured[0], replay)
        factor = times(change) if change and replay is not measured[0] else ""
        name = _arm(replay).strip() or "as it is"
        figures = _with_half(summary.communication), factor, _with_half(summary.step), _range(summary.exposed)
        rows.append((name, *figures))
    return table("", "communication", "ratio", "step", "exposed", rows=rows, left=("",), optional=("ratio",))


def _kinds(measured: list[Replay]) -> Table:
    """Return a row for each kind of call, the longest in a step first."""
    first = measured[0]
    summaries: list[ReplaySummary] = [summarize(replay) for replay in measured]
    heads = ("call", "size", "ranks", "a step", "ms", *map(_without, measured[1:]), "in the job", "busbw GB/s")
    longest = sorted(range(len(first.calls)), key=lambda at: -first.calls[at].count * summaries[0].by_kind[at].value)
    rows = []
    for at in longest:
        call = first.calls[at]
        seconds = [milliseconds(summary.by_kind[at].value) for summary in summaries]
        job = "-" if call.recorded_seconds is None else milliseconds(call.recorded_seconds)
        gbs = busbw_gbs(call, summaries[0].by_kind[at].value)
        what = (call.operation, format_message_size(call.size_bytes), str(call.ranks), str(call.count))
        rows.append((*what, *seconds, job, "-" if gbs is None else f"{gbs:.1f}"))
    return table(*heads, rows=rows, left=("call",), keys=3, optional=("in the job",))


def busbw_gbs(call: ReplayedCall, seconds: float) -> float | None:
    """Return a call's bus bandwidth in GB/s; None for messages between ranks and groups of several collectives."""
    if call.operation not in set(Operation) or seconds <= 0:
        return None
    return call.size_bytes / seconds / 1e9 * Operation(call.operation).busbw_factor(call.ranks)


def _notes(run: Run) -> Iterator[str]:
    for replay in replays_of(run):
        if replay.failure is not None:
            yield f"failed    {_what(run, replay)}{_arm(replay)}: {sentences.failure(replay.failure, run.devices)}"
        if replay.trials and replay.wrong is None:
            yield f"verified  nothing{_arm(replay)}: none of its reductions has an exactly known result"
        if capabilities(run.backend).nccl and not all(trial.kernels for trial in replay.trials):
            yield f"timing    each call{_arm(replay)} includes its launch: no trace matches kernels with calls"
        late = sum(1 for trial in replay.trials if not trial.queued)
        if late:
            yield (
                f"host      in {late} of {len(replay.trials)} trials{_arm(replay)} a host was slower than its "
                "GPU, so the times include its launches"
            )


def _with_half(figure: TrialFigure) -> str:
    return milliseconds(figure.value) + half_interval(figure)


def _range(figure: TrialFigure) -> str:
    """Return a difference with the ends of its interval: it may be near zero, where a share says nothing."""
    ends = "" if figure.interval is None else f" [{', '.join(map(milliseconds, figure.interval))}]"
    return f"{milliseconds(figure.value)}{ends}"


def failed(_run: Run) -> str:
    """Return nothing: a step is lost as a whole, on its devices."""
    return ""


def html(run: Run) -> Html:
    """Return the answer of a run's first arm, and what the second one changes."""
    question = "Communication of a step"
    measured = [arm for arm in replays_of(run) if arm.trials]
    if not measured:
        return Html(question, "nothing measured")
    spent = fixed(summarize(measured[0]).communication.value * 1e3, 2)
    return Html(question, f"{spent} ms a step", [*_worth(run, measured), answer(run)])


# A row for each kind of call of each arm, with the figures of its step.
_FIGURES = (
    ("step", "pauses and calls, slowest rank"),
    ("pauses", "the pauses alone"),
    ("exposed", "step less the pauses alone"),
    ("communication", "the calls of the rank that has most, without waiting"),
)
COLUMNS = (
    Column("job", Type.TEXT, "the recorded job's file"),
    Column("world_size", Type.WHOLE, "ranks of the replay, one process for each device"),
    Column("members", Type.TEXT, "the devices in rank order, comma-separated: GPU0,GPU1"),
    Column("without", Type.TEXT, "what NCCL was denied: p2p, nvlink, shm or ib, comma-separated; empty for nothing"),
    Column("operation", Type.TEXT, "a collective, p2p for sends and receives, or mixed"),
    Column("size_bytes", Type.WHOLE, "bytes; the message size as nccl-tests defines it"),
    Column("ranks", Type.WHOLE, "ranks in the call"),
    Column("count", Type.WHOLE, "how many such calls a step has"),
    Column("call_seconds", Type.REAL, "s; one such call within the step, on the rank that waited least"),
    Column("recorded_call_seconds", Type.REAL, "s; the same in the job; empty if unknown"),
    Column("trials", Type.WHOLE, "how often the step was measured"),
    *(column for name, text in _FIGURES for column in with_interval(f"{name}_seconds", f"s a step; {text}")),
    Column("recorded_communication_seconds", Type.REAL, "s a step; the job's own communication; empty if unknown"),
    Column("recorded_step_seconds", Type.REAL, "s; the job's own step, of its slowest rank; empty if unknown"),
    Column("flags", Type.TEXT, "flags of the devices during the measurement, each once, separated by semicolons"),
    Column("failure", Type.TEXT, "why the arm failed; such a row may have no figures"),
    Column("wrong", Type.WHOLE, "elements that did not arrive as sent; empty where none was compared"),
)
SHOWN = (
    *("operation", "without", "members", "size_bytes", "ranks", "count", "call_seconds", "recorded_call_seconds"),
    "failure",
)


def rows(run: Run) -> Iterator[Row]:
    """Yield the rows of a run's arms."""
    for arm in replays_of(run):
        row: Row = {
            **devices_of(run, arm.members),
            **outcome_of(run, arm.trials, arm.failure),
            **picked(arm, "job", "recorded_step_seconds", "wrong"),
            "world_size": len(arm.members),
            "without": ",".join(arm.without) or None,
            "recorded_communication_seconds": arm.recorded_seconds,
        }
        summary = summarize(arm) if arm.trials else None
        for name, _ in _FIGURES if summary is not None else ():
            row |= getattr(summary, name).columns(f"{name}_seconds")
        for number, call in enumerate(arm.calls):
            yield {
                **row,
                **picked(call, "operation", "size_bytes", "ranks", "count"),
                "call_seconds": summary.by_kind[number].value if summary else None,
                "recorded_call_seconds": call.recorded_seconds,
            }
