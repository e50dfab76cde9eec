"""What a choice of devices is asked for, and the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from collbench.launch import formats
from collbench.machine import visible_devices
from collbench.model.errors import ExitStatus, NotTrusted
from collbench.model.run import Device
from collbench.model.units import parse_size

if TYPE_CHECKING:
    from collbench.api.file_kinds import Scorer
    from collbench.choose.choice import Band, Choice
    from collbench.choose.select import Origin, Selection

# What a large gradient bucket of DDP comes to after a few of its 25 MiB ones; large enough that bandwidth decides.
DEFAULT_SIZE = "64M"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRequest:
    """What choice is asked for: the best `count` devices, and what to choose them by.

    `run` is a run file; None: the newest saved run of this machine within `max_age`, else (`fresh`: always) a probe. It
    must have used the NCCL of the job, `nccl`, or the one that is found here. `exclude` are indices and UUIDs with
    commas; `allow_busy`: devices that other processes use may be chosen. `fabric` is a machine to simulate, which
    requires a probe. `scorer` measures the finalists: by a recorded job. The commands differ in the words before the
    count, in what did not happen after an error, `undone`, and in the `advice` where `run` is refused.
    """

    command: ClassVar[tuple[str, ...]]
    undone: ClassVar[str]
    advice: ClassVar[str]

    count: int
    backend: str = "auto"
    fabric: str | None = None
    run: str | None = None
    exclude: str | None = None
    allow_busy: bool = False
    scorer: Scorer | None = None
    max_age: timedelta = timedelta(days=7)
    fresh: bool = False
    nccl: str | None = None

    def excluded(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """Return the devices that are excluded. Raises UsageError."""
        return () if self.exclude is None else visible_devices.select(tuple(devices), self.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectRequest(ChoiceRequest):
    """What `select` is asked.

    With `any_machine` the run file may be of any machine; `topology` is a file of nvidia-smi's labels, `p2p` one of its
    P2P states, `gpu` the product name of the GPUs in them. `verify` measures the finalists at `size_bytes`; None: where
    the choice matters.
    """

    command = ("select",)
    undone = "nothing was chosen"
    advice = "measure again, or add --any-machine to judge it as another machine's"

    any_machine: bool = False
    topology: str | None = None
    p2p: str | None = None
    gpu: str | None = None
    verify: bool | None = None
    size_bytes: int = parse_size(DEFAULT_SIZE)


@dataclass(frozen=True, slots=True)
class Selected:
    """The answer, and how the command ends: a set that includes what failed is an answer, but no good one."""

    selection: Selection
    status: ExitStatus = ExitStatus.DONE

    def check(self) -> Selection:
        """Return the selection to act on. Raises NotTrusted if it includes what failed."""
        if self.status:
            failed, count = "; ".join(self.selection.failed), len(self.selection.devices)
            advice = "leave them out with --exclude, or see the reasons with --format text"
            raise NotTrusted(f"every set of {count} includes a failure ({failed}): {advice}", self.status)
        return self.selection


def named(choice: Choice, devices: Sequence[Device], origin: Origin) -> Selection:
    """Return the choice among these devices, whose positions it holds, by name."""
    from collbench.choose.select import Finalist, Omitted, Selection

    def tags(members: Sequence[int]) -> tuple[str, ...]:
        return tuple(devices[position].tag for position in members)

    def rates(band: Band | None) -> tuple[float, float] | None:
        return None if band is None or band.hi <= 0 or choice.estimated else (band.lo, band.hi)

    def failure(members: tuple[int, ...]) -> str:
        above_limit = " (a rate above the limit)" if members in choice.impossible else ""
        return f"{', '.join(tags(members))}{above_limit}"

    chosen = [devices[position] for position in choice.members]
    predicted = rates(choice.band)
    return Selection(
        devices=tuple(chosen),
        environment=formats.variables(chosen) if origin.acts else {},
        reason=choice.why(devices),
        origin=origin,
        predicted=predicted,
        predicted_how=choice.band.basis if predicted and choice.band else "",
        finalists=tuple(
            Finalist(tags(one.members), rates(one.band), one.measured, one.default) for one in choice.finalists
        ),
        gain=choice.gain,
        decided_by=", then ".join(choice.decided_by),
        tied=choice.tied,
        heuristic=choice.heuristic,
        estimated=choice.estimated,
        left_out=tuple(Omitted(devices[left.member].tag, left.reason) for left in choice.left_out),
        failed=tuple(failure(members) for members in choice.failed),
    )
