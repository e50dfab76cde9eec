"""The best K devices: what is asked, and the answer; by labels, else by a run of this machine or of another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from collbench.api import SILENT, Notices, keywords
from collbench.choose.choice import ABOVE_LIMIT, FEW_SETS, Band, Choice, Finalist, Omitted, Origin, Published, Selection
from collbench.machine import device_names, nvidia_smi
from collbench.machine.labels import labels_within
from collbench.model.errors import ExitStatus, NotTrusted, UsageError
from collbench.model.operations import Operation, Variant
from collbench.model.run import Device
from collbench.model.units import abridged, parse_size
from collbench.model.values import one_line

# What a large gradient bucket of DDP comes to after a few of its 25 MiB ones; large enough that bandwidth decides.
DEFAULT_SIZE = "64M"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRequest:
    """What choice is asked for: the best `count` devices, and what to choose them by.

    `run` is a run file; None: the newest saved run of this machine within `max_age`, else (`fresh`: always) a probe. It
    must have used the NCCL of the job, `nccl`, or the one that is found here. `exclude` are indices and UUIDs with
    commas; `allow_busy`: devices that other processes use may be chosen. `fabric` is a machine to simulate, which
    requires a probe. The commands differ in the word before the count, `asked`, in what did not happen after an
    error, `undone`, and in the `advice` where `run` is refused.
    """

    asked: ClassVar[str]
    undone: ClassVar[str]
    advice: ClassVar[str]

    count: int
    backend: str = "auto"
    fabric: str | None = None
    run: str | None = None
    exclude: str | None = None
    allow_busy: bool = False
    max_age: timedelta = timedelta(days=7)
    fresh: bool = False
    nccl: str | None = None

    def excluded(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """Return the devices that are excluded. Raises UsageError."""
        return () if self.exclude is None else device_names.select(tuple(devices), self.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectRequest(ChoiceRequest):
    """What `select` is asked.

    With `any_machine` the run file may be of any machine; `topology` is a file of nvidia-smi's labels, `p2p` one of its
    P2P states, `gpu` the product name of the GPUs in them. `verify` measures the finalists at `size_bytes`; None: where
    the choice matters.
    """

    asked = "select"
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
            failed, count = abridged(self.selection.failed, FEW_SETS, "; "), len(self.selection.devices)
            if self.selection.impossible:
                failed, wrong = failed.replace(ABOVE_LIMIT, ""), "a rate above the limit"
            else:
                wrong = "a failure"
            advice = "leave them out with --exclude, or see the reasons with --format text"
            raise NotTrusted(f"every set of {count} includes {wrong} ({failed}): {advice}", self.status)
        return self.selection


def named(choice: Choice, devices: Sequence[Device], origin: Origin) -> Selection:
    """Return the choice among these devices, whose positions it holds, by name."""

    def tags(members: Sequence[int]) -> tuple[str, ...]:
        return tuple(devices[position].tag for position in members)

    def rates(band: Band | None) -> tuple[float, float] | None:
        return None if band is None or band.hi <= 0 or choice.estimated else (band.lo, band.hi)

    def failure(members: tuple[int, ...]) -> str:
        above_limit = ABOVE_LIMIT if members in choice.impossible else ""
        return f"{', '.join(tags(members))}{above_limit}"

    chosen = [devices[position] for position in choice.members]
    predicted = rates(choice.band)
    return Selection(
        devices=tuple(chosen),
        environment=device_names.variables(chosen) if origin.acts else {},
        reason=choice.why(devices),
        origin=origin,
        predicted=predicted,
        predicted_how=choice.band.basis if predicted and choice.band else "",
        finalists=tuple(
            Finalist(tags(entry.members), rates(entry.band), entry.measured, entry.default, entry.band.unmeasured)
            for entry in choice.finalists
        ),
        gain=choice.gain,
        decided_by=choice.decided,
        tied=choice.tied,
        heuristic=choice.heuristic,
        estimated=choice.estimated,
        left_out=tuple(Omitted(devices[left.member].tag, left.reason) for left in choice.left_out),
        failed=tuple(failure(members) for members in choice.failed),
    )


def select_devices(request: SelectRequest, notices: Notices = SILENT) -> Selected:
    """Return the best devices, and why. Raises CollbenchError, Interrupted."""
    keywords.check_fabric(request.backend, request.fabric)
    if request.gpu is not None and not request.gpu.strip():
        raise UsageError("--gpu names the GPUs of a --topology FILE, as in --gpu H100")
    if request.verify and request.count == 1:
        raise UsageError("--verify measures all-reduces, and one device has none: leave it out")
    if request.topology is not None:
        return Selected(_by_labels(request, request.topology))
    if request.run is not None:  # before what this machine lacks
        from collbench.runfile import run_file  # late: labels need none of it

        run_file.check_there(Path(request.run))
    from collbench.api import by_run  # late: labels need none of it

    if request.any_machine and request.run is not None:
        return by_run.by_a_run_of_elsewhere(request, request.run)
    return by_run.by_measurement(request, notices)


def _by_labels(request: SelectRequest, topology: str) -> Selection:
    devices, paths = nvidia_smi.facts(nvidia_smi.read_topology(Path(topology)))
    if request.gpu is not None:
        _check_gpu(request.gpu)
        devices = tuple(replace(device, name=request.gpu) for device in devices)
    source = f"labels in {topology}"
    if request.p2p is not None:
        access = nvidia_smi.read_p2p(Path(request.p2p))
        if {*access.gpus} != {device.tag for device in devices}:
            raise UsageError(f"{topology} and {request.p2p} have different GPUs: save both on the same machine")
        paths, source = nvidia_smi.with_reported(devices, paths, None, access), f"{source}, P2P in {request.p2p}"
    from collbench.choose.problem import choose_by_labels, denied_peers  # late: numpy, scipy

    exclude = [devices.index(device) for device in request.excluded(devices)]
    choice = choose_by_labels(devices, paths, request.count, exclude=exclude)
    selection = named(choice, devices, Origin("labels", source))
    names = {devices[member].name for member in choice.members}
    if len(names) > 1 or "" in names or request.count < 2 or denied_peers(paths, choice.members):
        return selection
    labels = labels_within(paths, choice.members)
    return replace(selection, published=tuple(_published(names.pop(), labels, request)))


def _check_gpu(name: str) -> None:
    """Raise UsageError for a GPU that no reference figure is of."""
    from collbench.judge import references

    if not references.named(references.load(), name):
        raise UsageError(references.unknown_gpu(one_line(name)))


def _published(name: str, labels: Sequence[str], request: SelectRequest) -> Iterator[Published]:
    """Yield the reference figures of all-reduces on as many such GPUs with such labels, at the size nearest the asked.

    What was measured says more than what an acceptance test asks for, which is left out beside it.
    """
    from collbench.judge import references

    known = [
        figure
        for figure in references.named(references.load(), name)
        if (figure.operation, figure.variant, figure.ranks) == (Operation.ALLREDUCE, Variant.PLAIN, request.count)
        and all(map(figure.links_are, labels))
    ]
    measured = {(figure.machine, figure.nvls) for figure in known if figure.at_least is None}
    known = [figure for figure in known if figure.at_least is None or (figure.machine, figure.nvls) not in measured]
    for kind in references.by_kind(known):
        size_bytes = min(references.sizes_of(kind), key=lambda size: abs(size - request.size_bytes))
        # Not beyond the end of a curve, where a reference estimates.
        there = tuple(figure for figure in kind if figure.sizes[0] <= size_bytes <= figure.sizes[1])
        reference = references.Reference(there, size_bytes)
        ends = [end for span in reference.sources.values() for end in span]
        gbs = (min(ends), max(ends)) if ends else reference.band
        machine, state = reference.figure.machine, reference.figure.nvls
        origins = len({figure.origin for figure in there})
        sources = tuple(dict.fromkeys(figure.source for figure in there))
        yield Published(gbs, reference.band, origins, size_bytes, machine, state, sources)
