"""The best K devices by a run: one of this machine, whose finalists are measured, or of another machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.api import suitable_run
from collbench.api.measuring import present_devices
from collbench.api.notices import Notices
from collbench.api.selecting import Selected, SelectRequest, excluded, named
from collbench.api.sessions import measure, named_nccl, new_seed, wrong_data_of
from collbench.api.suitable_run import RunCriteria, SuitableRun
from collbench.judge.outcome import outcome
from collbench.launch import torchrun
from collbench.measurement.backends import factory
from collbench.measurement.plan import Request
from collbench.model.capabilities import capabilities, is_simulated
from collbench.model.errors import (
    CollbenchError,
    DataCorruption,
    ExitStatus,
    Interrupted,
    MachineError,
    NotTrusted,
    UsageError,
)
from collbench.model.operations import Operation, Work
from collbench.model.run import CommandKind, Device, Run
from collbench.model.units import format_size
from collbench.runfile import run_file, saved_runs

if TYPE_CHECKING:
    from collbench.choose.choice import Choice
    from collbench.choose.select import Decision, Origin

_ADVICE = "measure again, or add --any-machine to judge it as another machine's"


def by_a_run_of_elsewhere(request: SelectRequest, file: str) -> Selected:
    """Return the choice by a run of any machine. Raises UsageError, RunFileError."""
    from collbench.choose.select import Origin, choose  # late: numpy
    from collbench.report import choice_text

    run = run_file.load(Path(file))
    with choice_text.refusals():
        choice = choose(run, request.count, exclude=excluded(request, run.devices), allow_busy=request.allow_busy)
    mark = f"{run.backend} " if capabilities(run.backend).simulated else ""
    source = f"{mark}{torchrun.saved_run(run.started, file)}"
    origin = Origin.of(run, run.backend, source)
    return _answer(run, choice, origin)


def by_measurement(request: SelectRequest, notices: Notices) -> Selected:
    """Return the choice by a run of this machine, and what its finalists show. Raises CollbenchError, Interrupted."""
    criteria = _run_criteria(request)
    settle_by = None
    if request.scorer is not None:  # what cannot be replayed is refused before anything is measured
        settle_by = request.scorer.prepared(request.count, criteria.backend, request.fabric, notices, ("select",))
    found, run = _suitable_run(request, criteria, notices)
    from collbench.choose.select import Origin, choose  # late: numpy
    from collbench.report import choice_text

    with choice_text.refusals():
        choice = choose(run, request.count, exclude=excluded(request, run.devices), allow_busy=request.allow_busy)
    origin = Origin.of(run, criteria.backend, found.source)
    if settle_by is not None and not choice.failed:  # a replay on what failed may hang again
        settled = settle_by(choice, run)
        origin = replace(origin, verification=str(settled.path or ""))
        return _answer(run, settled.choice, origin, settled.decision)
    while True:
        # A set in which something failed cannot win, and measuring it may hang again.
        sets = tuple(finalist.members for finalist in choice.finalists if finalist.sound)
        if not _worth_measuring(request, choice, sets, criteria.backend):
            return _answer(run, choice, origin)
        finalists = FinalistRequest(run.backend, run.devices, sets, request.size_bytes, request.nccl, request.fabric)
        measured = partial(_measured_sets, finalists, notices)
        try:
            choice, files = by_finalists(choice, run, measured)
        except FinalistsFailed as error:
            known = outcome(run)
            if all(known.failed(some) for some in outcome(error.run).device_sets):
                raise  # nothing new to avoid
            notices.say(f"{error}; another set is chosen")
            failed = [one for one in error.run.measurements if one.failure is not None]
            run = replace(run, measurements=[*run.measurements, *failed], skipped=[*run.skipped, *error.run.skipped])
            with choice_text.refusals():
                choice = choose(
                    run, request.count, exclude=excluded(request, run.devices), allow_busy=request.allow_busy
                )
            if choice.failed:
                raise
            continue
        origin = replace(origin, verification=", ".join(map(str, files)), size_bytes=request.size_bytes)
        return _answer(run, choice, origin)


def _measured_sets(
    finalists: FinalistRequest, notices: Notices, sets: Iterable[tuple[int, ...]]
) -> tuple[Run, Path | None]:
    return measure_finalists(replace(finalists, sets=tuple(sets)), notices)


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
            f"no GPU to choose from: {why}; write RUN.JSON --any-machine or --topology FILE to judge another machine, "
            f"or --backend host for CPU cores{_simulated(request.count)}"
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


def _simulated(count: int) -> str:
    """Return that the newest saved run was simulated, and what takes it nevertheless; "" if it was not."""
    newest = next(iter(saved_runs.believed().files), None)
    if newest is None or not is_simulated(saved_runs.backend_of(newest)):
        return ""
    taking = shlex.join(["collbench", "select", str(count), str(newest), "--any-machine"])
    return f"; the newest saved run was simulated, and is taken only by name: {taking}"


def _suitable_run(request: SelectRequest, criteria: RunCriteria, notices: Notices) -> tuple[SuitableRun, Run]:
    """Return what to choose from, and it with the current health.

    Raises UsageError for more devices than there are, MachineError for none.
    """
    present, count = present_devices(criteria.backend, criteria.fabric), request.count
    if not present:
        raise MachineError("no GPU to choose from: CUDA shows none; see nvidia-smi and CUDA_VISIBLE_DEVICES")
    out = excluded(request, present)
    available = tuple(device for position, device in enumerate(present) if position not in out)
    if count > len(available):
        tags = ", ".join(device.tag for device in available) or "none"
        raise UsageError(f"{count} is more than the {len(available)} available here ({tags}): ask for fewer")
    return suitable_run.find(replace(criteria, all_wanted=count == len(present)), present, notices)


def _worth_measuring(request: SelectRequest, choice: Choice, sets: tuple[tuple[int, ...], ...], backend: str) -> bool:
    if request.verify is not None:
        return request.verify and bool(sets)
    return not capabilities(backend).cores and request.count > 1 and not choice.tied and len(sets) > 1


def _answer(run: Run, choice: Choice, origin: Origin, decision: Decision | None = None) -> Selected:
    from collbench.report.text import selection, verdicts

    binding = selection.line(run, choice.members)
    status = outcome(run).status if choice.failed else ExitStatus.DONE
    selected = named(choice, run.devices, origin, binding)
    return Selected(replace(selected, job=decision, contradiction=verdicts.contradiction(run)), status)


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


class FinalistsFailed(NotTrusted):
    """Sets that hung, failed or delivered wrong data; `run` has them, over all of the devices."""

    def __init__(self, text: str, status: int, run: Run) -> None:
        super().__init__(text, status)
        self.run = run


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
        text = "; ".join([f"the finalists: {headline(run)}", *wrong_data_of(run)])
        raise FinalistsFailed(f"{text}; {advice}{saved}", status, _over_all(run, request.devices, used))
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
        around_faults=True,
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
    skipped = [replace(left, members=tuple(used[position] for position in left.members)) for left in run.skipped]
    return replace(run, devices=tuple(devices), paths=(), measurements=measurements, skipped=skipped)
