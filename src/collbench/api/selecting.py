"""The best K devices: from a run of this machine, its finalists measured; from a run of another one; from labels."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.api import keywords
from collbench.api.notices import SILENT, Notices
from collbench.launch import formats
from collbench.machine import nvidia_smi, visible_devices
from collbench.machine.labels import labels_within
from collbench.model.capabilities import BACKENDS, CUDA
from collbench.model.errors import (
    ExitStatus,
    NotTrusted,
    UsageError,
)
from collbench.model.operations import Operation, Variant
from collbench.model.run import Device
from collbench.model.units import parse_size

if TYPE_CHECKING:
    from collbench.api.file_kinds import Scorer
    from collbench.choose.choice import Band, Choice
    from collbench.choose.select import Origin, Published, Selection

# What a large gradient bucket of DDP comes to after a few of its 25 MiB ones; large enough that bandwidth decides.
DEFAULT_SIZE = "64M"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectRequest:
    """What is asked: the best `count` devices, and what to choose them by.

    `run` is a run file, of this machine or with `elsewhere` of any; `topology` a file of nvidia-smi's labels, `gpu` the
    product name of the GPUs in it; `fabric` a machine for the sim backend to simulate. None of them: the newest saved
    run of this machine within `max_age`, else (`fresh`: always) a probe. `exclude` are indices and UUIDs with commas.
    `verify` measures the finalists at `size_bytes`; None: where the choice matters. `scorer` measures them in another
    way instead: by a recorded job.
    """

    count: int
    backend: str = "auto"
    fabric: str | None = None
    run: str | None = None
    any_machine: bool = False
    topology: str | None = None
    gpu: str | None = None
    exclude: str | None = None
    allow_busy: bool = False
    verify: bool | None = None
    size_bytes: int = parse_size(DEFAULT_SIZE)
    scorer: Scorer | None = None
    max_age: timedelta = timedelta(days=7)
    fresh: bool = False
    nccl: str | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for wishes that contradict each other."""
        keywords.check_fabric(self.backend, self.fabric)
        if self.fabric is not None and (self.run is not None or self.topology is not None):
            raise UsageError(
                f"--fabric {self.fabric} simulates a measurement; a run file or --topology replaces it: use only one"
            )
        if self.topology is not None and (self.run is not None or self.fresh or self.any_machine):
            raise UsageError(
                "--topology uses only labels, a run file, --fresh and --any-machine use runs: use only one"
            )
        if self.gpu is not None and (self.topology is None or not self.gpu.strip()):
            raise UsageError("--gpu names the GPUs of a --topology FILE, as in --gpu H100")
        if self.run is not None and self.fresh:
            raise UsageError(f"{self.run} is a saved run, and --fresh ignores saved runs: use only one")
        if self.any_machine and self.run is None:
            raise UsageError("--any-machine needs the run of the other machine: write select K RUN.JSON --any-machine")
        if self.verify and (self.topology is not None or self.any_machine):
            raise UsageError(
                "--verify measures this machine, --topology and --any-machine describe another one: use only one"
            )
        if self.scorer is not None:
            self._check_job()
        if self.verify and self.count == 1:
            raise UsageError("--verify measures all-reduces, and one device has none: leave it out")

    def _check_job(self) -> None:
        if self.topology is not None or self.any_machine:
            raise UsageError("--job replays here, --topology and --any-machine describe another machine: use only one")
        if self.verify is not None:
            raise UsageError("--job replays the job on the finalists, --verify measures all-reduces: use only one")
        if self.nccl is not None:
            raise UsageError(
                "--job replays with torch's NCCL, and --nccl or COLLBENCH_NCCL names another: use only one"
            )


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


def select_devices(request: SelectRequest, notices: Notices = SILENT) -> Selected:
    """Return the best devices, and why. Raises CollbenchError, Interrupted."""
    if request.topology is not None:
        return Selected(_by_labels(request, request.topology))
    from collbench.api import select_by_run  # late: labels need none of it

    if request.any_machine and request.run is not None:
        return select_by_run.by_a_run_of_elsewhere(request, request.run)
    return select_by_run.by_measurement(request, notices)


def _by_labels(request: SelectRequest, topology: str) -> Selection:
    devices, paths = nvidia_smi.facts(nvidia_smi.read_topology(Path(topology)))
    if request.gpu is not None:
        devices = tuple(replace(device, name=request.gpu) for device in devices)
    from collbench.choose.select import Origin, choose_by_labels  # late: numpy, scipy

    choice = choose_by_labels(devices, paths, request.count, exclude=excluded(request, devices))
    selection = named(choice, devices, Origin("labels", f"labels in {topology}"))
    names = {devices[member].name for member in choice.members}
    if len(names) > 1 or "" in names or request.count < 2:
        return selection
    labels = labels_within(paths, choice.members)
    return replace(selection, published=tuple(_published(names.pop(), labels, request)))


def _published(name: str, labels: Sequence[str], request: SelectRequest) -> Iterator[Published]:
    """Yield the reference figures of all-reduces on as many such GPUs with such labels, at the size nearest the asked.

    What was measured says more than what an acceptance test asks for, which is left out beside it.
    """
    from collbench.choose.select import Published
    from collbench.judge import references

    told = any(map(str.isdigit, name)) and any(map(str.isalpha, name))  # "H100": in the words of the figure's machine
    known = [
        figure
        for figure in references.load()
        if (figure.operation, figure.variant, figure.ranks) == (Operation.ALLREDUCE, Variant.PLAIN, request.count)
        and (figure.is_of(name) or (told and re.search(rf"\b{re.escape(name)}\b", figure.machine, re.IGNORECASE)))
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
        yield Published(gbs, size_bytes, machine, state, tuple(dict.fromkeys(figure.source for figure in there)))


def excluded(request: SelectRequest, devices: Sequence[Device]) -> tuple[int, ...]:
    """Return the positions that are excluded. Raises UsageError."""
    if request.exclude is None:
        return ()
    return tuple(devices.index(device) for device in visible_devices.select(devices, request.exclude))


def named(choice: Choice, devices: Sequence[Device], origin: Origin, binding: str = "") -> Selection:
    """Return the choice among these devices, whose positions it holds, by name."""
    from collbench.choose.select import Finalist, Omitted, Selection

    def tags(members: Sequence[int]) -> tuple[str, ...]:
        return tuple(devices[position].tag for position in members)

    def rates(band: Band | None) -> tuple[float, float] | None:
        return None if band is None or choice.estimated else (band.lo, band.hi)

    def failure(members: tuple[int, ...]) -> str:
        above_limit = " (a rate above the limit)" if members in choice.impossible else ""
        return f"{', '.join(tags(members))}{above_limit}"

    chosen = [devices[position] for position in choice.members]
    measured = {}
    for finalist in choice.verified:
        low, high = finalist.interval or (finalist.gbs, finalist.gbs)
        measured[finalist.members] = low, finalist.gbs, high
    return Selection(
        devices=tuple(chosen),
        environment=formats.variables(chosen) if origin.acts else {},
        reason=choice.why(devices),
        origin=origin,
        predicted=rates(choice.band),
        predicted_how=choice.band.basis if choice.band and not choice.estimated else "",
        finalists=tuple(
            Finalist(tags(one.members), rates(one.band), measured.get(one.members), one.default)
            for one in choice.finalists
        ),
        gain=choice.gain,
        decided_by=", then ".join(choice.decided_by),
        tied=choice.tied,
        heuristic=choice.heuristic,
        estimated=choice.estimated,
        left_out=tuple(Omitted(devices[left.member].tag, left.reason) for left in choice.left_out),
        binding=binding,
        failed=tuple(failure(members) for members in choice.failed),
    )


# The Python call.

_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED [cuda.h]: this process has not called cuInit


def select(  # noqa: PLR0913 - keywords, each an option of the command line
    k: int,
    *,
    run: str | os.PathLike[str] | None = None,
    exclude: Iterable[int | str] = (),
    allow_busy: bool = False,
    verify: bool | None = None,
    size: int | str | None = None,
    fresh: bool = False,
    job: object | None = None,
    backend: str = CUDA.name,
    fabric: str | os.PathLike[str] | None = None,
) -> Selection:
    """Choose this machine's best `k` GPUs, set CUDA_VISIBLE_DEVICES to them, and return them with the reasons.

    The options are those of `collbench select`: `run` is a run file to choose from, `exclude` indices or UUIDs, `size`
    bytes or a text such as "64M", and `job` a job from `load_job`, as with --job. With `verify` None, the finalists are
    measured if the choice matters. Call it before CUDA starts in this process. Worker processes take all measurements
    and end before it returns. With `backend` "sim" it chooses among the GPUs of the simulated machine `fabric`, with
    "host" among CPU cores; both leave the environment as it is. Raises Error; the environment is then unchanged, too.
    """
    keywords.check_only_process("select")
    backend = keywords.text("backend", backend, choices=("auto", *BACKENDS))
    if backend not in BACKENDS or BACKENDS[backend].nvml:
        _check_cuda_is_down()
    scorer = None
    if job is not None:
        from collbench.api import file_kinds

        scorer = file_kinds.kind(file_kinds.JOB).scorer(job, "job")
        if size is not None:
            raise UsageError("job is replayed in its own sizes, and size is for all-reduces: use only one")
    request = SelectRequest(
        count=keywords.whole("k", k, least=1),
        backend=backend,
        fabric=keywords.optional(keywords.file_name, fabric),
        run=keywords.optional(keywords.file_name, run),
        exclude=_excluded_gpus(exclude),
        allow_busy=keywords.flag("allow_busy", allow_busy),
        verify=keywords.optional(keywords.flag, "verify", verify),
        size_bytes=keywords.size(DEFAULT_SIZE if size is None else size),
        fresh=keywords.flag("fresh", fresh),
        scorer=scorer,
    )
    selection = select_devices(request).check()
    os.environ.update(selection.environment)
    return selection


def _excluded_gpus(value: object) -> str | None:
    """Return the indices and UUIDs of a list, with commas between them; None for none."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise UsageError(f"exclude={value!r} is not a list of GPUs: write [0, 3], or a list of UUIDs")
    gpus = list(value)
    return keywords.listed("exclude", gpus) if gpus else None


def _check_cuda_is_down() -> None:
    """Raise UsageError if CUDA has started in this process: it reads CUDA_VISIBLE_DEVICES only at its start."""
    user = _cuda_user()
    if user:
        raise UsageError(
            f"collbench.select came too late: {user} in this process, and CUDA reads CUDA_VISIBLE_DEVICES only when it "
            "starts; call select before anything uses a GPU"
        )


def _cuda_user() -> str:
    """Return what started CUDA in this process, as a clause; "" if nothing did.

    torch.cuda.is_available() may start the driver without torch knowing. RTLD_NOLOAD finds the driver only if it is
    loaded, and querying the number of devices starts nothing.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "torch has started CUDA"
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return ""
    status = driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    return "" if status == _NOT_INITIALIZED else "CUDA has started"
