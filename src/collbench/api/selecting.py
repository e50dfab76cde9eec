"""The best K devices: from a run of this machine, its finalists measured; from a run of another one; from labels."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.api import file_kinds, keywords, suitable_run
from collbench.api.measuring import check_fabric, present_devices
from collbench.api.notices import SILENT, Notices
from collbench.api.sessions import measure, named_nccl, new_seed
from collbench.api.suitable_run import RunCriteria, SuitableRun
from collbench.judge.outcome import outcome
from collbench.launch import formats, torchrun
from collbench.machine import nvidia_smi, visible_devices
from collbench.machine.labels import labels_within
from collbench.measurement.backends import factory
from collbench.measurement.plan import Request
from collbench.model.capabilities import BACKENDS, CUDA, capabilities
from collbench.model.errors import (
    CollbenchError,
    DataCorruption,
    ExitStatus,
    Interrupted,
    MachineError,
    NotTrusted,
    UsageError,
)
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import CommandKind, Device, Run
from collbench.model.units import format_size, parse_size
from collbench.runfile import run_file, saved_runs

if TYPE_CHECKING:
    from collbench.choose.choice import Band, Choice
    from collbench.choose.select import Decision, Origin, Published, Selection

# What a large gradient bucket of DDP comes to after a few of its 25 MiB ones; large enough that bandwidth decides.
DEFAULT_SIZE = "64M"
_ADVICE = "measure again, or add --elsewhere to judge it as another machine's"


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
    elsewhere: bool = False
    topology: str | None = None
    gpu: str | None = None
    exclude: str | None = None
    allow_busy: bool = False
    verify: bool | None = None
    size_bytes: int = parse_size(DEFAULT_SIZE)
    scorer: file_kinds.Scorer | None = None
    max_age: timedelta = timedelta(days=7)
    fresh: bool = False
    nccl: str | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for wishes that contradict each other."""
        check_fabric(self.backend, self.fabric)
        if self.fabric is not None and (self.run is not None or self.topology is not None):
            raise UsageError(
                f"--fabric {self.fabric} simulates a measurement; a run file or --topology replaces it: use only one"
            )
        if self.topology is not None and (self.run is not None or self.fresh or self.elsewhere):
            raise UsageError("--topology uses only labels, a run file, --fresh and --elsewhere use runs: use only one")
        if self.gpu is not None and (self.topology is None or not self.gpu.strip()):
            raise UsageError("--gpu names the GPUs of a --topology FILE, as in --gpu H100")
        if self.run is not None and self.fresh:
            raise UsageError(f"{self.run} is a saved run, and --fresh ignores saved runs: use only one")
        if self.elsewhere and self.run is None:
            raise UsageError("--elsewhere needs the run of the other machine: write select K RUN.JSON --elsewhere")
        if self.verify and (self.topology is not None or self.elsewhere):
            raise UsageError(
                "--verify measures this machine, --topology and --elsewhere describe another one: use only one"
            )
        if self.scorer is not None:
            self._check_job()
        if self.verify and self.count == 1:
            raise UsageError("--verify measures all-reduces, and one device has none: leave it out")

    def _check_job(self) -> None:
        if self.topology is not None or self.elsewhere:
            raise UsageError("--for replays here, --topology and --elsewhere describe another machine: use only one")
        if self.verify is not None:
            raise UsageError("--for replays the job on the finalists, --verify measures all-reduces: use only one")
        if self.nccl is not None:
            raise UsageError(
                "--for replays with torch's NCCL, and --nccl or COLLBENCH_NCCL names another: use only one"
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
    if request.elsewhere and request.run is not None:
        return _by_a_run_of_elsewhere(request, request.run)
    return _by_measurement(request, notices)


def _by_labels(request: SelectRequest, topology: str) -> Selection:
    devices, paths = nvidia_smi.facts(nvidia_smi.read_topology(Path(topology)))
    if request.gpu is not None:
        devices = tuple(replace(device, name=request.gpu) for device in devices)
    from collbench.choose.select import Origin, choose_by_labels  # late: numpy, scipy

    with suitable_run.refusals():
        choice = choose_by_labels(devices, paths, request.count, exclude=_excluded(request, devices))
    selection = _named(choice, devices, Origin("labels", f"labels in {topology}"))
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
    kinds = dict.fromkeys((figure.machine, figure.nvls) for figure in known)
    for machine, state in kinds:
        figures = [figure for figure in known if (figure.machine, figure.nvls) == (machine, state)]
        figures = [figure for figure in figures if figure.measured] or [figure for figure in figures if figure.at_least]
        if figures:
            asked = request.size_bytes
            size_bytes = min((sorted((*one.sizes, asked))[1] for one in figures), key=lambda size: abs(size - asked))
            there = [figure for figure in figures if figure.sizes[0] <= size_bytes <= figure.sizes[1]]
            values = [value for figure in there for value in (*figure.measured, figure.at_least) if value]
            gbs = min(values), max(values) if figures[0].measured else None
            yield Published(gbs, size_bytes, machine, state, tuple(dict.fromkeys(figure.source for figure in there)))


def _by_a_run_of_elsewhere(request: SelectRequest, file: str) -> Selected:
    from collbench.choose.select import Origin, choose  # late: numpy

    run = run_file.load(Path(file))
    with suitable_run.refusals():
        choice = choose(run, request.count, exclude=_excluded(request, run.devices), allow_busy=request.allow_busy)
    mark = f"{run.backend} " if capabilities(run.backend).simulated else ""
    source = f"{mark}{torchrun.saved_run(run.started, file)}"
    origin = Origin.of(run, run.backend, source)
    return _answer(run, choice, origin)


def _by_measurement(request: SelectRequest, notices: Notices) -> Selected:
    criteria = _run_criteria(request)
    settle_by = None
    if request.scorer is not None:  # what cannot be replayed is refused before anything is measured
        settle_by = request.scorer.prepared(request.count, criteria.backend, request.fabric, notices, ("select",))
    found, run = _suitable_run(request, criteria, notices)
    from collbench.choose.select import Origin, choose  # late: numpy

    with suitable_run.refusals():
        choice = choose(run, request.count, exclude=_excluded(request, run.devices), allow_busy=request.allow_busy)
    origin = Origin.of(run, criteria.backend, found.source)
    if settle_by is not None:
        settled = settle_by(choice, run)
        origin = replace(origin, verification=str(settled.path or ""))
        return _answer(run, settled.choice, origin, settled.decision)
    # A set in which something failed cannot win, and measuring it may hang again.
    sets = tuple(finalist.members for finalist in choice.finalists if finalist.sound)
    if _worth_measuring(request, choice, sets, criteria.backend):
        finalists = FinalistRequest(run.backend, run.devices, sets, request.size_bytes, request.nccl, request.fabric)
        choice, files = by_finalists(
            choice, run, lambda sets: measure_finalists(replace(finalists, sets=tuple(sets)), notices)
        )
        origin = replace(origin, verification=", ".join(map(str, files)), size_bytes=request.size_bytes)
    return _answer(run, choice, origin)


def by_finalists(
    choice: Choice, run: Run, measured_sets: Callable[[Iterable[tuple[int, ...]]], tuple[Run, Path | None]]
) -> tuple[Choice, list[Path]]:
    """Return the choice, made from `run`, that `measured_sets` of its sound finalists decides, and the files of that.

    If that leaves other sets a chance, these are measured, too, with the winner and the first k once more, so that all
    that is compared was measured in turn.
    """
    from collbench.choose.search import FURTHER_ROUNDS
    from collbench.choose.select import further_finalists, settle

    measured, path = measured_sets(some.members for some in choice.finalists if some.sound)
    settled, files = settle(choice, measured), [path]
    for _ in range(FURTHER_ROUNDS):
        more = [some for some in further_finalists(choice, run, measured) if some.sound]
        if not more:
            break
        default = [some.members for some in choice.finalists if some.default and some.sound]
        choice = replace(choice, finalists=(*choice.finalists, *more))
        again = dict.fromkeys([settled.members, *default, *(some.members for some in more)])
        new, path = measured_sets(again)
        measured = replace(measured, measurements=[*measured.measurements, *new.measurements])
        settled, files = settle(choice, measured), [*files, path]
    return settled, [file for file in files if file]


def _run_criteria(request: SelectRequest) -> RunCriteria:
    """Return which evidence will do. Raises MachineError if "auto" finds no GPU."""
    backend, why = factory.resolve(request.backend)
    if why is not None:
        raise MachineError(
            f"no GPU to choose from: {why}; write RUN.JSON --elsewhere or --topology FILE to judge another machine, or "
            "--backend host for CPU cores"
        )
    return RunCriteria(
        backend,
        request.run,
        request.max_age,
        request.fresh,
        request.nccl,
        undone="nothing was chosen",
        advice=_ADVICE,
        fabric=request.fabric,
        allow_busy=request.allow_busy,
    )


def _suitable_run(request: SelectRequest, criteria: RunCriteria, notices: Notices) -> tuple[SuitableRun, Run]:
    """Return what to choose from, and it with the current health.

    Raises UsageError for more devices than there are, MachineError for none.
    """
    present, count = present_devices(criteria.backend, criteria.fabric), request.count
    if not present:
        raise MachineError("no GPU to choose from: CUDA shows none; see nvidia-smi and CUDA_VISIBLE_DEVICES")
    excluded = _excluded(request, present)
    available = tuple(device for position, device in enumerate(present) if position not in excluded)
    if count > len(available):
        tags = ", ".join(device.tag for device in available) or "none"
        raise UsageError(f"{count} is more than the {len(available)} available here ({tags}): ask for fewer")
    if count == len(present) and request.run is None:
        found = suitable_run.nothing_to_compare(criteria.backend, present, criteria.fabric)
        return found, found.as_now()
    return suitable_run.find(criteria, present, notices)


def _excluded(request: SelectRequest, devices: Sequence[Device]) -> tuple[int, ...]:
    """Return the positions that are excluded. Raises UsageError."""
    if request.exclude is None:
        return ()
    return tuple(devices.index(device) for device in visible_devices.select(devices, request.exclude))


def _worth_measuring(request: SelectRequest, choice: Choice, sets: tuple[tuple[int, ...], ...], backend: str) -> bool:
    if request.verify is not None:
        return request.verify and bool(sets)
    return not capabilities(backend).cores and request.count > 1 and not choice.tied and len(sets) > 1


def _answer(run: Run, choice: Choice, origin: Origin, decision: Decision | None = None) -> Selected:
    from collbench.report.text import selection, verdicts

    binding = selection.line(run, choice.members)
    status = outcome(run).status if choice.failed else ExitStatus.DONE
    named = _named(choice, run.devices, origin, binding)
    return Selected(replace(named, job=decision, contradiction=verdicts.contradiction(run)), status)


def _named(choice: Choice, devices: Sequence[Device], origin: Origin, binding: str = "") -> Selection:
    """Return the choice among these devices, whose positions it holds, by name."""
    from collbench.choose.select import Finalist, Omitted, Selection
    from collbench.report import sentences

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
        reason=sentences.reason(choice, devices),
        origin=origin,
        predicted=rates(choice.band),
        predicted_how=sentences.band_basis(choice.band) if choice.band and not choice.estimated else "",
        finalists=tuple(
            Finalist(tags(one.members), rates(one.band), measured.get(one.members), one.default)
            for one in choice.finalists
        ),
        gain=choice.gain,
        decided_by=sentences.tie_breaks(choice.decided_by),
        tied=choice.tied,
        heuristic=choice.heuristic,
        estimated=choice.estimated,
        left_out=tuple(Omitted(devices[left.member].tag, sentences.left_out(left)) for left in choice.left_out),
        binding=binding,
        failed=tuple(failure(members) for members in choice.failed),
    )


# The finalists of a choice: before one is chosen, each is measured with real all-reduces, isolated and in turn.


@dataclass(frozen=True, slots=True)
class FinalistRequest:
    """What one measuring of finalists needs: the devices that a choice's positions mean, sets, a size, an NCCL."""

    backend: str
    devices: Sequence[Device]
    sets: tuple[tuple[int, ...], ...]
    size_bytes: int
    nccl: str | None
    fabric: str | None = None


def measure_finalists(request: FinalistRequest, notices: Notices) -> tuple[Run, Path | None]:
    """Return the sets' all-reduces as a run over all of the devices, and the file that keeps it, if one can.

    Only devices in a set are opened. Raises what measuring raises, with advice, NotTrusted for a set that failed, and
    Interrupted.
    """
    used = sorted({position for members in request.sets for position in members})
    path = None
    if not capabilities(request.backend).simulated:
        # Beside the folder of runs that choices go by, for a few sets say little about all pairs.
        path = saved_runs.new_run("select", request.backend, notices.say, saved_runs.FINALISTS)
    notices.say(f"measuring {len(request.sets)} sets at {format_size(request.size_bytes)}")
    try:
        measured = measure(_finalists_request(request, used), path, notices, "measuring the finalists")
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted while measuring the finalists: nothing was chosen") from error
    except DataCorruption:
        raise  # its text names the link
    except CollbenchError as error:
        raise error.reworded(f"cannot measure the finalists: {error}; --no-verify chooses by prediction") from error
    run = run_file.again(measured.run)
    if status := outcome(run).status:
        from collbench.report.text.frame import headline

        advice = "nothing was chosen; leave these devices out with --exclude"
        saved = f"; the run is {measured.path}" if measured.path else ""
        raise NotTrusted(f"the finalists: {headline(run)}; {advice}{saved}", status)
    return _over_all(run, request.devices, used), measured.path


def _finalists_request(request: FinalistRequest, used: Sequence[int]) -> Request:
    position = {member: number for number, member in enumerate(used)}
    return Request(
        backend=request.backend,
        devices=",".join(request.devices[member].uuid for member in used),
        sizes=(request.size_bytes,),
        collectives=(Work(Operation.ALLREDUCE),),
        nccl=named_nccl(request.nccl),
        seed=new_seed(),
        command=("select", str(len(request.sets[0]))),
        kind=CommandKind.SELECT,
        sets=tuple(tuple(position[member] for member in members) for members in request.sets),
        fabric=request.fabric,
    )


def _over_all(run: Run, devices: Sequence[Device], used: Sequence[int]) -> Run:
    """Return the run with its members as positions in `devices`."""
    measurements = [
        replace(
            measurement,
            point=replace(measurement.point, members=tuple(used[position] for position in measurement.point.members)),
        )
        for measurement in run.measurements
    ]
    return replace(run, devices=tuple(devices), paths=(), measurements=measurements)


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
    bytes or a text such as "64M", and `job` a job from `load_job`, as with --for. With `verify` None, the finalists are
    measured if the choice matters. Call it before CUDA starts in this process. Worker processes take all measurements
    and end before it returns. With `backend` "sim" it chooses among the GPUs of the simulated machine `fabric`, with
    "host" among CPU cores; both leave the environment as it is. Raises Error; the environment is then unchanged, too.
    """
    keywords.check_only_process("select")
    backend = keywords.text("backend", backend, choices=("auto", *BACKENDS))
    if backend not in BACKENDS or BACKENDS[backend].visible:
        _check_cuda_is_down()
    scorer = None
    if job is not None:
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
