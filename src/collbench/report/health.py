"""What was wrong with the devices while they were measured, in a few lines; one line when nothing was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from collbench.machine.limits import GOOD_C, TEMPERATURE_RULE, holds_back
from collbench.model import Flag, FlagKind, Health, Run

_COUNTERS = (("NVLink", "nvlink_errors"), ("ECC", "ecc_errors"))
_REPLAYS = ("NVLink replays", "nvlink_replays")


def health_lines(run: Run) -> list[str]:
    """Return temperatures in °C, then a line for everything that was wrong; empty for CPU cores."""
    if not run.health_before:
        return []
    flagged = {flag for found in run.measurements for sample in found.samples for flag in sample.flags}
    throttled = list(_throttled(run, flagged))
    grown = [line for name, field in _COUNTERS for line in _growth(run, f"{name} errors", field)]
    words = [
        _temperatures(run),
        "" if throttled or any(flag.kind is FlagKind.THROTTLED for flag in flagged) else _no_throttling(run),
        "" if grown else _no_new_errors(run),
    ]
    lines = [*_flagged(run), *throttled, *grown, *_growth(run, *_REPLAYS), *_shared(run, flagged)]
    if not run.health_after:
        lines.append("not known after the run: NVML did not answer, or it was cut short")
    said = ", ".join(word for word in words if word)
    return [said, *lines] if said else lines or ["NVML does not tell on this machine"]


def _temperatures(run: Run) -> str:
    seen = [h.temperature for h in (*run.health_before, *run.health_after) if h.temperature is not None]
    if not seen:
        return ""
    span = f"{min(seen)} °C" if min(seen) == max(seen) else f"{min(seen)}–{max(seen)} °C"
    return span if max(seen) < GOOD_C else f"{span} ({TEMPERATURE_RULE})"


def _no_throttling(run: Run) -> str:
    """Return the words, "" for devices that tell no clock: those tell no reasons either, so none is seen."""
    return "no throttling" if any(state.sm_clock is not None for state in run.health_before) else ""


def _no_new_errors(run: Run) -> str:
    """Name the counters that this machine has and that stood still; without both readings nothing is known."""
    states = (*run.health_before, *run.health_after)
    known = [name for name, field in _COUNTERS if any(getattr(state, field) is not None for state in states)]
    return f"no new {' or '.join(known)} errors" if known and run.health_after else ""


def _flagged(run: Run) -> Iterator[str]:
    """Yield each flag of the samples with how many visits it marks; of a GPU's temperatures the highest."""
    visits = sum(len(found.samples) for found in run.measurements)
    marked: dict[tuple[FlagKind, tuple[int, ...], str, int | None], list[Flag]] = defaultdict(list)
    for flag in (flag for found in run.measurements for sample in found.samples for flag in set(sample.flags)):
        figure = None if flag.kind is FlagKind.HOT else flag.figure
        marked[flag.kind, flag.devices, flag.reason, figure].append(flag)
    lines = [
        f"{max(flags, key=lambda flag: flag.figure or 0).words(run.devices)} in {len(flags)} of {visits} visits"
        for flags in marked.values()
    ]
    yield from sorted(lines)


def _throttled(run: Run, flagged: AbstractSet[Flag]) -> Iterator[str]:
    """Yield the reasons at the run's ends that no visit was flagged with."""
    for when, states in (("before", run.health_before), ("after", run.health_after)):
        for place, state in enumerate(states[: len(run.devices)]):
            for reason in filter(holds_back, state.throttle):
                flag = Flag(FlagKind.THROTTLED, (place,), reason=reason)
                if flag not in flagged:
                    yield f"{flag.words(run.devices)} {when} measuring"


def _growth(run: Run, name: str, field: str) -> Iterator[str]:
    pairs = zip(_by_tag(run, run.health_before), run.health_after, strict=False)
    for (tag, before), after in pairs:
        first, last = getattr(before, field), getattr(after, field)
        if first is not None and last is not None and last > first:
            yield f"{last - first} new {name} on {tag} ({first} → {last} since the driver was loaded)"


def _shared(run: Run, flagged: AbstractSet[Flag]) -> Iterator[str]:
    """Yield the GPUs that other processes held at the run's ends, where no visit was flagged with it."""
    known = {place for flag in flagged if flag.kind is FlagKind.SHARED for place in flag.devices}
    for when, states in (("before", run.health_before), ("after", run.health_after)):
        for place, state in enumerate(states[: len(run.devices)]):
            if state.processes and place not in known:
                flag = Flag(FlagKind.SHARED, (place,), state.processes)
                yield f"{flag.words(run.devices)} {when} measuring"


def _by_tag(run: Run, states: tuple[Health, ...]) -> Iterator[tuple[str, Health]]:
    yield from zip((device.tag for device in run.devices), states, strict=False)
