"""Whether a saved run still speaks for this machine, and a run narrowed to the devices that a job may use."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from collbench.analysis.restrict import restricted
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import Device, Run
from collbench.model.units import TELLING_BYTES, fixed

# A run over a whole machine, narrowed to the devices that a job may use.


def part(run: Run, devices: Sequence[Device]) -> Run:
    """Return what a run says of these of its devices alone, as if it had measured no others."""
    wanted = {device.uuid for device in devices}
    kept = [position for position, device in enumerate(run.devices) if device.uuid in wanted]
    if len(kept) == len(run.devices):
        return run
    return restricted(run, kept)


# Whether a saved run still speaks for this machine.

_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": timedelta(seconds=1)}
# Six digits stay far inside timedelta's range of 999,999,999 days.
_DURATION = re.compile(r"([0-9]{1,6})([dhms])")


def parse_duration(text: str) -> timedelta:
    """Return the time that `text` names: "7d", "12h", "30m" or "90s". Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"duration '{text}' is not a whole number and a unit: write 7d, 12h, 30m or 90s")
    duration = int(match[1]) * _UNITS[match[2]]
    if not duration:
        raise UsageError(f"duration '{text}' is zero, and no saved run is that young: write --fresh to ignore them")
    return duration


@dataclass(frozen=True, slots=True)
class Here:
    """The machine as it is now: the backend asked for, all devices, and versions (empty where there is none).

    `besides` are devices that are here and not to be used: a run may have measured them, too. `nccl` is None where the
    job's is not known: then it is not compared.
    """

    backend: str
    devices: Sequence[Device]
    driver: str = ""
    nccl: str | None = ""
    besides: Sequence[Device] = ()


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a run may not choose devices here: what it `did` or was, or its `part` ("driver"), where that is to blame."""

    did: str
    part: str = ""

    def about(self, run: str, its: str) -> str:
        """Return a clause on a run that is called so: ("it", "its") or ("the newest", "the newest's")."""
        return f"{its} {self.part} {self.did}" if self.part else f"{run} {self.did}"

    def __str__(self) -> str:
        """Return "it is 9d old, …", "its driver was …"."""
        return self.about("it", "its")


def refusal(run: Run, here: Here, now: datetime, max_age: timedelta) -> Unfit | None:
    """Return why `run` may not choose devices here; None where it may.

    `now` must know its time zone. Driver and NCCL are compared on the cuda backend alone: the host's copies use none.
    """
    return mismatch(run, here) or _too_old(run.started, now, max_age) or _too_incomplete(run)


def mismatch(run: Run, here: Here) -> Unfit | None:
    """Return why `run` speaks for another machine than this one; None where it is the same."""
    if run.backend != here.backend:
        return Unfit(f"was measured on the {run.backend} backend, not {here.backend}")
    if gone := _only_in(run.devices, [*here.devices, *here.besides]):
        return Unfit(f"was measured on {gone}, not among the devices that this process may use")
    if new := _only_in(here.devices, run.devices):
        return Unfit(f"did not measure {new}")
    versions = [("driver", run.machine.driver, here.driver), ("NCCL", run.machine.nccl, here.nccl)]
    for what, then, now in versions if capabilities(here.backend).nvml else ():
        if now is not None and then != now:
            return Unfit(f"was {then or 'absent'} and is {now or 'absent'} now", what)
    return None


def _only_in(these: Sequence[Device], those: Sequence[Device]) -> str:
    known = {device.uuid for device in those}
    return ", ".join(f"{device.tag} ({device.uuid})" for device in these if device.uuid not in known)


def _too_old(started: str, now: datetime, max_age: timedelta) -> Unfit | None:
    try:
        start = datetime.fromisoformat(started)
    except ValueError:
        return Unfit(f"'{started}' cannot be read", "date")
    age = now - (start if start.tzinfo else start.replace(tzinfo=now.tzinfo))
    if age < timedelta(0):
        return Unfit(f"{started} lies in the future", "date")
    return Unfit(f"is {_length(age)} old, more than --max-age {_length(max_age)}") if age > max_age else None


def _length(duration: timedelta) -> str:
    unit = next(unit for unit in _UNITS if duration >= _UNITS[unit] or unit == "s")
    return f"{fixed(duration / _UNITS[unit], 3)}{unit}"


def _too_incomplete(run: Run) -> Unfit | None:
    """An interrupted run is enough once one operation was timed on every pair at one telling size."""
    if run.complete:
        return None
    telling = min(TELLING_BYTES, max(run.settings.sizes, default=0))
    timed: dict[tuple[Operation, int], set[tuple[int, ...]]] = {}
    for measurement in run.measured():
        point = measurement.point
        if len(point.members) == 2 and point.size_bytes >= telling:
            # A copy is one direction; a collective on two devices stands for the pair.
            link = tuple(sorted(point.members)) if point.operation.is_collective else point.members
            timed.setdefault((point.operation, point.size_bytes), set()).add(link)
    left = []
    for (operation, _), links in timed.items():
        every = itertools.combinations if operation.is_collective else itertools.permutations
        left.append(len(set(every(range(len(run.devices)), 2)) - links))
    fewest = min(left, default=None)
    if fewest is None:
        return Unfit("was interrupted before any pair was timed at a size that shows bandwidth")
    return Unfit(f"was interrupted with {fewest} of its links still to time") if fewest else None
