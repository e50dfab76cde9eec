"""Causes in words, and the commands that check them: one for each, and none that a value does not ask for."""

from dataclasses import replace

import pytest

from collbench.judge.diagnose.causes import (
    Check,
    ErrorCounter,
    GpuItself,
    GpuPart,
    Known,
    LikelyCause,
    Look,
    NewErrors,
    OfLinks,
    Throttled,
    VariableSet,
)
from collbench.judge.diagnose.collectives import SLOWING
from collbench.judge.diagnose.evidence import Extent, Presence
from collbench.report import causes
from tests.builders import gpus, run_of

RUN = run_of(gpus(3), [])
EVERY: list[LikelyCause] = [
    *Known,
    *(NewErrors(1, counter, 2) for counter in ErrorCounter),
    *(GpuItself(1, part) for part in GpuPart),
    *(VariableSet(name, "7") for name in SLOWING),
    *(OfLinks(Known.NVLINKS_IDLE, alone) for alone in (Extent.PAIR, Extent.DIRECTION)),
    *(Throttled(("HW slowdown",), seen) for seen in (Presence(1, 2, 3), Presence(1, when="after"))),
]


def test_every_cause_has_words_of_its_own() -> None:
    said = [causes.cause(cause, RUN) for cause in EVERY]
    assert len(set(said)) == len(said)
    assert not any(clause.endswith(".") for clause in said)


@pytest.mark.parametrize(
    ("virtualization", "who"),
    [("vGPU", "the virtual machine (vGPU)"), ("none", "a virtual machine or the driver")],
)
def test_hidden_nvlinks_name_the_virtual_machine_if_there_is_one(virtualization: str, who: str) -> None:
    run = replace(RUN, machine=replace(RUN.machine, virtualization=virtualization))
    assert causes.cause(Known.NVLINKS_HIDDEN, run).startswith(f"{who} hides the NVLinks")


@pytest.mark.parametrize("look", Look)
def test_every_look_is_a_command_of_the_devices_alone_that_it_names(look: Look) -> None:
    command = causes.command([Check(look, (1,), "NCCL_ALGO")], RUN)
    assert command
    assert "{" not in command
    assert "NCCL_ALGO" in command or look is not Look.WITHOUT_VARIABLE
    assert "-i 0" not in causes.command([Check(look)], RUN)


def test_commands_name_gpus_as_nvidia_smi_does_and_stand_in_one_line() -> None:
    checks = [Check(Look.NVLINKS, (0, 2)), Check(Look.LABELS)]
    assert causes.command(checks, RUN) == "nvidia-smi nvlink -s -i 0,2; nvidia-smi topo -m"
