"""The page of `collbench replay`: a recorded step's communication, exposed time, its kinds of call, arm against arm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from collbench.analysis.overlap import Figure
from collbench.analysis.replay import ArmRatio, ReplaySummary, ratio, summarize
from collbench.launch.ablation import Ratio
from collbench.model.capabilities import capabilities
from collbench.model.operations import Operation, Registration
from collbench.model.run import Pauses, Replay, ReplayedCall, Run
from collbench.model.units import amount, format_size, sentence
from collbench.output import sentences
from collbench.output.text.ablation import worth
from collbench.output.text.frame import header, origin, sim, unhealthy_lines
from collbench.output.text.layout import Block, Lines, both, short, table, whole

_LEGEND = """\
step: pauses and calls, slowest rank, median of the trials with its 95 % interval;
exposed: step minus pauses alone; communication: sum of the calls in a step, each
timed on the rank that waited least; back to back: the calls without pauses"""
_MOST_KINDS = 12


def replay_page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks: the answer, the figures of each arm, the kinds of call, what failed."""
    yield from whole("header", Lines(header(run)))
    measured = [replay for replay in run.replays if replay.trials]
    if measured:
        names = _names(run)
        for line in _worth(run, measured):
            yield Lines(sentence(line + sim(run, " (sim)")))
        yield Lines(sentence(answer(run) + sim(run, " (sim)")))
        yield from both("tables", Text(f"\n{sim(run)}{_title(measured[0])}, ms"))
        yield from both("tables", _of_sets(run, measured) if names else _figures(measured))
        # Of many sets the first one's calls alone: a column for each would be wider than any page.
        called = measured[:1] if names else measured
        yield from both("tables", Text(f"\n{sim(run)}one call within the step{_arm(called[0], names)}, ms"))
        yield from whole("tables", _kinds(called, None))
        yield from short(_kinds(called, _MOST_KINDS))
        yield from both("tables", Text(_LEGEND))
    else:
        yield Lines("No step was replayed.")
    lines = [*_notes(run)]
    if lines:
        yield Lines("\n" + "\n".join(lines))
    yield from short(Lines("\n".join([*(f"health    {line}" for line in unhealthy_lines(run)), origin(run)])))


def answer(run: Run) -> str:
    """Return "the step of job.json communicates for 3.21 ms, 1.10 ms of it exposed; without P2P …"."""
    first, *others = [replay for replay in run.replays if replay.trials]
    summary, names = summarize(first), _names(run)
    text = f"{_what(first)} communicates for {_ms(summary.communication)} ms"
    text += f"{_arm(first, names)} and takes {_ms(summary.exposed)} ms longer than its pauses alone"
    for other in others:
        change = ratio(first, other)
        if change is not None:
            where = _arm(other, names).strip()
            text += f"; {where} its communication takes {change.communication.value:.2f}x as long"
    return text


def _worth(run: Run, measured: list[Replay]) -> Iterator[str]:
    """Yield what the second of two arms costs: of the communication, and of the step where compute is replayed."""
    if len(measured) != len(run.replays) or len(measured) != 2:
        return
    first, other = measured
    change, names = ratio(first, other), _names(run)
    arms = f"on {names[first.members]}" if names else _with(other), _arm(other, names).strip()
    parts = [("the communication of a step", None if change is None else change.communication)]
    if first.pauses is Pauses.RECORDED:
        parts.append(("a whole step", None if change is None else change.step))
    for what, times in parts:
        if times is None or times.interval is None:
            yield f"{len(other.trials)} trials are too few to say what {arms[1]} changes in {what}"
        else:
            yield worth(Ratio(times.value, *times.interval), what, arms, [_lacking(denied) for denied in other.without])


def _with(replay: Replay) -> str:
    return "with " + " and ".join(map(_lacking, replay.without))


_Names = Mapping[tuple[int, ...], str]


def _names(run: Run) -> _Names:
    """Return the devices' names of each set that was replayed on; none if there is one set."""
    sets = dict.fromkeys(replay.members for replay in run.replays)
    if len(sets) < 2:
        return {}
    return {devices: sentences.tags(devices, run.devices) for devices in sets}


def _what(replay: Replay) -> str:
    return f"the step of {replay.job} on {amount(len(replay.members), 'rank')}"


def _arm(replay: Replay, names: _Names) -> str:
    """Return " without P2P" or " on GPU0, GPU1"; "" if nothing is to be told apart."""
    if replay.members in names:
        return f" on {names[replay.members]}"
    return f" {_without(replay)}" if replay.without else ""


def _without(replay: Replay) -> str:
    return "without " + " and ".join(map(_lacking, replay.without))


def _lacking(denied: str) -> str:
    return "NVLink" if denied == "nvlink" else denied.upper()


def _title(replay: Replay) -> str:
    pauses = "idle" if replay.pauses is Pauses.NONE else "matrix products"
    memory = "" if replay.registration is Registration.NONE else f", registered memory ({replay.registration})"
    return f"a step of {replay.job}, phase {replay.phase + 1}, {pauses} in the pauses{memory}"


def _of_sets(run: Run, measured: list[Replay]) -> RenderableType:
    """Return a row for each set of devices, in the order of the run, with its time over the first one's."""
    names = _names(run)
    sets_table = table("devices", "communication", "ratio", "step", "exposed", left=("devices",))
    for replay in measured:
        summary, over = summarize(replay), ratio(measured[0], replay)
        times = ""
        if over is not None and replay is not measured[0]:
            times = f"{over.communication.value:.2f}{_half(over.communication)}"
        cells = _with_half(summary.communication), times, _with_half(summary.step), _range(summary.exposed)
        sets_table.add_row(names[replay.members], *cells)
    return sets_table


def _figures(measured: list[Replay]) -> RenderableType:
    """Return a row for each figure, and a column for each arm; of two arms their ratio, too."""
    names = [_without(replay) if replay.without else "as it is" for replay in measured]
    summaries = [summarize(replay) for replay in measured]
    ratios = [ratio(measured[0], replay) for replay in measured[1:]]
    arms_table = table("", *names, *(["ratio"] if ratios else []), left=("",))

    def row(name: str, cells: list[str], times: Figure | None = None) -> None:
        arms_table.add_row(name, *cells, *([f"{times.value:.2f}{_half(times)}" if times else ""] if ratios else []))

    def figures(pick: str) -> list[str]:
        return [_with_half(getattr(summary, pick)) for summary in summaries]

    last: ArmRatio | None = ratios[-1] if ratios else None
    row("step", figures("step"), None if last is None else last.step)
    row("pauses alone", figures("pauses"))
    row("exposed", [_range(summary.exposed) for summary in summaries])
    row("communication", figures("communication"), None if last is None else last.communication)
    if measured[0].recorded_seconds is not None:
        row("… in the job", [f"{measured[0].recorded_seconds * 1e3:.3f}", *("" for _ in measured[1:])])
    row("back to back", figures("alone"))
    return arms_table


def _kinds(measured: list[Replay], most: int | None) -> RenderableType:
    """Return a row for each kind of call, those that take most of a step first."""
    first = measured[0]
    summaries: list[ReplaySummary] = [summarize(replay) for replay in measured]
    recorded = any(call.recorded_seconds is not None for call in first.calls)
    heads = ["ms", *(_without(replay) for replay in measured[1:]), *(["in the job"] if recorded else [])]
    calls_table = table("call", "size", "ranks", "a step", *heads, "busbw GB/s", left=("call",), keys=3)
    order = sorted(range(len(first.calls)), key=lambda at: -first.calls[at].count * summaries[0].by_kind[at].value)
    for at in order[:most]:
        call = first.calls[at]
        job = [] if not recorded else ["-" if call.recorded_seconds is None else f"{call.recorded_seconds * 1e3:.3f}"]
        cells = [_ms(summary.by_kind[at]) for summary in summaries]
        rate = busbw_gbs(call, summaries[0].by_kind[at].value)
        calls_table.add_row(
            call.operation,
            format_size(call.size_bytes),
            str(call.ranks),
            str(call.count),
            *cells,
            *job,
            "-" if rate is None else f"{rate:.1f}",
        )
    if most is not None and len(order) > most:
        calls_table.add_row(f"and {len(order) - most} more")
    return calls_table


def busbw_gbs(call: ReplayedCall, seconds: float) -> float | None:
    """Return a call's bus bandwidth in GB/s; None for messages between ranks and groups of several collectives."""
    if call.operation not in set(Operation) or seconds <= 0:
        return None
    return call.size_bytes / seconds / 1e9 * Operation(call.operation).busbw_factor(call.ranks)


def _notes(run: Run) -> Iterator[str]:
    names = _names(run)
    for replay in run.replays:
        if replay.failure is not None:
            yield f"failed    {_what(replay)}{_arm(replay, names)}: {sentences.failure(replay.failure, run.devices)}"
        if replay.trials and replay.wrong is None:
            yield f"verified  nothing{_arm(replay, names)}: none of its reductions has an exactly known result"
        if capabilities(run.backend).nccl and not all(trial.kernels for trial in replay.trials):
            yield f"timing    each call{_arm(replay, names)} includes its launch: no trace matches kernels with calls"
        late = sum(1 for trial in replay.trials if not trial.queued)
        if late:
            yield (
                f"host      in {late} of {len(replay.trials)} trials{_arm(replay, names)} a host was slower than its "
                "GPU, so the times include its launches"
            )


def _ms(seconds: Figure) -> str:
    return f"{seconds.value * 1e3:.3f}"


def _half(figure: Figure) -> str:
    return f" ±{figure.half:.1%}" if figure.interval and figure.value > 0 else ""


def _with_half(figure: Figure) -> str:
    return _ms(figure) + _half(figure)


def _range(figure: Figure) -> str:
    """Return a difference with its interval as two figures: it may be near zero."""
    if figure.interval is None:
        return _ms(figure)
    low, high = (end * 1e3 for end in figure.interval)
    return f"{_ms(figure)} [{low:.3f}, {high:.3f}]"
