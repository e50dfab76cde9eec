"""The best K devices by a run: one of this machine, whose finalists are measured, or of another machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from collbench.api import Notices, suitable_run
from collbench.api.file_kinds import Settled
from collbench.api.measuring import measure, named_nccl, new_seed, wrong_data_of
from collbench.api.selecting import ChoiceRequest, Selected, SelectRequest, named
from collbench.api.suitable_run import RunCriteria, SuitableRun
from collbench.choose.choice import Choice, Decision, Omitted, Origin
from collbench.choose.restrict import spread
from collbench.judge.outcome import outcome
from collbench.launch import torchrun
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Present
from collbench.measurement.plan import Request
from collbench.model.capabilities import capabilities, is_simulated
from collbench.model.errors import (
    CollbenchError,
    DataCorruption,
    ExitStatus,
    Interrupted,
    MachineError,
    NotTrusted,
)
from collbench.model.operations import Operation, Work
from collbench.model.run import CommandKind, Device, Run
from collbench.model.units import format_size
from collbench.runfile import run_file, saved_runs


def by_a_run_of_elsewhere(request: SelectRequest, file: str) -> Selected:
    """Return the choice by a run of any machine. Raises UsageError, RunFileError."""
    run = run_file.load(Path(file))
    choice = _chosen(request, run, request.excluded(run.devices))
    mark = f"{run.backend} " if capabilities(run.backend).simulated else ""
    source = f"{mark}{torchrun.saved_run(run.started, file)}"
    return _answer(run, choice, _origin(run, run.backend, source))


def by_measurement(request: SelectRequest, notices: Notices) -> Selected:
    """Return the choice by a run of this machine, and what its finalists show. Raises CollbenchError, Interrupted."""
    criteria = suitable_run.criteria_of(request, _present(request))
    found, settled = chosen_by_run(request, criteria, notices, verify=request)
    size = request.size_bytes if settled.files is not None and request.scorer is None else None
    files = ", ".join(map(str, settled.files or ()))
    origin = replace(_origin(found.run, criteria.backend, found.source), verification=files, size_bytes=size)
    answer = _answer(found.run, settled.choice, origin, settled.decision)
    left_out = (Omitted(device.tag, why) for device, why in criteria.never_chosen)
    selection = replace(answer.selection, left_out=(*answer.selection.left_out, *left_out))
    return replace(answer, selection=selection)


def chosen_by_run(
    request: ChoiceRequest,
    criteria: RunCriteria,
    notices: Notices,
    verify: SelectRequest | None = None,
) -> tuple[SuitableRun, Settled]:
    """Return a run of this machine, and the best candidates by it; the request's job settles the choice.

    Without a job, all-reduces of the finalists decide where `verify` asks for it and the choice matters; a set on which
    something fails then is chosen no more. Raises CollbenchError, Interrupted.
    """
    settle_by = None
    if request.scorer is not None:  # what cannot be replayed is refused before anything is measured
        settle_by = request.scorer.prepared(request.count, criteria.backend, request.fabric, notices, request.command)
    found = suitable_run.find(criteria, notices)
    choice = _chosen(request, found.run)
    if settle_by is not None and not choice.failed:  # a replay on what failed may hang again
        return found, settle_by(choice, found.run)
    while verify is not None and _worth_measuring(verify, choice, criteria.backend):
        try:
            choice, files = by_finalists(choice, found.run, partial(measure_finalists, verify, found.run, notices))
            return found, Settled(choice, files=files)
        except FinalistsFailed as error:
            found = replace(found, run=_with_failures(found.run, error))
            notices.say(f"{error}; another set is chosen")
            choice = _chosen(request, found.run)
            if choice.failed:
                raise
    return found, Settled(choice)


def _chosen(request: ChoiceRequest, run: Run, exclude: Sequence[Device] = ()) -> Choice:
    from collbench.choose.select import choose  # late: numpy

    names = {device.uuid for device in exclude}
    out = [position for position, device in enumerate(run.devices) if device.uuid in names]
    return choose(run, request.count, exclude=out, allow_busy=request.allow_busy)


def _origin(run: Run, backend: str, source: str) -> Origin:
    """Return the origin of a choice that a run's pairs decide."""
    from collbench.choose.select import evidence  # late: numpy

    ranking = evidence(run)
    by = (ranking.work.operation, ranking.size_bytes) if ranking else (None, None)
    return Origin(backend, source, run.machine.hostname, run.machine.fabric, operation=by[0], measured_bytes=by[1])


def _with_failures(run: Run, error: FinalistsFailed) -> Run:
    """Return the run with what failed on finalists. Raises the error if it shows nothing new to avoid."""
    known = outcome(run)
    if all(known.failed(some) for some in outcome(error.run).device_sets):
        raise error
    failed = [one for one in error.run.measurements if one.failure is not None]
    return replace(run, measurements=[*run.measurements, *failed], skipped=[*run.skipped, *error.run.skipped])


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


def _present(request: SelectRequest) -> Present:
    """Return the devices of this machine, or of the one to simulate. Raises MachineError for no GPU."""
    backend, why = factory.resolve(request.backend)
    if why is not None:
        if request.run is not None:
            taking = _taking(request.count, request.run)
            raise MachineError(f"no GPU to choose from: {why}; to choose by this run of another machine: {taking}")
        raise MachineError(
            f"no GPU to choose from: {why}; write RUN.JSON --any-machine or --topology FILE to judge another machine, "
            f"or --backend host for CPU cores{_simulated(request.count)}"
        )
    if capabilities(backend).simulated:
        return factory.look_simulated(request.fabric)
    return factory.look(backend)


def _simulated(count: int) -> str:
    """Return that the newest saved run with pairs was simulated, and what takes it nevertheless; "" if it was not."""
    kinds = CommandKind.PAIRS, CommandKind.CHECK
    newest = next((path for path in saved_runs.believed().files if saved_runs.command_of(path) in kinds), None)
    if newest is None or not is_simulated(saved_runs.backend_of(newest)):
        return ""
    taking = _taking(count, str(newest))
    return f"; the newest saved pairs were simulated, and are taken only by name: {taking}"


def _taking(count: int, run: str) -> str:
    """Return the command that takes a run of any machine."""
    return shlex.join(["collbench", "select", str(count), run, "--any-machine"])


def _worth_measuring(request: SelectRequest, choice: Choice, backend: str) -> bool:
    """Return whether to measure the sound finalists; one in which something failed cannot win, and may hang again."""
    sound = sum(finalist.sound for finalist in choice.finalists)
    if request.verify is not None:
        return request.verify and sound > 0
    return not capabilities(backend).cores and request.count > 1 and not choice.tied and sound > 1


def _answer(run: Run, choice: Choice, origin: Origin, decision: Decision | None = None) -> Selected:
    from collbench.report.text import verdicts

    status = outcome(run).status if choice.failed else ExitStatus.DONE
    selected = named(choice, run.devices, origin)
    return Selected(replace(selected, job=decision, contradiction=verdicts.contradiction(run)), status)


# The finalists of a choice: before one is chosen, each is measured with real all-reduces, isolated and in turn.


class FinalistsFailed(NotTrusted):
    """Sets that hung, failed or delivered wrong data; `run` has them, over all of the devices."""

    def __init__(self, text: str, status: int, run: Run) -> None:
        super().__init__(text, status)
        self.run = run


def measure_finalists(
    request: SelectRequest, run: Run, notices: Notices, finalists: Iterable[Sequence[int]]
) -> tuple[Run, Path | None]:
    """Return the finalists' all-reduces as a run over all devices of `run`, and the file that keeps it, if one can.

    Only devices in a set are opened. Raises what measuring raises, with advice, NotTrusted for a set that failed, and
    Interrupted.
    """
    sets = tuple(finalists)
    used = sorted({position for members in sets for position in members})
    path = None
    if not capabilities(run.backend).simulated:
        # Beside the folder of runs that choices go by, for a few sets say little about all pairs.
        path = saved_runs.new_run("select", run.backend, notices.say, saved_runs.FINALISTS)
    notices.say(f"measuring {len(sets)} sets at {format_size(request.size_bytes)}")
    asked = Request(
        backend=run.backend,
        devices=",".join(run.devices[member].uuid for member in used),
        sizes=(request.size_bytes,),
        collectives=(Work(Operation.ALLREDUCE),),
        nccl=named_nccl(request.nccl),
        seed=new_seed(),
        command=("select", str(request.count)),
        kind=CommandKind.SELECT,
        sets=tuple(tuple(map(used.index, members)) for members in sets),
        fabric=request.fabric,
        around_faults=True,
    )
    try:
        measured = measure(asked, path, notices, "measuring the finalists")
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted while measuring the finalists: nothing was chosen") from error
    except DataCorruption:
        raise  # its text names the link
    except CollbenchError as error:
        raise error.reworded(f"cannot measure the finalists: {error}; --no-verify chooses by prediction") from error
    own = run_file.again(measured.run)
    over_all = spread(own, run.devices, used)
    if status := outcome(own).status:
        from collbench.report.text.frame import headline

        advice = "nothing was chosen; leave these devices out with --exclude"
        saved = f"; the run is {measured.path}" if measured.path else ""
        text = "; ".join([f"the finalists: {headline(own)}", *wrong_data_of(own)])
        raise FinalistsFailed(f"{text}; {advice}{saved}", status, over_all)
    return over_all, measured.path
