"""What a choice of devices rests on: a named run, the newest saved one, or a probe; finalists measured."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from collbench.analysis import freshness
from collbench.analysis.freshness import part
from collbench.analysis.outcome import named, outcome
from collbench.backends import factory
from collbench.backends.factory import Present
from collbench.bench.plan import Request
from collbench.cli import options
from collbench.cli.exit_codes import Interrupted
from collbench.cli.terminal import progress_bar, say
from collbench.distributed.launchers import alone
from collbench.launch import torchrun
from collbench.launch.arguments import TrainArguments
from collbench.machine import lifeline, visible_devices
from collbench.machine.nvml import Nvml
from collbench.model.errors import CollbenchError, DataCorruption, ExitStatus, NotTrusted, RunFileError, UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import CommandKind, Device, FlagKind, Health, Run, Sample, Settings
from collbench.model.units import format_size
from collbench.runfile import run_file

# The evidence to choose devices by: a named run, the newest saved one of this machine, or a probe of seconds.


# What ranks pairs in seconds: what training runs, where it is latency and where it is bandwidth. Its starts (Python,
# driver, contexts, communicators) take 2 s on 4 × H200, and a launch with a probe is to cost 4.
_PROBE = ("pairs", "--operations", "allreduce", "--sizes", "8,1M,64M", "--budget", "1s")
_HOST_PROBE = ("pairs", "--operations", "copy,allreduce", "--sizes", "8,1M,16M")
# How a measurement ends that failed, all or some of it.
_MEASURED = (ExitStatus.FAILED, ExitStatus.CONTRADICTION, ExitStatus.UNTRUSTED)
# Runs of other machines that share this home may lie between ours.
_RECENT = 10
# What a run is called that was saved without a name of the user's (places.new_name).
_STAMP = re.compile(r"(\d{8}T\d{6}Z)-")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which evidence will do: from the file `run`, or saved within `max_age` unless `fresh`, with this `nccl`.

    `undone` ends the line after a failed probe: what did not happen then; `advice` the one that refuses `run`.
    `besides` are devices of this machine that are not to be chosen, which a run may hold, too; `only` those that a
    probe opens, () for all that CUDA shows. `driver` is its version where that is known already. `job_nccl`: the job
    will load the NCCL that is found here, so it counts with which one a run was measured.
    """

    backend: str
    run: str | None
    max_age: timedelta
    fresh: bool
    nccl: str | None
    undone: str
    advice: str = "measure again or use --fresh"
    besides: tuple[Device, ...] = ()
    only: tuple[Device, ...] = ()
    driver: str | None = None
    job_nccl: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run to choose from, and the words for where it came from. `probed`: it is seconds old."""

    run: Run
    source: str
    probed: bool = False

    def as_now(self, states: Mapping[str, Health] | None = None) -> Run:
        """Return the run with the GPUs' health of this moment: who was busy when it was saved says little now.

        What its own counters of NVLink errors were stays as the start, so that errors since then count. A probe's
        reading stands: its killed workers may still be on the GPUs. What visits saw of other processes is forgotten,
        for they may have gone. `states` are by UUID, where NVML was asked already. Raises MachineError for a lost GPU.
        """
        if self.probed or self.run.backend != "cuda":
            return self.run
        now = (
            health_of(self.run.devices)
            if states is None
            else tuple(states.get(device.uuid, Health()) for device in self.run.devices)
        )
        then = self.run.health_before or now
        before = (replace(new, nvlink_errors=old.nvlink_errors) for old, new in zip(then, now, strict=False))
        found = [replace(one, samples=[_alone(sample) for sample in one.samples]) for one in self.run.measurements]
        return replace(self.run, measurements=found, health_before=tuple(before), health_after=now)


def _alone(sample: Sample) -> Sample:
    return replace(sample, flags=tuple(flag for flag in sample.flags if flag.kind is not FlagKind.SHARED))


def find(wanted: Wanted, present: tuple[Device, ...]) -> Evidence:
    """Return the named run, the newest saved one that fits the present devices, or a probe.

    Of a run that also holds others (`besides`) the present devices' part. Raises RunFileError for a named run that
    speaks for another machine; NotTrusted, Interrupted for the probe.
    """
    place, now = here(wanted, present), datetime.now(UTC)
    if wanted.run is not None:
        run = run_file.load(Path(wanted.run))
        refusal = freshness.refusal(run, place, now, wanted.max_age)
        if refusal:
            raise RunFileError(f"{wanted.run} cannot choose devices here: {refusal}; {wanted.advice}")
        return Evidence(part(run, present), torchrun.saved_run(run.started, wanted.run))
    if wanted.fresh:
        return measured_now(wanted, "")
    refused = ""
    for path in _candidates(wanted, present, now):
        try:
            run = run_file.load(path)
        except RunFileError:
            continue  # somebody else's file, or an older format: a probe costs seconds
        refusal = freshness.refusal(run, place, now, wanted.max_age) or _unfit(run)
        if refusal is None:
            return Evidence(part(run, present), torchrun.saved_run(run.started, str(path)))
        refused = refused or f"{_of_the_newest(refusal)}: "
    return measured_now(wanted, f"no saved run fits: {refused}")


def _of_the_newest(refusal: str) -> str:
    """Return a clause on "it" as one on the newest run: "it is 9d old, …", "its driver was …"."""
    rest = refusal.removeprefix("it")
    return f"the newest's{rest[1:]}" if rest.startswith("s ") else f"the newest{rest}"


def _candidates(wanted: Wanted, present: tuple[Device, ...], now: datetime) -> Iterator[Path]:
    """Yield the newest saved run, for its refusal is told, and those of the others that may fit, newest first.

    Reading a run takes 0.1 s, and there may be hundreds: the name tells the age of most, and a look for the devices'
    UUIDs whose they are.
    """
    found = options.saved_runs()
    if found.ignored:
        say(found.ignored)
    saved = found.files
    yield from saved[:1]
    for path in saved[1:]:
        stamp = _STAMP.match(path.name)
        if stamp and now - datetime.strptime(stamp[1], "%Y%m%dT%H%M%S%z") > wanted.max_age + timedelta(minutes=1):
            continue  # a minute from the name to the start of measuring
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if all(device.uuid in text for device in present):
            yield path


def measured_now(wanted: Wanted, why: str) -> Evidence:
    """Return a probe, whatever is saved, for the reason `why`. Raises NotTrusted, Interrupted."""
    return Evidence(probe(wanted, why), torchrun.QUICK_PROBE, probed=True)


def someone_is_busy(run: Run) -> bool:
    """Return whether others use one of the run's devices: then an older run does not say what is left of them."""
    from collbench.analysis.problem import left_out  # late: numpy

    return len(left_out(run)) > len(left_out(run, allow_busy=True))


def nothing_to_compare(backend: str, devices: tuple[Device, ...]) -> Evidence:
    """Return a run without a measurement: enough where all of the devices are wanted, and only their health counts."""
    from importlib.metadata import version  # late: 10 ms

    settings = Settings((), (), dtype="float32", redop="sum", visits=0, seed=0, command=(), environment={})
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = Run(backend, version("collbench"), started, factory.here(), devices, (), settings, complete=True)
    return Evidence(run, "no choice to make")


def vanished(present: Sequence[Device]) -> tuple[Device, ...]:
    """Return the GPUs that the newest saved run with any of the present ones had, and this machine has no more.

    Reads only what the file says of devices: building the whole run takes 0.1 s.
    """
    known = {device.uuid for device in present}
    for path in options.saved_runs().files[:_RECENT]:
        with suppress(OSError, ValueError, KeyError, TypeError):  # no run: nothing to learn from
            found = json.loads(path.read_text(encoding="utf-8"))["devices"]
            devices = tuple(Device(int(one["index"]), str(one["uuid"]), "") for one in found)
            if any(device.uuid in known for device in devices):
                return tuple(device for device in devices if device.uuid not in known)
    return ()


def health_of(devices: Sequence[Device]) -> tuple[Health, ...]:
    """Return the GPUs' state now, by position; nothing of ours may be on them. Raises MachineError for a lost one."""
    with Nvml() as nvml:
        states = [nvml.health(device) for device in devices]
    return tuple(replace(state, others_memory=state.memory_used) for state in states)


def here(wanted: Wanted, present: tuple[Device, ...]) -> freshness.Here:
    """Return the machine as it is now, to compare saved runs with. Raises MachineError without driver or NCCL."""
    if wanted.backend == "host":
        return freshness.Here(wanted.backend, present, besides=wanted.besides)
    driver = factory.driver_version() if wanted.driver is None else wanted.driver
    return freshness.Here(wanted.backend, present, driver, _nccl_of_the_job(wanted), wanted.besides)


def _nccl_of_the_job(wanted: Wanted) -> str | None:
    if not wanted.job_nccl:
        return None
    from collbench.machine.nccl_library import find_nccl, format_version

    return format_version(find_nccl(wanted.nccl or os.environ.get("COLLBENCH_NCCL")).version)


def probe(wanted: Wanted, why: str) -> Run:
    """Measure in a child, so that no context, thread or affinity of ours outlives it; one line says so and `why`.

    Raises NotTrusted, Interrupted.
    """
    path = options.new_run("probe", wanted.backend)
    if path is not None:
        return _probed(wanted, why, path)
    with tempfile.TemporaryDirectory(prefix="collbench-") as folder:
        return _probed(wanted, why, Path(folder) / "probe.json")


def _probed(wanted: Wanted, why: str, path: Path) -> Run:
    words = [*(_HOST_PROBE if wanted.backend == "host" else _PROBE), "--backend", wanted.backend, "-o", str(path)]
    words += ["--nccl", wanted.nccl] if wanted.nccl else []
    words += ["--devices", ",".join(device.uuid for device in wanted.only)] if wanted.only else []
    say(f"{why}probing for a few seconds")
    command = lifeline.with_us([sys.executable, "-P", "-m", "collbench", *words])
    try:
        status = subprocess.run(command, env=alone(os.environ), stdout=subprocess.DEVNULL, check=False).returncode
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted in the probe: {wanted.undone}") from error
    if status != 0:
        left = status if status in _MEASURED else ExitStatus.FAILED
        raise NotTrusted(f"the probe failed (exit status {status}, see above): {wanted.undone}", left)
    return run_file.load(path)


def _unfit(run: Run) -> str | None:
    """Return why a run that speaks for this machine says too little to choose by, as a clause; None where it does not.

    Whoever timed 8 bytes did not mean to choose; and what others left then is not what there is now.
    """
    from collbench.analysis.choice import BUSY
    from collbench.analysis.problem import left_out  # late: numpy

    if not any(
        len(found.cell.members) == 2 and found.cell.size_bytes >= freshness.TELLING_BYTES for found in run.measured()
    ):
        return "it timed no pairs at a size that shows bandwidth"
    busy = [left for left in left_out(run) if any(one.kind in BUSY for one in left.why)]
    return f"it was disturbed: {run.devices[busy[0].member].tag} was {busy[0].reason}" if busy else None


# Measure the finalists of a choice with real all-reduces, each alone and in turn, before one of them is taken.


# What a large gradient bucket of DDP comes to after a few of its 25 MiB ones; large enough that bandwidth decides.
DEFAULT_SIZE = "64M"


@dataclass(frozen=True, slots=True)
class FinalistRequest:
    """What one measuring of finalists needs: the devices that a choice's positions mean, sets, a size, an NCCL."""

    backend: str
    devices: Sequence[Device]
    sets: tuple[tuple[int, ...], ...]
    size_bytes: int
    nccl: str | None


def measure(sitting: FinalistRequest) -> tuple[Run, Path | None]:
    """Return the sets' all-reduces as a run over all of the devices, and the file that keeps it, if one can.

    Only devices in a set are opened. Raises what measuring raises, with advice, NotTrusted for a set that failed, and
    Interrupted.
    """
    used = sorted({member for members in sitting.sets for member in members})
    # Beside the folder that `train` searches, for a few sets say little about all pairs.
    path = options.new_run("select", sitting.backend, options.FINALISTS)
    say(f"measuring {len(sitting.sets)} sets at {format_size(sitting.size_bytes)}")
    begun = factory.begin(sitting.backend)
    from collbench.bench.session import Session  # late: numpy

    try:
        with (
            Session(_request(sitting, used), path, say, begun=begun) as session,
            progress_bar("measuring the finalists") as progress,
        ):
            session.measure(progress)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted while measuring the finalists: nothing was chosen") from error
    except DataCorruption:
        raise  # its line says whom not to trust
    except CollbenchError as error:
        raise error.retold(f"cannot measure the finalists: {error}; --no-verify answers by prediction alone") from error
    if status := outcome(session.run).status:
        from collbench.output.text.frame import headline

        advice = "nothing was chosen; leave these devices out with --exclude"
        saved = f"; the run is {session.path}" if session.path else ""
        raise NotTrusted(f"the finalists: {headline(session.run)}; {advice}{saved}", status)
    return _over_all(session.run, sitting.devices, used), session.path


def _request(sitting: FinalistRequest, used: Sequence[int]) -> Request:
    place = {member: number for number, member in enumerate(used)}
    return Request(
        backend=sitting.backend,
        devices=",".join(sitting.devices[member].uuid for member in used),
        sizes=(sitting.size_bytes,),
        copies=(),
        collectives=(Work(Operation.ALLREDUCE),),
        pairs=False,
        dtype="float32",
        redop="sum",
        nccl=sitting.nccl,
        seed=random.SystemRandom().randrange(10**6),
        command=("select", str(len(sitting.sets[0]))),
        kind=CommandKind.SELECT,
        sets=tuple(tuple(place[member] for member in members) for members in sitting.sets),
    )


def _over_all(run: Run, devices: Sequence[Device], used: Sequence[int]) -> Run:
    """Return the run with its members as positions in `devices`."""
    measurements = [
        replace(found, cell=replace(found.cell, members=tuple(used[member] for member in found.cell.members)))
        for found in run.measurements
    ]
    return replace(run, devices=tuple(devices), paths=(), measurements=measurements)


# Which devices `collbench train` takes, and what is said of those that it does not take.


_MIG = "in MIG mode, whose instances cannot talk P2P"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Devices, why, the evidence in words; and where there is some, the run, whose positions `members` are.

    `note` is what else is to be said, "" for nothing: who was left out, or what is wrong with one taken by hand.
    """

    devices: tuple[Device, ...]
    why: str
    source: str
    run: Run | None = None
    members: tuple[int, ...] = ()
    note: str = ""


def choose(arguments: TrainArguments, look: Callable[[], Present]) -> Chosen:
    """Return the devices to train on; `look` waits for what the machine has.

    Raises UsageError, NotTrusted where every set includes what failed, and what probing does.

    By hand, or the best K of those that are healthy now.
    """
    from collbench.analysis.select import choose as choose_of  # late: numpy; and while the machine is looked at

    found = look()
    if arguments.devices is not None:
        return _by_hand(arguments.devices, found)
    k, left = arguments.auto_select or 0, _left(arguments, found)
    chosen_from, run = _evidence(arguments, found, left)
    choice = choose_of(run, k, allow_busy=arguments.allow_busy)
    if choice.failed:
        advice = "nothing was started; --devices takes devices all the same"
        raise NotTrusted(f"every set of {k} includes failed {named(run, choice.failed)}: {advice}", outcome(run).status)
    devices = tuple(run.devices[member] for member in choice.members)
    if run.measurements:
        out = [(run.devices[one.member], one.reason) for one in choice.left_out] + _barred(found, ())
        return Chosen(devices, choice.reason, chosen_from.source, run, choice.members, _left_out(out))
    why = "all that were not excluded" if arguments.exclude else "all there are"
    return Chosen(devices, why, chosen_from.source, note=_left_out(_barred(found, ()) + _lost(found)))


def _left_out(devices: Sequence[tuple[Device, str]]) -> str:
    return f"left out: {torchrun.against(devices)}" if devices else ""


def _by_hand(words: str, found: Present) -> Chosen:
    from collbench.analysis.problem import left_out

    devices = visible_devices.select(found.every, words)
    cut = [device.tag for device in devices if device in found.mig]
    if cut:
        raise UsageError(f"{', '.join(cut)} cannot train with others: {_MIG}: choose others, or turn MIG mode off")
    run = nothing_to_compare(found.backend, devices).as_now(found.states)
    wrong = [(devices[one.member], one.reason) for one in left_out(run)]
    note = f"taken all the same: {torchrun.against(wrong)}" if wrong else ""
    return Chosen(devices, "chosen by hand", "--devices", note=note)


def _left(arguments: TrainArguments, found: Present) -> tuple[Device, ...]:
    """Return the devices to choose from. Raises UsageError where they are fewer than K, and says why."""
    excluded = () if arguments.exclude is None else visible_devices.select(found.every, arguments.exclude)
    left = tuple(device for device in found.devices if device not in excluded)
    k = arguments.auto_select or 0
    if k <= len(left):
        return left
    tags = ", ".join(device.tag for device in left) or "none"
    hidden = f", {found.among}" if found.among else ""
    lost = _lost(found)
    but = f"; not {torchrun.against([*_barred(found, excluded), *lost])}" if excluded or found.mig or lost else ""
    raise UsageError(
        f"--auto-select {k} is more than the {len(left)} that this process may use ({tags}{hidden}{but}): ask for fewer"
    )


def _barred(found: Present, excluded: Sequence[Device]) -> list[tuple[Device, str]]:
    return [(device, "excluded") for device in excluded] + [(device, _MIG) for device in found.mig]


def _lost(found: Present) -> list[tuple[Device, str]]:
    """Return the GPUs that this machine had when it was last measured, and what to do about them."""
    gone = vanished((*found.every, *found.hidden)) if found.backend == "cuda" else ()
    return [(device, f"gone since the last run, {device.uuid}: see nvidia-smi -L") for device in gone]


def _evidence(arguments: TrainArguments, found: Present, left: tuple[Device, ...]) -> tuple[Evidence, Run]:
    """Return what to choose from, and it as a run with the health of now."""
    if arguments.auto_select == len(left) and arguments.run is None:
        whole = nothing_to_compare(found.backend, left)
        return whole, whole.as_now(found.states)
    barred = tuple(device for device in found.every if device not in left)
    wanted = Wanted(
        found.backend,
        arguments.run,
        freshness.parse_duration(arguments.max_age),
        arguments.fresh,
        arguments.nccl,
        "nothing was started",
        besides=found.hidden + barred,
        only=left if barred else (),
        driver=found.driver,
        job_nccl=arguments.container is None,
    )
    first = find(wanted, left)
    run = first.as_now(found.states)
    if arguments.allow_busy and not first.probed and someone_is_busy(run):
        first = measured_now(wanted, "what others leave is not in a saved run: ")
        run = first.as_now(found.states)
    return first, run
