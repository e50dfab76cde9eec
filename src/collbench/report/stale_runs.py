"""Why a saved run cannot be used for this machine, as a clause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

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
from collbench.model.run import Device
from collbench.model.units import AGES, fixed


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
