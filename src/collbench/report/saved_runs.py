"""Saved runs: their list, and why one cannot be used for this machine, as a clause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from collbench.choose.freshness import (
    DeviceBusy,
    DevicesGone,
    DevicesUnknown,
    Incomplete,
    NoDate,
    NoPairs,
    OtherBackend,
    OtherOrder,
    OtherVersion,
    SpecialNccl,
    TooOld,
    Unfit,
)
from collbench.model.errors import ExitStatus
from collbench.model.printable import one_line
from collbench.model.run import Device
from collbench.model.units import AGES, columns, fixed

if TYPE_CHECKING:
    from collbench.runfile.saved_runs import SavedRun


def unfit(reason: Unfit, run: str = "it", its: str = "its") -> str:
    """Return "it is 9d old, …", "the newest's driver was …"; callers name the `run` and `its` parts."""
    match reason:
        case OtherVersion(what, then, now):
            return f"{its} {what} was {then or 'absent'} and is {now or 'absent'} now"
        case NoDate(started, future):
            return f"{its} date {started} is in the future" if future else f"{its} date '{started}' cannot be read"
        case OtherOrder():
            return f"{its} devices are in a different order"
        case _:
            return f"{run} {_clause(reason)}"


def _clause(reason: Unfit) -> str:  # noqa: PLR0911 - a clause for each kind
    match reason:
        case OtherBackend(measured, asked):
            return f"was measured on the {measured} backend, not {asked}"
        case DevicesGone(devices):
            return f"was measured on {_names(devices)}, which this process may not use"
        case DevicesUnknown(devices):
            return f"did not measure {_names(devices)}"
        case TooOld(age, allowed):
            return f"is {_length(age)} old, more than --max-age {_length(allowed)}"
        case Incomplete(None):
            return "was interrupted before any pair was timed at a size large enough to show bandwidth"
        case Incomplete(left):
            return f"was interrupted with {left} of its links not yet timed"
        case SpecialNccl():
            return "used NCCL settings (registered memory or a configuration) that a job has only if it sets them, too"
        case NoPairs():
            return "timed no pairs at a size large enough to show bandwidth"
        case DeviceBusy(device, left):
            from collbench.report import choice_text  # late: numpy

            return f"was disturbed: {device.tag} was {choice_text.left_out(left)}"
        case _:
            raise TypeError(f"no clause for {reason}")


def _names(devices: Sequence[Device]) -> str:
    return ", ".join(f"{device.tag} ({device.uuid})" for device in devices)


def _length(duration: timedelta) -> str:
    unit = next(unit for unit in AGES if duration >= AGES[unit] or unit == "s")
    return f"{fixed(duration / AGES[unit], 3)}{unit}"


# The list of saved runs, one line each, with the number that other commands take.


_OUTCOMES = {
    ExitStatus.DONE: "done",
    ExitStatus.FAILED: "failures",
    ExitStatus.CONTRADICTION: "impossible figure",
    ExitStatus.UNTRUSTED: "wrong data or hang",
}
_HEAD = ("run", "started (UTC)", "backend", "machine", "devices", "command", "outcome")


def lines(runs: Sequence[SavedRun]) -> list[str]:
    """Return the table's lines, in the order given, and where the files are: whole names would break every line."""
    folders = sorted({one_line(str(run.path.parent)) for run in runs})
    return [*columns([_HEAD, *map(_row, runs)]), "", f"files: {', '.join(folders)}; 'collbench show 1' shows run 1"]


def _row(run: SavedRun) -> tuple[str, ...]:
    outcome = _OUTCOMES.get(run.status, "done")
    if not run.complete:
        outcome = "interrupted" if run.status is ExitStatus.DONE else f"interrupted, {outcome}"
    return (
        str(run.number),
        one_line(run.started.replace("T", " ").removesuffix("Z")),
        run.backend,
        one_line(run.fabric or run.machine),
        str(len(run.devices)),
        one_line(run.command[0] if run.command else ""),
        outcome,
    )
