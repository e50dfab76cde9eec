"""What was wrong with the devices while they were measured, in a few lines; one line when nothing was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from collbench.machine.limits import GOOD_C, TEMPERATURE_RULE, holds_back
from collbench.model import Health, Run

_COUNTERS = (("NVLink", "nvlink_errors"), ("ECC", "ecc_errors"))
_REPLAYS = ("NVLink replays", "nvlink_replays")


def health_lines(run: Run) -> list[str]:
    """Return "health: …" with temperatures in °C, then a line for everything that was wrong; empty for CPU cores."""
    if not run.health_before:
        return []
    flagged = list(_flagged(run))
    throttled = list(_throttled(run, flagged))
    grown = [line for name, field in _COUNTERS for line in _growth(run, f"{name} errors", field)]
    words = [
        _temperatures(run),
        "" if throttled or any(line.startswith("throttled") for line in flagged) else _no_throttling(run),
        "" if grown else _no_new_errors(run),
    ]
    lines = [*flagged, *throttled, *grown, *_growth(run, *_REPLAYS), *_shared(run, flagged)]
    if not run.health_after:
        lines.append("not known after the run: NVML did not answer, or it was cut short")
    said = ", ".join(word for word in words if word)
    return [f"health: {line}" for line in ([said, *lines] if said else lines or ["NVML does not tell on this machine"])]


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
    flags = [flag for found in run.measurements for sample in found.samples for flag in set(sample.flags)]
    visits = sum(len(found.samples) for found in run.measurements)
    counts = Counter(flag.partition(" at ")[0] for flag in flags)
    for start, count in sorted(counts.items()):
        same = (flag for flag in flags if flag.partition(" at ")[0] == start)
        worst = max(same, key=lambda flag: (len(flag), flag))  # 100 °C is more than 99
        yield f"{worst} in {count} of {visits} visits"


def _throttled(run: Run, flagged: list[str]) -> Iterator[str]:
    """Yield the reasons at the run's ends that no visit was flagged with."""
    for when, states in (("before", run.health_before), ("after", run.health_after)):
        for tag, state in _by_tag(run, states):
            for reason in filter(holds_back, state.throttle):
                line = f"throttled: {reason} on {tag}"
                if not any(flag.startswith(line) for flag in flagged):
                    yield f"{line} {when} measuring"


def _growth(run: Run, name: str, field: str) -> Iterator[str]:
    pairs = zip(_by_tag(run, run.health_before), run.health_after, strict=False)
    for (tag, before), after in pairs:
        first, last = getattr(before, field), getattr(after, field)
        if first is not None and last is not None and last > first:
            yield f"{last - first} new {name} on {tag} ({first} → {last} since the driver was loaded)"


def _shared(run: Run, flagged: list[str]) -> Iterator[str]:
    """Yield the GPUs that other processes held at the run's ends, where no visit was flagged with it."""
    for when, states in (("before", run.health_before), ("after", run.health_after)):
        for tag, state in _by_tag(run, states):
            if state.processes and not any(flag.startswith("shared") and f" on {tag} " in flag for flag in flagged):
                yield f"shared: {state.processes} other process{_es(state.processes)} on {tag} {when} measuring"


def _es(count: int) -> str:
    return "" if count == 1 else "es"


def _by_tag(run: Run, states: tuple[Health, ...]) -> Iterator[tuple[str, Health]]:
    yield from zip((device.tag for device in run.devices), states, strict=False)
