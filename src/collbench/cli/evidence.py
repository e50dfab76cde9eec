"""The evidence to choose devices by: a named run, the newest saved one of this machine, or a probe of seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from collbench import runfile
from collbench.backends import opening
from collbench.cli import options
from collbench.cli.leaving import Interrupted
from collbench.cli.terminal import say
from collbench.errors import BackendError, RunFileError
from collbench.launch import freshness, reason
from collbench.machine.limits import SHARED
from collbench.machine.nvml import Nvml
from collbench.model import Device, Health, Run, Sample, Settings

# What ranks pairs in seconds: what training runs, where it is latency and where it is bandwidth.
_PROBE = ("pairs", "--operations", "allreduce", "--sizes", "8,1M,64M")
_HOST_PROBE = ("pairs", "--operations", "copy,allreduce", "--sizes", "8,1M,16M")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which evidence will do: from the file `run`, or saved within `max_age` unless `fresh`, with this `nccl`.

    `undone` ends the line after a failed probe: what did not happen then; `advice` the one that refuses `run`.
    """

    backend: str
    run: str | None
    max_age: timedelta
    fresh: bool
    nccl: str | None
    undone: str
    advice: str = "measure again or use --fresh"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run to choose from, and the words for where it came from. `probed`: it is seconds old."""

    run: Run
    source: str
    probed: bool = False

    def as_now(self) -> Run:
        """Return the run with the GPUs' health of this moment: who was busy when it was saved says little now.

        What its own counters of NVLink errors were stays as the start, so that errors since then count. A probe's
        reading stands: its killed workers may still be on the GPUs. What visits saw of other processes is forgotten,
        for they may have gone. Raises MachineError for a lost GPU.
        """
        if self.probed or self.run.backend != "cuda":
            return self.run
        now = health_of(self.run.devices)
        then = self.run.health_before or now
        before = (replace(new, nvlink_errors=old.nvlink_errors) for old, new in zip(then, now, strict=False))
        found = [replace(one, samples=[_alone(sample) for sample in one.samples]) for one in self.run.measurements]
        return replace(self.run, measurements=found, health_before=tuple(before), health_after=now)


def _alone(sample: Sample) -> Sample:
    return replace(sample, flags=tuple(flag for flag in sample.flags if not flag.startswith(SHARED)))


def find(wanted: Wanted, present: tuple[Device, ...]) -> Evidence:
    """Return the named run, the newest saved one that fits the present devices, or a probe.

    Raises RunFileError for a named run that speaks for another machine; BackendError, Interrupted for the probe.
    """
    place, now = here(wanted, present), datetime.now(UTC)
    if wanted.run is not None:
        run = runfile.load(Path(wanted.run))
        refusal = freshness.refusal(run, place, now, wanted.max_age)
        if refusal:
            raise RunFileError(f"{wanted.run} cannot choose devices here: {refusal}; {wanted.advice}")
        return Evidence(run, reason.saved_run(run.started, wanted.run))
    for path in () if wanted.fresh else sorted(options.runs_folder().glob("*.json"), reverse=True):
        try:
            run = runfile.load(path)
        except RunFileError:
            continue  # somebody else's file, or an older format: a probe costs seconds
        if freshness.refusal(run, place, now, wanted.max_age) is None and _ranks_pairs(run) and not _disturbed(run):
            return Evidence(run, reason.saved_run(run.started, str(path)))
    return measured_now(wanted, "" if wanted.fresh else "no saved run fits: ")


def measured_now(wanted: Wanted, why: str) -> Evidence:
    """Return a probe, whatever is saved, for the reason `why`. Raises BackendError, Interrupted."""
    return Evidence(probe(wanted, why), reason.QUICK_PROBE, probed=True)


def someone_is_busy(run: Run) -> bool:
    """Return whether others use one of the run's devices: then an older run does not say what is left of them."""
    from collbench.affinity.fitness import left_out  # late: numpy

    return len(left_out(run)) > len(left_out(run, allow_busy=True))


def nothing_to_compare(backend: str, devices: tuple[Device, ...]) -> Evidence:
    """Return a run without a measurement: enough where all of the devices are wanted, and only their health counts."""
    settings = Settings((), (), dtype="float32", redop="sum", visits=0, seed=0, command=(), environment={})
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = Run(backend, version("collbench"), started, opening.here(), devices, (), settings, complete=True)
    return Evidence(run, "no choice to make")


def health_of(devices: Sequence[Device]) -> tuple[Health, ...]:
    """Return the GPUs' state now, by position; nothing of ours may be on them. Raises MachineError for a lost one."""
    with Nvml() as nvml:
        states = [nvml.health(device) for device in devices]
    return tuple(replace(state, others_memory=state.memory_used) for state in states)


def here(wanted: Wanted, present: tuple[Device, ...]) -> freshness.Here:
    """Return the machine as it is now, to compare saved runs with. Raises MachineError without driver or NCCL."""
    if wanted.backend == "host":
        return freshness.Here(wanted.backend, present)
    from collbench.backends.nccl_library import find_nccl, format_version

    nccl = find_nccl(wanted.nccl or os.environ.get("COLLBENCH_NCCL"))
    return freshness.Here(wanted.backend, present, opening.driver_version(), format_version(nccl.version))


def probe(wanted: Wanted, why: str) -> Run:
    """Measure in a child, so that no context, thread or affinity of ours outlives it; one line says so and `why`.

    Raises BackendError, Interrupted.
    """
    path = options.run_path(None, "probe", wanted.backend)
    words = [*(_HOST_PROBE if wanted.backend == "host" else _PROBE), "--backend", wanted.backend, "-o", str(path)]
    words += ["--nccl", wanted.nccl] if wanted.nccl else []
    say(f"{why}probing for a few seconds")
    command = [sys.executable, "-P", "-m", "collbench", *words]
    try:
        status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted in the probe: {wanted.undone}") from error
    if status != 0:
        raise BackendError(f"the probe failed (exit status {status}, see above): {wanted.undone}")
    return runfile.load(path)


def _disturbed(run: Run) -> bool:
    """Return whether others were at work on its devices: what they left then is not what there is now."""
    from collbench.affinity.fitness import left_out  # late: numpy

    return any(left.reason.startswith("busy") for left in left_out(run))


def _ranks_pairs(run: Run) -> bool:
    """Return whether pairs were timed at a size that shows bandwidth: whoever timed 8 bytes did not mean to choose."""
    return any(
        len(found.cell.members) == 2 and found.cell.size_bytes >= freshness.TELLING_BYTES for found in run.measured()
    )
