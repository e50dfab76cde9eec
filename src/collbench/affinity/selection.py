"""A choice by the devices' own names, with all that explains it: what `collbench select` prints and Python gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collbench.affinity.choice import Choice
from collbench.model import Device


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the evidence came from: a backend ("labels" for label text), a host, and words that name the source.

    `fabric` names the simulated machine of a sim run, "" otherwise. `verification` is the file of the run that measured
    the finalists at `size_bytes`; "" and None where none did.
    """

    backend: str
    source: str
    machine: str = ""
    fabric: str = ""
    verification: str = ""
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the best sets by its devices' tags; `first` are the first ones by PCI bus id that were not left out.

    `predicted` is (low, high), `measured` (low, median, high) of its 95 % interval: all-reduce busbw in GB/s.
    """

    devices: tuple[str, ...]
    predicted: tuple[float, float]
    measured: tuple[float, float, float] | None = None
    first: bool = False


@dataclass(frozen=True, slots=True)
class Omitted:
    """A device that was not considered, by tag and reason."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen devices and why; rates are all-reduce busbw in GB/s, predicted as (low, high).

    `environment` is what makes CUDA see them alone. `decided_by` names the tie-break, "" where bandwidth decided;
    `tied`: the choice does not affect bandwidth; `heuristic`: not all sets were looked at; `estimated`: from labels
    alone, nothing was measured. `binding` says on which NUMA nodes the devices' processes belong, "" where the evidence
    does not compare nodes. `gain` is chosen over first ones, as measured: (low, median, high), 1.0 for none. `failed`
    are places within the set where something failed or moved wrong data.
    """

    devices: tuple[Device, ...]
    environment: dict[str, str]
    reason: str
    origin: Origin
    predicted: tuple[float, float] | None = None
    predicted_how: str = ""
    finalists: tuple[Finalist, ...] = ()
    gain: tuple[float, float, float] | None = None
    decided_by: str = ""
    tied: bool = False
    heuristic: bool = False
    estimated: bool = False
    left_out: tuple[Omitted, ...] = ()
    binding: str = ""
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line: which devices and why."""
        return f"{', '.join(device.tag for device in self.devices)}: {self.reason} ({self.origin.source})"


def named(
    choice: Choice, devices: Sequence[Device], environment: Mapping[str, str], origin: Origin, binding: str = ""
) -> Selection:
    """Return the choice among these devices, whose positions it holds, by name."""

    def tags(members: Sequence[int]) -> tuple[str, ...]:
        return tuple(devices[member].tag for member in members)

    measured = {found.members: _measured(found.gbs, found.interval) for found in choice.verified}
    return Selection(
        devices=tuple(devices[member] for member in choice.members),
        environment=dict(environment),
        reason=choice.reason,
        origin=origin,
        predicted=(choice.band.lo, choice.band.hi) if choice.band else None,
        predicted_how=choice.band.basis if choice.band else "",
        finalists=tuple(
            Finalist(tags(one.members), (one.band.lo, one.band.hi), measured.get(one.members), one.default)
            for one in choice.finalists
        ),
        gain=choice.gain,
        decided_by=choice.decided_by,
        tied=choice.tied,
        heuristic=choice.heuristic,
        estimated=choice.estimated,
        left_out=tuple(Omitted(devices[left.member].tag, left.reason) for left in choice.left_out),
        binding=binding,
        failed=tuple(", ".join(tags(place)) for place in choice.failed),
    )


def _measured(gbs: float, interval: tuple[float, float] | None) -> tuple[float, float, float]:
    low, high = interval or (gbs, gbs)
    return low, gbs, high
