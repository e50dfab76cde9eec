"""The run that a choice of devices rests on: a named run, this machine's newest saved run, or a probe of seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from collbench import untrusted
from collbench.api import Notices
from collbench.api.measuring import measure, named_nccl, new_seed, wrong_data_of
from collbench.api.selecting import ChoiceRequest
from collbench.choose import freshness
from collbench.choose.restrict import part
from collbench.judge.outcome import outcome
from collbench.launch import torchrun
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Present
from collbench.measurement.plan import Request
from collbench.model.capabilities import capabilities
from collbench.model.errors import CollbenchError, Interrupted, RunFileError, UsageError
from collbench.model.operations import Operation, Registration, Variant, Work
from collbench.model.run import Device, FlagKind, Health, Run, Sample, Settings, device_sets
from collbench.model.units import TELLING_BYTES, parse_sizes
from collbench.runfile import run_file, saved_runs
from collbench.runfile.codec import MOST_BYTES

# Ranks pairs in seconds: an operation of training, at a latency size and a bandwidth size. The worker's start
# (driver, contexts, communicators) takes 2 s on 4 × H200, and a launch with a probe should take 4 s.
_PROBE = "8,1M,64M"
_PROBE_SECONDS = 1.0
_HOST_PROBE = "8,1M,16M"
# Runs of other machines that share this home may lie between ours.
_RECENT = 10
MIG = "in MIG mode, whose instances have no P2P"
# The file name of a run that the user did not name (saved_runs.new_name).
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
    out = [*criteria.never_chosen, *lost(present)]
    raise UsageError(
        f"{request.command[-1]} {request.count} is more than the {len(criteria.candidates)} that may be chosen "
        f"({tags}{hidden}{f'; not {torchrun.against(out)}' if out else ''}): ask for fewer"
    )


def lost(present: Present) -> list[tuple[Device, str]]:
    """Return the GPUs that this machine had when it was last measured, and what to do about them."""
    gone = vanished((*present.every, *present.hidden)) if capabilities(present.backend).nvml else ()
    return [(device, f"gone since the last run, {device.uuid}: see nvidia-smi -L") for device in gone]


@dataclass(frozen=True, slots=True)
class SuitableRun:
    """A run to choose from, and the text that names its source. `probed`: it was measured seconds ago."""

    run: Run
    source: str
    probed: bool = False

    def as_now(self, states: Mapping[str, Health]) -> Run:
        """Return the run with the GPUs' current health: whether GPUs were busy when it was saved says little about now.

        The NVLink error counters of the run stay as the start values, so that errors since then count. A probe's health
        is kept, because its killed workers may still be on the GPUs. Other processes that trials saw are dropped,
        because they may have ended. `states` are by UUID.
        """
        if self.probed or capabilities(self.run.backend).cores:
            return self.run
        now = tuple(states.get(device.uuid, Health()) for device in self.run.devices)
        then = self.run.health_before or now
        before = (replace(new, nvlink_errors=old.nvlink_errors) for old, new in zip(then, now, strict=False))
        measurements = [
            replace(one, samples=[_alone(sample) for sample in one.samples]) for one in self.run.measurements
        ]
        return replace(self.run, measurements=measurements, health_before=tuple(before), health_after=now)


def _alone(sample: Sample) -> Sample:
    return replace(sample, flags=tuple(flag for flag in sample.flags if flag.kind is not FlagKind.SHARED))


def find(criteria: RunCriteria, notices: Notices) -> SuitableRun:
    """Return the run to choose by, with the devices' current health.

    If busy devices may be chosen and some are busy, it is a probe: a saved run cannot show how much of a device other
    processes leave now. Raises RunFileError for a named run of another machine, and what `probe` raises.
    """
    found = _find(criteria, notices)
    found = replace(found, run=found.as_now(criteria.present.states))
    probe_tells = not criteria.all_wanted and not found.probed and len(criteria.candidates) > 1
    if criteria.request.allow_busy and probe_tells:
        from collbench.choose.fitness import left_out  # late: numpy

        if len(left_out(found.run)) > len(left_out(found.run, allow_busy=True)):  # someone is
            return probe(criteria, "a saved run does not show what other processes use now: ", notices)
    return found


def _find(criteria: RunCriteria, notices: Notices) -> SuitableRun:
    """Return the named run, the newest saved run that fits the candidates, or a probe.

    If all devices are wanted and no run shows a failure, no probe is made. Raises RunFileError for a named run of
    another machine, and what `probe` raises.
    """
    refused, failed, request = "", False, criteria.request
    if not capabilities(criteria.backend).simulated and not request.fresh:
        machine = here(criteria)
        if request.run is not None:
            run = run_file.load(Path(request.run))
            if refusal := freshness.refusal(run, machine, datetime.now(UTC), request.max_age):
                raise RunFileError(f"{request.run} cannot choose devices here: {refusal}; {request.advice}")
            return SuitableRun(part(run, criteria.candidates), torchrun.saved_run(run.started, request.run))
        found, refused, failed = _newest_that_fits(criteria, machine, notices)
        if found is not None:
            return found
    if criteria.all_wanted and not request.fresh and not failed:
        return nothing_to_compare(criteria.backend, criteria.candidates, request.fabric)
    return probe(criteria, refused, notices)


def _newest_that_fits(
    criteria: RunCriteria, machine: freshness.Here, notices: Notices
) -> tuple[SuitableRun | None, str, bool]:
    """Return the newest saved run that fits, restricted to the candidates; without one, why not.

    None is believed that is older than one that does not fit but shows a failure on these devices, which the last value
    tells: only a probe can show whether it is still there.
    """
    refused, now = "no saved run fits: ", datetime.now(UTC)
    present, max_age = criteria.candidates, criteria.request.max_age
    explained = failed = False
    for path in _saved_runs(present, max_age, now, notices):
        try:
            run = run_file.load(path)
        except RunFileError:
            continue  # another user's file, or an older format: a probe takes only seconds
        refusal = freshness.refusal(run, machine, now, max_age) or _unfit(run)
        if not refusal and not failed:
            return SuitableRun(part(run, present), torchrun.saved_run(run.started, str(path))), "", False
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
    believed = saved_runs.believed()
    if believed.ignored:
        notices.say(believed.ignored)
    saved = believed.files
    yield from saved[:1]
    for path in saved[1:]:
        stamp = _STAMP.match(path.name)
        if stamp and now - datetime.strptime(stamp[1], "%Y%m%dT%H%M%S%z") > max_age + timedelta(minutes=1):
            continue  # a minute from the name to the start of measuring
        try:
            text = untrusted.read(path, MOST_BYTES).decode("utf-8", "replace")
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
                return f"{failed} (failed in the {torchrun.saved_run(run.started, str(path))})" if failed else ""
    return ""


def nothing_to_compare(backend: str, devices: tuple[Device, ...], fabric: str | None = None) -> SuitableRun:
    """Return a run without measurements: enough if all devices are wanted, because only their health matters."""
    from importlib.metadata import version  # late: 10 ms

    settings = Settings(
        operations=(), sizes=(), dtype="float32", redop="sum", trials=0, seed=0, command=(), environment={}
    )
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    simulated = factory.simulated(fabric).name if capabilities(backend).simulated else ""
    machine = replace(factory.here(), fabric=simulated)
    run = Run(backend, version("collbench"), started, machine, devices, (), settings, complete=True)
    return SuitableRun(run, "no choice to make, links not probed")


def vanished(present: Sequence[Device]) -> tuple[Device, ...]:
    """Return the GPUs in the newest saved run of this machine that are no longer present.

    Reads only the devices from the file: loading the whole run takes 0.1 s.
    """
    present_uuids = {device.uuid for device in present}
    for path in saved_runs.believed().files[:_RECENT]:
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # not a run
            recorded = json.loads(untrusted.read(path, MOST_BYTES))["devices"]
            devices = tuple(Device(int(fields["index"]), str(fields["uuid"]), "") for fields in recorded)
            if any(device.uuid in present_uuids for device in devices):
                return tuple(device for device in devices if device.uuid not in present_uuids)
    return ()


def here(criteria: RunCriteria) -> freshness.Here:
    """Return the machine as it is now, to compare saved runs with. Raises MachineError without NCCL."""
    backend, present = criteria.backend, criteria.candidates
    if capabilities(backend).cores:
        return freshness.Here(backend, present, besides=criteria.barred)
    return freshness.Here(backend, present, criteria.present.driver, _nccl_of_the_job(criteria), criteria.barred)


def _nccl_of_the_job(criteria: RunCriteria) -> str:
    from collbench.machine.nccl import find_nccl
    from collbench.model.operations import format_version

    return format_version(find_nccl(named_nccl(criteria.request.nccl)).version)


def probe(criteria: RunCriteria, why: str, notices: Notices) -> SuitableRun:
    """Measure all pairs for a few seconds, save the run and return it; a notice reports it, after `why`.

    A worker process uses the GPUs and ends afterwards, because this process may become torchrun. A notice reports a
    part that failed; the choice judges it, as in a saved run. Raises what measuring raises, with what did not happen
    then, and Interrupted.
    """
    path = None
    if not capabilities(criteria.backend).simulated:
        path = saved_runs.new_run("probe", criteria.backend, notices.say)
        notices.say(f"{why}probing for a few seconds")
    try:
        run = run_file.again(measure(_probe_request(criteria), path, notices, "probing").run)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted in the probe: {criteria.request.undone}") from error
    except CollbenchError as error:
        raise error.reworded(f"the probe failed: {error}; {criteria.request.undone}") from error
    if outcome(run).status:
        from collbench.report.text.frame import headline  # late: numpy

        notices.say(f"the probe: {headline(run)}; sets with what failed are avoided")
        for sentence in wrong_data_of(run):
            notices.say(sentence)
    return SuitableRun(run, torchrun.QUICK_PROBE, probed=True)


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
        nccl=named_nccl(criteria.request.nccl),
        seed=new_seed(),
        command=("pairs", *options, "--backend", criteria.backend),
        budget_seconds=None if on_cores else _PROBE_SECONDS,
        fabric=criteria.request.fabric,
        around_faults=True,
    )


def _unfit(run: Run) -> str:
    """Return why a run of this machine is not enough to choose by, as a clause; "" if it is.

    A run of 8 bytes was not meant for choosing, and load by other jobs then is not today's. Runs of only registered
    memory, or of communicators with a config, are for jobs that use the same.
    """
    from collbench.choose.choice import Unfit
    from collbench.choose.fitness import left_out  # late: numpy
    from collbench.judge.registration import kinds_of

    kinds = kinds_of(run)
    if kinds and Registration.NONE not in kinds:
        special = "registered memory or a configuration"
        return f"it used NCCL settings ({special}) that a job has only if it sets them, too"
    if not any(
        len(measurement.point.members) == 2 and measurement.point.size_bytes >= TELLING_BYTES
        for measurement in run.measured()
    ):
        return "it timed no pairs at a size large enough to show bandwidth"
    busy = [exclusion for exclusion in left_out(run) if any(why.sort is Unfit.BUSY for why in exclusion.why)]
    if not busy:
        return ""
    return f"it was disturbed: {run.devices[busy[0].member].tag} was {busy[0].reason}"
