"""The best K devices by a run: of another machine, or of this one, with its finalists measured; and which run it is."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

from collbench import __version__, annexes, untrusted
from collbench.api import Notices
from collbench.api.keywords import new_seed
from collbench.api.measuring import measure, wrong_data_of
from collbench.api.selecting import ChoiceRequest, Selected, SelectRequest, named
from collbench.choose import freshness
from collbench.choose.choice import QUICK_PROBE, Choice, Omitted, Origin, against, saved_run
from collbench.choose.fitness import left_out
from collbench.choose.freshness import part, spread
from collbench.judge.outcome import outcome
from collbench.machine import kernel
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Present
from collbench.measurement.plan import Request
from collbench.model.errors import (
    CollbenchError,
    DataCorruption,
    ExitStatus,
    Interrupted,
    MachineError,
    NotTrusted,
    RunFileError,
    UsageError,
)
from collbench.model.operations import Operation, Variant, Work, format_version
from collbench.model.run import (
    CommandKind,
    Device,
    FlagKind,
    Health,
    Run,
    Sample,
    Settings,
    capabilities,
    device_sets,
    is_simulated,
)
from collbench.model.units import format_size, parse_sizes, verb
from collbench.report.views import PeerAccess
from collbench.runfile import run_file
from collbench.runfile.codec import MAX_BYTES


def by_a_run_of_elsewhere(request: SelectRequest, file: str) -> Selected:
    """Return the choice by a run of any machine. Raises UsageError, RunFileError."""
    run = run_file.load(Path(file))
    try:
        choice = _chosen(request, run, request.excluded(run.devices))
    except NotTrusted as error:
        raise NotTrusted(f"{error}: 'collbench show {shlex.quote(file)}' says where", error.exit_code) from error
    mark = f"{run.backend} " if capabilities(run.backend).simulated else ""
    source = f"{mark}{saved_run(run.started, file)}"
    return _answer(run, choice, _origin(run, run.backend, source))


def by_measurement(request: SelectRequest, notices: Notices) -> Selected:
    """Return the choice by a run of this machine, and what its finalists show. Raises CollbenchError, Interrupted."""
    criteria = criteria_of(request, _present(request))
    found, choice, files = chosen_by_run(request, criteria, notices, verify=request)
    origin = replace(
        _origin(found.run, criteria.backend, found.source),
        verification=", ".join(map(str, files or ())),
        size_bytes=None if files is None else request.size_bytes,
    )
    left_out = [Omitted(device.tag, why) for device, why in criteria.never_chosen]
    answer = _answer(found.run, choice, origin, left_out)
    if found.run.measurements or capabilities(criteria.backend).cores or request.count == 1:
        return answer
    return _with_peers(answer, request, criteria.backend, notices)


def _with_peers(answer: Selected, request: SelectRequest, backend: str, notices: Notices) -> Selected:
    """Return the answer with what P2P does between the only two devices, which no run shows.

    It is not tried where more devices, or the work of others on them, would make that longer than a choice may take.
    """
    selection = answer.selection
    if (p2p := annexes.hook("p2p")) is None:
        return answer
    if request.count > 2 or request.allow_busy or request.verify is False:
        source = f"{selection.origin.source}; collbench check --map-p2p tries P2P"
        return replace(answer, selection=replace(selection, origin=replace(selection.origin, source=source)))
    devices = ",".join(device.uuid for device in selection.devices)
    if not capabilities(backend).simulated:
        notices.say("trying P2P between the only two GPUs for a few seconds")
    with _rewording(f"while trying P2P: {request.undone}", "cannot try P2P: {}; --no-verify leaves it out"):
        links: PeerAccess = p2p.examine(devices, backend, request.fabric, request.nccl, new_seed())
    if links.status is ExitStatus.DONE or links.unanswered:
        origin = replace(selection.origin, source=f"no choice to make; {links.finding}")
        return replace(answer, selection=replace(selection, origin=origin))
    tried = "simulated" if capabilities(backend).simulated else "tried"
    origin = replace(selection.origin, source=f"no choice to make, P2P {tried} just now")
    pair = device_sets([(0, 1)], selection.devices)
    selection = replace(selection, origin=origin, contradiction=links.finding)
    if links.status is ExitStatus.CONTRADICTION:
        return replace(answer, selection=selection)
    failed = (f"{pair} ({links.words.rstrip('.')})",)
    selection = replace(selection, failed=failed, reason=f"{selection.reason}; includes failed {pair}")
    return Selected(selection, links.status)


def chosen_by_run(
    request: ChoiceRequest,
    criteria: RunCriteria,
    notices: Notices,
    verify: SelectRequest | None = None,
) -> tuple[SuitableRun, Choice, Sequence[Path] | None]:
    """Return a run of this machine, the best candidates by it, and the files of their measurements; None for none.

    All-reduces of the finalists decide where `verify` asks for it and the choice matters; a set on which something then
    fails is no longer chosen. Raises CollbenchError, Interrupted.
    """
    from collbench.choose.select import by_finalists  # late: numpy

    found = find(criteria, notices)
    try:
        choice = _chosen(request, found.run)
    except NotTrusted as error:
        raise NotTrusted(f"{error}: {found.source}", error.exit_code) from error
    while verify is not None and _worth_measuring(verify, choice, criteria.backend):
        try:
            choice, files = by_finalists(choice, found.run, partial(measure_finalists, verify, found.run, notices))
            return found, choice, files
        except FinalistsFailed as error:
            found = SuitableRun(_with_failures(found.run, error), found.source)
            notices.say(f"{error}; another set is chosen")
            choice = _chosen(request, found.run)
            if choice.failed:
                raise
    return found, choice, None


def _chosen(request: ChoiceRequest, run: Run, exclude: Sequence[Device] = ()) -> Choice:
    from collbench.choose.select import choose  # late: numpy

    names = {device.uuid for device in exclude}
    out = [position for position, device in enumerate(run.devices) if device.uuid in names]
    return choose(run, request.count, exclude=out, allow_busy=request.allow_busy)


def _origin(run: Run, backend: str, source: str) -> Origin:
    """Return the origin of a choice that a run's pairs decide."""
    from collbench.choose.select import evidence, too_small  # late: numpy

    ranking = evidence(run)
    origin = Origin(backend, source, run.machine.hostname, run.machine.fabric)
    if ranking is None:
        return origin
    partly, measured = "", len(ranking.standings)
    # It may have been interrupted after all that it asks of pairs, such as in a work that decides nothing.
    if not run.complete and (measured < ranking.sets or ranking.size_bytes < max(run.settings.sizes, default=0)):
        by = f"{ranking.work} at {format_size(ranking.size_bytes)}"
        partly = f"{measured} of {ranking.sets} pairs {verb(measured, 'was', 'were')} measured by {by}"
        if too_small(run, ranking):
            raise UsageError(
                f"nothing was chosen: {source} was interrupted when {partly}, which says nothing of bandwidth: "
                "measure again with 'collbench pairs'"
            )
    return replace(origin, operation=ranking.work.operation, measured_bytes=ranking.size_bytes, interrupted=partly)


def _with_failures(run: Run, error: FinalistsFailed) -> Run:
    """Return the run with what failed on finalists. Raises the error if it shows nothing new to avoid."""
    known = outcome(run)
    if all(known.failed(some) for some in outcome(error.run).device_sets):
        raise error
    failed = [measurement for measurement in error.run.measurements if measurement.failure is not None]
    return replace(run, measurements=[*run.measurements, *failed], skipped=[*run.skipped, *error.run.skipped])


def _present(request: SelectRequest) -> Present:
    """Return the devices of this machine, or of the one to simulate. Raises MachineError for no GPU."""
    backend, why = factory.resolve(request.backend)
    if why is not None:
        if request.run is not None:
            taking = _taking(request.count, request.run)
            raise MachineError(f"no GPU to choose from: {why}; to choose by this run of another machine: {taking}")
        kinds = CommandKind.PAIRS, CommandKind.CHECK
        newest = next((path for path in run_file.saved_runs() if run_file.command_of(path) in kinds), None)
        simulated = ""
        if newest is not None and is_simulated(run_file.backend_of(newest)):
            taking = _taking(request.count, str(newest))
            simulated = f"; the newest saved pairs were simulated, and are taken only by name: {taking}"
        raise MachineError(
            f"no GPU to choose from: {why}; write RUN.JSON --any-machine or --topology FILE to judge another machine, "
            f"or --backend host for CPU cores{simulated}"
        )
    return factory.look(backend, request.fabric)


def _taking(count: int, run: str) -> str:
    """Return the command that takes a run of any machine."""
    return shlex.join(["collbench", "select", str(count), run, "--any-machine"])


def _worth_measuring(request: SelectRequest, choice: Choice, backend: str) -> bool:
    """Return whether to measure the sound finalists; one in which something failed cannot win, and may hang again."""
    sound = sum(finalist.sound for finalist in choice.finalists)
    if request.verify is not None:
        return request.verify and sound > 0
    return not capabilities(backend).cores and request.count > 1 and not choice.tied and sound > 1


def _answer(run: Run, choice: Choice, origin: Origin, never_chosen: Sequence[Omitted] = ()) -> Selected:
    from collbench.judge.diagnose import Diagnosis  # late: numpy
    from collbench.report import frame, verdicts

    status = outcome(run).status if choice.failed else ExitStatus.DONE
    wrong = ("" if choice.failed else frame.headline(run)) or verdicts.contradiction(Diagnosis(run))
    selected = named(choice, run.devices, origin)
    left_out = (*selected.left_out, *never_chosen)
    return Selected(replace(selected, left_out=left_out, contradiction=wrong), status)


_NO_FINALISTS = "cannot measure the finalists: {}; --no-verify chooses by prediction"


@contextmanager
def _rewording(interrupted: str, failed: str) -> Iterator[None]:
    """Say what a signal or an error ends, and what did not happen then; "{}" in `failed` is the error."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted {interrupted}") from error
    except DataCorruption:
        raise  # its text names the link
    except CollbenchError as error:
        raise error.reworded(failed.format(error)) from error


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
        # Beside the folder of runs that choices go by, because a few sets say little about all pairs.
        path = run_file.new_run("select", run.backend, notices.say, run_file.FINALISTS)
    notices.say(f"measuring {len(sets)} sets at {format_size(request.size_bytes)}")
    asked = Request(
        backend=run.backend,
        devices=",".join(run.devices[member].uuid for member in used),
        sizes=(request.size_bytes,),
        collectives=(Work(Operation.ALLREDUCE),),
        nccl=request.nccl,
        seed=new_seed(),
        command=("select", str(request.count)),
        kind=CommandKind.SELECT,
        sets=tuple(tuple(map(used.index, members)) for members in sets),
        fabric=request.fabric,
        around_faults=True,
    )
    with _rewording("while measuring the finalists: nothing was chosen", _NO_FINALISTS):
        measured = measure(asked, path, notices, "measuring the finalists")
    own = run_file.again(measured.run)
    over_all = spread(own, run.devices, used)
    if status := outcome(own).status:
        from collbench.report.frame import headline

        advice = "nothing was chosen; leave these devices out with --exclude"
        saved = f"; the run is {measured.path}" if measured.path else ""
        text = "; ".join([f"the finalists: {headline(own)}", *wrong_data_of(own)])
        raise FinalistsFailed(f"{text}; {advice}{saved}", status, over_all)
    return over_all, measured.path


# The run that a choice rests on: a named run, this machine's newest saved run, or a probe of seconds.

# Ranks pairs in seconds: an operation of training, at a latency size and a bandwidth size. The worker's start
# (driver, contexts, communicators) takes 2 s on 4 × H200, and a launch with a probe should take 4 s.
_PROBE = "8,1M,64M"
_PROBE_SECONDS = 1.0
_HOST_PROBE = "8,1M,16M"
# Runs of other machines that share this home may lie between ours.
_RECENT = 10
MIG = "in MIG mode, whose instances have no P2P"
# The file name of a run that the user did not name (run_file.new_name).
_STAMP = re.compile(r"(\d{8}T\d{6}Z)-")


@dataclass(frozen=True, slots=True)
class RunCriteria:
    """Which run is acceptable: one that the request allows, of the `present` devices of a backend.

    A run may contain any that are present, but only the `candidates` are chosen from, and probed.
    """

    request: ChoiceRequest
    present: Present
    candidates: tuple[Device, ...]

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self.present.backend

    @property
    def barred(self) -> tuple[Device, ...]:
        """The devices of this machine that must not be chosen, but that a run may contain."""
        others = tuple(device for device in self.present.every if device not in self.candidates)
        return self.present.hidden + others

    @property
    def never_chosen(self) -> list[tuple[Device, str]]:
        """The devices that no run makes a choice, and why: excluded, or in MIG mode."""
        excluded = [(device, "excluded") for device in self.request.excluded(self.present.every)]
        return excluded + [(device, MIG) for device in self.present.mig]

    @property
    def all_wanted(self) -> bool:
        """Whether all devices are wanted, so that no rate matters, but faults do."""
        return self.request.count == len(self.candidates)


def criteria_of(request: ChoiceRequest, present: Present) -> RunCriteria:
    """Return what to choose from, and by which run. Raises UsageError if the devices are too few, and says why."""
    excluded = request.excluded(present.every)
    criteria = RunCriteria(request, present, tuple(device for device in present.devices if device not in excluded))
    if request.count <= len(criteria.candidates):
        return criteria
    tags = ", ".join(device.tag for device in criteria.candidates) or "none"
    hidden = f", {present.among}" if present.among else ""
    more = "" if hidden or not capabilities(present.backend).nvml else kernel.withheld(len(present.every), os.environ)
    out = [*criteria.never_chosen, *lost(present)]
    raise UsageError(
        f"{request.asked} {request.count} is more than the {len(criteria.candidates)} that may be chosen "
        f"({tags}{hidden}{f'; not {against(out)}' if out else ''}): ask for fewer{more and f'; {more}'}"
    )


def lost(present: Present) -> list[tuple[Device, str]]:
    """Return the GPUs that this machine had when it was last measured, and what to do about them."""
    here_now = {device.uuid for device in (*present.every, *present.hidden)}
    for path in run_file.saved_runs()[:_RECENT] if capabilities(present.backend).nvml else ():
        with suppress(RunFileError):
            devices = run_file.load(path).devices
            gone = [device for device in devices if device.uuid not in here_now]
            if len(gone) < len(devices):
                return [(device, f"gone since the last run, {device.uuid}: see nvidia-smi -L") for device in gone]
    return []


class SuitableRun(NamedTuple):
    """A run to choose from, and the text that names its source."""

    run: Run
    source: str


def as_now(run: Run, states: Mapping[str, Health]) -> Run:
    """Return a saved run with the GPUs' current health: whether they were busy when it was saved says little about now.

    The NVLink error counters of the run stay as the start values, so that errors since then count. Other processes that
    trials saw are dropped, because they may have ended. `states` are by UUID.
    """
    if capabilities(run.backend).cores:
        return run
    now = tuple(states.get(device.uuid, Health()) for device in run.devices)
    then = run.health_before or now
    before = (replace(new, nvlink_errors=old.nvlink_errors) for old, new in zip(then, now, strict=False))

    def alone(sample: Sample) -> Sample:
        return replace(sample, flags=tuple(flag for flag in sample.flags if flag.kind is not FlagKind.SHARED))

    measurements = [
        replace(measurement, samples=[*map(alone, measurement.samples)]) for measurement in run.measurements
    ]
    return replace(run, measurements=measurements, health_before=tuple(before), health_after=now)


def find(criteria: RunCriteria, notices: Notices) -> SuitableRun:
    """Return the named run or the newest saved run that fits the candidates, with the devices' health now; or a probe.

    If all devices are wanted and no run shows a failure, no probe is made. If busy devices may be chosen and some are
    busy, one is: a saved run cannot show how much of a device other processes leave now. A probe's health is kept,
    because its killed workers may still be on the GPUs. Raises RunFileError for a named run of another machine, and
    what `probe` raises.
    """
    found, refused, failed, request = None, "", False, criteria.request
    if not capabilities(criteria.backend).simulated and not request.fresh:
        machine = here(criteria)
        if request.run is not None:
            run = run_file.load(Path(request.run))
            if refusal := freshness.refusal(run, machine, datetime.now(UTC), request.max_age):
                raise RunFileError(f"{request.run} cannot choose devices here: {refusal}; {request.advice}")
            found = SuitableRun(part(run, criteria.candidates), saved_run(run.started, request.run))
        else:
            found, refused, failed = _newest_that_fits(criteria, machine, notices)
    if found is None and criteria.all_wanted and not request.fresh and not failed:
        run = nothing_to_compare(criteria.backend, criteria.candidates, request.fabric)
        found = SuitableRun(run, "no choice to make, links not probed")
    if found is None:
        return probe(criteria, refused, notices)
    run = as_now(found.run, criteria.present.states)
    compares = request.allow_busy and not criteria.all_wanted and len(criteria.candidates) > 1
    if compares and len(left_out(run)) > len(left_out(run, allow_busy=True)):  # someone is busy
        return probe(criteria, "a saved run does not show what other processes use now: ", notices)
    return SuitableRun(run, found.source)


def _newest_that_fits(
    criteria: RunCriteria, machine: freshness.Here, notices: Notices
) -> tuple[SuitableRun | None, str, bool]:
    """Return the newest saved run that fits, restricted to the candidates; without one, why not.

    A run is not believed if a newer one does not fit but shows a failure on these devices, which the last value tells:
    only a probe can show whether it is still there.
    """
    refused, now = "no saved run fits: ", datetime.now(UTC)
    present, max_age = criteria.candidates, criteria.request.max_age
    explained = failed = False
    for path in _saved_runs(present, max_age, now, notices):
        try:
            run = run_file.load(path)
        except RunFileError:
            continue  # another user's file, or an older format: a probe takes only seconds
        refusal = freshness.refusal(run, machine, now, max_age) or freshness.unfit(run)
        if not refusal and not failed:
            return SuitableRun(part(run, present), saved_run(run.started, str(path))), "", False
        if refusal and not explained:
            subject, _, clause = refusal.partition(" ")
            whose = {"it": "the newest", "its": "the newest's"}[subject]
            refused, explained = f"{refused}{whose} {clause}: ", True
        failed = failed or bool(outcome(part(run, present)).device_sets)
    return None, refused, failed


def _saved_runs(present: Sequence[Device], max_age: timedelta, now: datetime, notices: Notices) -> Iterator[Path]:
    """Yield the newest saved run, whose refusal is reported, then others that may fit, newest first.

    Reading a run takes 0.1 s, and there may be hundreds. The file name gives the age of most, and a search for the
    devices' UUIDs shows whether a run is of this machine.
    """
    saved = run_file.saved_runs(notices.say)
    yield from saved[:1]
    for path in saved[1:]:
        stamp = _STAMP.match(path.name)
        if stamp and now - datetime.strptime(stamp[1], "%Y%m%dT%H%M%S%z") > max_age + timedelta(minutes=1):
            continue  # a minute from the name to the start of measuring
        try:
            text = untrusted.read(path, MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        if all(device.uuid in text for device in present):
            yield path


def seen_to_fail(devices: Sequence[Device], max_age: timedelta, notices: Notices) -> str:
    """Return which of these devices failed together in the newest saved run that has them all, "" if none did."""
    for path in _saved_runs(devices, max_age, datetime.now(UTC), notices):
        with suppress(RunFileError):
            run = run_file.load(path)
            if {device.uuid for device in devices} <= {device.uuid for device in run.devices}:
                run = part(run, devices)
                failed = device_sets(outcome(run).device_sets, run.devices)
                return f"{failed} (failed in the {saved_run(run.started, str(path))})" if failed else ""
    return ""


def nothing_to_compare(backend: str, devices: tuple[Device, ...], fabric: str | None = None) -> Run:
    """Return a run without measurements: enough if all devices are wanted, because only their health matters."""
    settings = Settings(
        operations=(), sizes=(), dtype="float32", redop="sum", trials=0, seed=0, command=(), environment={}
    )
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    simulated = factory.simulated(fabric).name if capabilities(backend).simulated else ""
    machine = replace(factory.here(), fabric=simulated)
    return Run(backend, __version__, started, machine, devices, (), settings, complete=True)


def here(criteria: RunCriteria) -> freshness.Here:
    """Return the machine as it is now, to compare saved runs with. Raises MachineError without NCCL."""
    backend, present = criteria.backend, criteria.candidates
    if capabilities(backend).cores:
        return freshness.Here(backend, present, besides=criteria.barred)
    return freshness.Here(backend, present, criteria.present.driver, _nccl_of_the_job(criteria), criteria.barred)


def _nccl_of_the_job(criteria: RunCriteria) -> str:
    from collbench.machine.nccl import find_nccl  # late: the extension

    return format_version(find_nccl(criteria.request.nccl).version)


def probe(criteria: RunCriteria, why: str, notices: Notices) -> SuitableRun:
    """Measure all pairs for a few seconds, save the run and return it; a notice reports it, after `why`.

    A worker process uses the GPUs and ends afterwards, because this process may become torchrun. A notice reports a
    part that failed; the choice judges it, as in a saved run. Raises what measuring raises, with what did not happen
    then, and Interrupted.
    """
    path = None
    if not capabilities(criteria.backend).simulated:
        path = run_file.new_run("probe", criteria.backend, notices.say)
        notices.say(f"{why}probing for a few seconds")
    undone = criteria.request.undone
    with _rewording(f"in the probe: {undone}", f"the probe failed: {{}}; {undone}"):
        run = run_file.again(measure(_probe_request(criteria), path, notices, "probing").run)
    if outcome(run).status:
        from collbench.report.frame import headline  # late: numpy

        notices.say(f"the probe: {headline(run)}; no set that includes what failed is chosen")
        for sentence in wrong_data_of(run):
            notices.say(sentence)
    return SuitableRun(run, QUICK_PROBE)


def _probe_request(criteria: RunCriteria) -> Request:
    on_cores = capabilities(criteria.backend).cores
    sizes = _HOST_PROBE if on_cores else _PROBE
    operations, limit = ("copy,allreduce", ()) if on_cores else ("allreduce", ("--budget", f"{_PROBE_SECONDS:.0f}s"))
    options = ("--operations", operations, "--sizes", sizes, *limit)
    others = len(criteria.candidates) < len(criteria.present.every)
    return Request(
        backend=criteria.backend,
        devices=",".join(device.uuid for device in criteria.candidates) if others else None,
        sizes=parse_sizes(sizes),
        copies=(Variant.PLAIN,) if on_cores else (),
        collectives=(Work(Operation.ALLREDUCE),),
        pairs=True,
        nccl=criteria.request.nccl,
        seed=new_seed(),
        command=("pairs", *options, "--backend", criteria.backend),
        budget_seconds=None if on_cores else _PROBE_SECONDS,
        fabric=criteria.request.fabric,
        around_faults=True,
    )
