"""What makes `collbench check` a gate, for prologs and timers: it fails closed, whatever could not be measured."""

from __future__ import annotations

from collbench.backends import opening
from collbench.errors import MachineError
from collbench.model import Run
from collbench.outcome import named


def refuse_cores(backend: str) -> None:
    """Raise MachineError where "auto" finds no GPU: a node that has lost its driver must not pass by its cores."""
    _, reason = opening.resolve(backend)
    if reason is not None:
        raise MachineError(f"no GPU to check: {reason}; write --backend host to check CPU cores")


def shortfall(run: Run, expected: int | None, *, quick: bool) -> str:
    """Return what a gate cannot vouch for, "" where every pair of the devices that it expects was judged.

    A GPU that fell off the bus is missing, not slow. A pair that there is no figure of by design is not held against
    the run.
    """
    if expected is not None and len(run.devices) != expected:
        tags = ", ".join(device.tag for device in run.devices)
        return f"{len(run.devices)} devices were checked ({tags}), and --expect says {expected}"
    from collbench.affinity.verdicts import coverage  # late: numpy

    covered = coverage(run)
    if not (quick or expected is not None) or not covered.lacking:
        return ""
    first = covered.lacking[0]
    share = f"{len(covered.judged)} of {covered.pairs} pairs were judged"
    return f"cannot vouch for {named(run, [first.pair])}: {first.absence.reason}; {share}"
