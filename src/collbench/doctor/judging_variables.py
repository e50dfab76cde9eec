"""What the variables that are set do here: NCCL's, in the environment and in nccl.conf, and CUDA's. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from collbench.doctor.facts import Facts
from collbench.doctor.findings import Finding, Group, Level
from collbench.doctor.nccl_variables import meaning

_LONGEST = 60  # characters of a value; what is longer is a list or a path that nobody reads here


def judge(facts: Facts) -> list[Finding]:
    """Judge each NCCL_* variable, whoever sets it, in the order of names; collbench itself sets none."""
    ours = sorted((name, value) for name, value in facts.environment.items() if name.startswith("NCCL_"))
    found = [_nccl(name, value) for name, value in ours]
    found += [
        _nccl(name, value, source=f" (set in {file})")
        for file, name, value in sorted(facts.configured, key=lambda row: row[1])
    ]
    if not found and facts.backend == "cuda":
        found.append(Finding(Group.VARIABLES, "NCCL_*", Level.OK, "none is set: NCCL decides by itself"))
    return [*found, *_cuda(facts)]


def _nccl(name: str, value: str, source: str = "") -> Finding:
    given = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
    known = meaning(name, value)
    shown = f"{given or '(empty)'}{source}"
    if not known.does:
        told = f"{shown}: no NCCL from 2.18 to 2.30 reads such a name"
        if known.near:
            return Finding(Group.VARIABLES, name, Level.WARN, told, f"did you mean {known.near}?")
        return Finding(Group.VARIABLES, name, Level.UNKNOWN, f"{told}; a plugin may")
    if known.cost:
        fix = f"unset {name}, unless it is meant" if not source else "take it out of that file, unless it is meant"
        return Finding(Group.VARIABLES, name, Level.WARN, f"{shown}: {known.does}; {known.cost}", fix)
    return Finding(Group.VARIABLES, name, Level.OK, f"{shown}: {known.does}")


def _cuda(facts: Facts) -> Iterable[Finding]:
    if facts.environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        told = "1: every launch waits for its kernel, so nothing overlaps"
        fix = "unset CUDA_LAUNCH_BLOCKING"
        yield Finding(Group.VARIABLES, "CUDA_LAUNCH_BLOCKING", Level.WARN, told, fix)
