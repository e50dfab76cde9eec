"""Whether a saved run still describes this machine, and if not, why."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from collbench.model.capabilities import capabilities
from collbench.model.operations import Operation
from collbench.model.run import Device, Run
from collbench.model.units import TELLING_BYTES

if TYPE_CHECKING:
    from collbench.choose.choice import LeftOut  # late: numpy


@dataclass(frozen=True, slots=True)
class Here:
    """The machine as it is now: the backend asked for, all devices, and versions (empty if there is none).

    `besides` are devices that are here but not to be used: a run may have measured them, too. `nccl` is None if the
    job's version is not known; then it is not compared.
    """

    backend: str
    devices: Sequence[Device]
    driver: str = ""
    nccl: str | None = ""
    besides: Sequence[Device] = ()


@dataclass(frozen=True, slots=True)
class OtherBackend:
    """A run was measured on another backend than the requested one."""

    measured: str
    asked: str


@dataclass(frozen=True, slots=True)
class DevicesGone:
    """A run measured devices that this process may not use."""

    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class DevicesUnknown:
    """A run did not measure these devices."""

    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """The driver or NCCL ("driver", "NCCL") had another version; "" if there was none."""

    what: str
    then: str
    now: str


@dataclass(frozen=True, slots=True)
class NoDate:
    """A run's date cannot be read, or lies in the future."""

    started: str
    future: bool


@dataclass(frozen=True, slots=True)
class TooOld:
    """A run is older than allowed."""

    age: timedelta
    allowed: timedelta


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A run was interrupted with this many links untimed; None: before any link at a size that shows bandwidth."""

    left: int | None


@dataclass(frozen=True, slots=True)
class OtherOrder:
    """A run's devices stand in another order than this machine's."""


@dataclass(frozen=True, slots=True)
class SpecialNccl:
    """A run asked NCCL for registered memory alone or for a configuration, which few jobs have."""


@dataclass(frozen=True, slots=True)
class NoPairs:
    """A run timed no pairs at a size that shows bandwidth."""


@dataclass(frozen=True, slots=True)
class DeviceBusy:
    """A device was in use by others."""

    device: Device
    left: LeftOut


# Why a run may not choose devices here, or be resumed.
Unfit = (
    OtherBackend
    | DevicesGone
    | DevicesUnknown
    | OtherVersion
    | NoDate
    | TooOld
    | Incomplete
    | OtherOrder
    | SpecialNccl
    | NoPairs
    | DeviceBusy
)


def refusal(run: Run, here: Here, now: datetime, max_age: timedelta) -> Unfit | None:
    """Return why `run` may not choose devices here; None if it may.

    `now` must know its time zone. Driver and NCCL are compared on the cuda backend alone: the host's copies use none.
    """
    return mismatch(run, here) or _too_old(run.started, now, max_age) or _too_incomplete(run)


def mismatch(run: Run, here: Here) -> Unfit | None:
    """Return why `run` describes another machine than this one; None if it is the same."""
    if run.backend != here.backend:
        return OtherBackend(run.backend, here.backend)
    if gone := _only_in(run.devices, [*here.devices, *here.besides]):
        return DevicesGone(gone)
    if new := _only_in(here.devices, run.devices):
        return DevicesUnknown(new)
    versions = [("driver", run.machine.driver, here.driver), ("NCCL", run.machine.nccl, here.nccl)]
    for what, then, now in versions if capabilities(here.backend).nvml else ():
        if now is not None and then != now:
            return OtherVersion(what, then, now)
    return None


def _only_in(these: Sequence[Device], those: Sequence[Device]) -> tuple[Device, ...]:
    known = {device.uuid for device in those}
    return tuple(device for device in these if device.uuid not in known)


def _too_old(started: str, now: datetime, max_age: timedelta) -> Unfit | None:
    try:
        start = datetime.fromisoformat(started)
    except ValueError:
        return NoDate(started, future=False)
    age = now - (start if start.tzinfo else start.replace(tzinfo=now.tzinfo))
    if age < timedelta(0):
        return NoDate(started, future=True)
    return TooOld(age, max_age) if age > max_age else None


def _too_incomplete(run: Run) -> Unfit | None:
    """Return why an interrupted run is not enough: it needs one operation on every pair at a size showing bandwidth."""
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
    return None if fewest == 0 else Incomplete(fewest)
