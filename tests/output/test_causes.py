"""Causes in words, and the commands that check them: one for each, and none that a value does not ask for."""

import pytest

from collbench.analysis.diagnose.causes import (
    Check,
    ErrorCounter,
    GpuItself,
    GpuPart,
    HidesNvlinks,
    Known,
    LikelyCause,
    Look,
    NewErrors,
    NvlinksIdle,
    Throttled,
    VariableSet,
)
from collbench.analysis.diagnose.collectives import SLOWING
from collbench.analysis.diagnose.evidence import Extent, Presence
from collbench.output import causes
from tests.builders import gpus, run_of

RUN = run_of(gpus(3), [])
EVERY: list[LikelyCause] = [
    *Known,
    *(NewErrors(1, counter, 2) for counter in ErrorCounter),
    *(GpuItself(1, part) for part in GpuPart),
    *(VariableSet(name, "7") for name in SLOWING),
    *(NvlinksIdle(alone) for alone in (None, Extent.PAIR, Extent.DIRECTION)),
    *(HidesNvlinks(virtualization) for virtualization in ("", "vGPU")),
    *(Throttled(("HW slowdown",), seen) for seen in (Presence(1, 2, 3), Presence(1, when="after"))),
]


def test_every_cause_has_words_of_its_own() -> None:
    said = [causes.cause(cause, RUN) for cause in EVERY]
    assert len(set(said)) == len(said)
    assert not any(clause.endswith(".") for clause in said)


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
