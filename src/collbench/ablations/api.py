"""A training script in two arms that differ in devices or settings."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench import torchrun
from collbench.ablations import ablation as ablations
from collbench.ablations import experiment as experiments
from collbench.ablations.ablation import Ablation, Arm, ArmChange, Measure
from collbench.ablations.child import compile_pattern
from collbench.api import SILENT, Notices, training
from collbench.api.training import TrainRequest
from collbench.machine import visible_devices
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Present
from collbench.model.capabilities import capabilities
from collbench.model.errors import Interrupted, UsageError
from collbench.model.run import Device
from collbench.model.units import amount, fixed
from collbench.runfile import atomic_write, saved_runs

if TYPE_CHECKING:
    from collbench.ablations.experiment import Experiment, Reporter


_DEFAULT_BUDGET_S = 180.0


def prepare(
    train: TrainRequest, values: Mapping[str, Any], reported: Reporter, notices: Notices = SILENT
) -> Experiment:
    """Choose the devices of both arms, as `collbench train` does, and return the experiment, ready to run.

    `values` are the options of `collbench ablate`, by name. Raises errors for what cannot be compared or started,
    before starting anything.
    """
    change = ablations.parse_change(values["without"])
    pattern = None if values["step_pattern"] is None else compile_pattern(values["step_pattern"])
    _check(train, change, notices)
    path, logs = _output_paths(values)
    present = factory.look(train.backend)
    if change.switches and capabilities(present.backend).cores:
        raise UsageError(
            f"the host backend has no {', '.join(change.switches)} to deny NCCL, so both arms would train the "
            "same way: name a variable that the script reads (--without NCCL_NAME=VALUE), or other cores (--against)"
        )
    devices = _choose(train, values["against"], present, notices)
    train_arguments = (*train.script.options, "--", *train.script.program)
    plan = experiments.Setup(train_arguments, path, logs, dict(os.environ), pattern, train.nccl, values["force"])
    experiment = experiments.Experiment(_begun(train, values, change, present.backend, devices), plan, reported)
    for names in dict.fromkeys(arm.uuids for arm in experiment.ablation.arms):
        of_arm = TrainRequest(count=0, backend=present.backend, devices=",".join(names), script=train.script)
        training.prepare(of_arm)  # refuse now what `collbench train` would refuse later
    return experiment


def perform(experiment: Experiment, notices: Notices = SILENT, *, allreduce: bool = True) -> Ablation:
    """Measure both arms' all-reduce and train. After an interruption the file keeps the results, and a notice says so.

    Raises BackendError if the script fails, UsageError if it prints no steps, and Interrupted.
    """
    experiment.logs.mkdir(mode=0o700)
    if capabilities(experiment.ablation.backend).cores:
        notices.say("the host backend trains with gloo, which ignores NCCL variables: only the script can use them")
    try:
        if allreduce:
            experiment.measure_allreduces()
        notices.say(f"{_plan(experiment.ablation)}; the script's output goes to {experiment.logs}")
        experiment.train()
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: {experiment.saved()}") from error
    return experiment.ablation


def _plan(ablation: Ablation) -> str:
    """Return how often both arms will train, as a clause."""
    if ablation.budget_seconds is None:
        return f"training {2 * ablation.repeats} times"
    return (
        "training both arms in turn, three times or more, until their ratio is known to "
        f"±{fixed(100 * ablation.precision)}% or {ablation.budget_seconds:.0f} s have passed"
    )


def _check(train: TrainRequest, change: ArmChange, notices: Notices) -> None:
    """Raise UsageError for what cannot be compared here, before starting anything."""
    ablations.refuse_alike(change, os.environ)
    if torchrun.several_nodes(train.script, os.environ):
        raise UsageError(
            f"ablate compares on one node, and {'--nnodes' if train.script.has('--nnodes') else 'PET_NNODES'} names "
            "several: run ablate on each node by itself"
        )
    torchrun.check_options(train.script, os.environ, train.count)
    torchrun.check_script(train.script)
    if train.count == 1:
        raise _alone("--auto-select 1")
    if "nvlink" in change.switches:
        notices.say(ablations.NVLINK_NOTE)


def _alone(what: str) -> UsageError:
    return UsageError(f"{what} is one device, and one device has no links to compare: name two or more")


def _output_paths(values: Mapping[str, Any]) -> tuple[Path, Path]:
    """Return the ablation's file, and a new folder's path for the children's output."""
    folder, name = saved_runs.state_folder("ablations"), saved_runs.new_name()
    path = values["output"] or folder / f"{name}.json"
    if not values["dry_run"]:
        try:
            atomic_write.make_private(folder)
            atomic_write.try_folder(folder)
        except OSError as error:
            why = f"cannot keep the runs' output in {folder}: {atomic_write.reason(error)}"
            raise UsageError(f"{why}; set XDG_STATE_HOME to a folder that can be written") from error
        experiments.check_writable(path, force=values["force"])
    return path, folder / f"{name}-logs"


def _choose(
    train: TrainRequest, against: str | None, present: Present, notices: Notices
) -> tuple[Sequence[Device], Sequence[Device]]:
    """Return the devices of both arms as `collbench train` chooses them, once, and report why.

    Raises the same errors.
    """
    chosen = training.choose(train, lambda: present, notices)
    if len(chosen.devices) < 2:
        raise _alone(f"--devices {train.devices}")
    others: Sequence[Device] = chosen.devices
    if against is not None:
        others = visible_devices.select(present.every, against)
        if len(others) != len(chosen.devices):
            raise UsageError(
                f"--against {against} names {amount(len(others), 'device')} and the other arm has "
                f"{len(chosen.devices)}: only the same job on as many devices can be compared"
            )
        if {device.uuid for device in others} == {device.uuid for device in chosen.devices}:
            raise UsageError(
                f"--against {against} names the same devices as the other arm: both would train the same way"
            )
    if chosen.note:
        notices.say(chosen.note)
    notices.say(chosen.line(present))
    return chosen.devices, others


def _begun(
    train: TrainRequest, values: Mapping[str, Any], change: ArmChange, backend: str, devices: Sequence[Sequence[Device]]
) -> Ablation:
    """Return the ablation before its first run."""
    names = change.names
    if values["against"] is not None:
        first, second = (", ".join(device.tag for device in of_arm) for of_arm in devices)
        names = f"on {first}", f"on {second}"
    changes: tuple[dict[str, str], dict[str, str]] = ({}, dict(change.environment))
    without = ((), change.without if values["against"] is None else ())
    arms = [
        Arm(
            name,
            environment,
            tuple(device.index for device in of_arm),
            tuple(device.uuid for device in of_arm),
            without=lacking,
        )
        for name, environment, of_arm, lacking in zip(names, changes, devices, without, strict=True)
    ]
    return Ablation(
        collbench=version("collbench"),
        started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        hostname=socket.gethostname(),
        gpus=tuple(device.name for device in devices[0]),
        command=train.script.program,
        measure=Measure.PROCESS,
        arms=(arms[0], arms[1]),
        backend=backend,
        environment=experiments.environment_of(os.environ),
        repeats=values["repeats"] or 0,
        seed=values["seed"],
        skip=values["skip"],
        step_pattern=values["step_pattern"],
        precision=values["precision"] or ablations.PRECISION,
        budget_seconds=None if values["repeats"] else values["budget"] or _DEFAULT_BUDGET_S,
    )
