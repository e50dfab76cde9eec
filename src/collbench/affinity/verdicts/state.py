"""What was wrong with the devices while they were measured, as causes: other processes, throttling, new errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from collbench.affinity.verdicts.readings import Facts
from collbench.machine.limits import holds_back, only_opened
from collbench.model import FlagKind, Health

_COUNTERS = (("NVLink errors", "nvlink_errors"), ("NVLink replays", "nvlink_replays"), ("ECC errors", "ecc_errors"))


@dataclass(frozen=True, slots=True)
class Ailing:
    """What was seen on the devices, by position: reasons to throttle, others' processes (in words), grown counters."""

    throttled: dict[int, str]
    shared: dict[int, str]
    errors: dict[int, str]

    def cause(self, members: Iterable[int]) -> tuple[str, str] | None:
        """Return (cause, command's query) for the first of these devices that something was wrong with."""
        for member in members:
            for told, query in (
                (self.throttled.get(member), "-q -d PERFORMANCE,TEMPERATURE,POWER"),
                (self.errors.get(member), "nvlink -e"),
            ):
                if told:
                    return told, query
        return None


def ailing(facts: Facts) -> Ailing:
    """Return what the samples' flags and the health before and after tell."""
    run = facts.run
    visits = sum(len(found.samples) for found in run.measurements)
    throttled: dict[int, str] = {}
    shared: dict[int, str] = {}
    for (kind, position, reason), count in sorted(_flags(facts).items()):
        tag, share = run.devices[position].tag, f"in {count} of {visits} visits"
        if kind is FlagKind.SHARED:
            shared[position] = f"on {tag} {share}"
        elif kind is FlagKind.THROTTLED and holds_back(reason):
            throttled[position] = f"{tag} was throttled ({reason}) {share}"
    for when, states in (("before", run.health_before), ("after", run.health_after)):
        for position, state in enumerate(states[: len(run.devices)]):
            _add_health(facts, position, state, when, throttled, shared)
    opened = {position for position, state in enumerate(run.health_before) if only_opened(state)}
    shared = {position: told for position, told in shared.items() if position not in opened}
    return Ailing(throttled, shared, _grown(facts))


def _flags(facts: Facts) -> Counter[tuple[FlagKind, int, str]]:
    """Count the visits by (kind of flag, position, reason)."""
    samples = (sample for found in facts.run.measurements for sample in found.samples)
    return Counter(
        (flag.kind, position, flag.reason)
        for sample in samples
        for flag in set(sample.flags)
        for position in flag.devices
    )


def _add_health(
    facts: Facts, position: int, state: Health, when: str, throttled: dict[int, str], shared: dict[int, str]
) -> None:
    """Add what the state before or after measuring tells, where no visit was flagged with it."""
    tag = facts.run.devices[position].tag
    reasons = [reason for reason in state.throttle if holds_back(reason)]
    if reasons:
        throttled.setdefault(position, f"{tag} was throttled ({', '.join(reasons)}) {when} measuring")
    if state.processes:
        shared.setdefault(position, f"on {tag} {when} measuring")


def _grown(facts: Facts) -> dict[int, str]:
    grown: dict[int, str] = {}
    triples = zip(range(len(facts.run.devices)), facts.run.health_before, facts.run.health_after, strict=False)
    for position, before, after in triples:
        for name, field in _COUNTERS:
            first, last = getattr(before, field), getattr(after, field)
            if first is not None and last is not None and last > first:
                grown.setdefault(position, f"{last - first} new {name} on {facts.run.devices[position].tag}")
    return grown
