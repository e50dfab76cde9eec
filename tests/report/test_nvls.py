"""What a page says of NVLS, from what was set, what the GPUs can, and what NCCL said that it chose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.model.operations import Operation
from collbench.model.run import Chosen
from collbench.report.text.frame import nvls
from tests.builders import gpus, measured, run_of


def choices(*algorithms: str) -> list[Chosen]:
    return [Chosen(Operation.ALLREDUCE, 4, 2**index, name, "SIMPLE", 8) for index, name in enumerate(algorithms, 10)]


@pytest.mark.parametrize(
    ("title", "nccl", "setting", "multicast", "chosen", "state"),
    [
        ("without NCCL", "", "0", True, [], ""),
        ("nothing known", "2.28.9", None, None, [], ""),
        ("switched off", "2.28.9", "0", True, [], "NVLS off (NCCL_NVLS_ENABLE=0)"),
        ("GPUs that cannot", "2.28.9", None, False, [], "NVLS not supported by these GPUs"),
        ("GPUs that can", "2.28.9", None, True, [], "NVLS possible: the GPUs support multicast, NCCL decides"),
        (
            "asked for",
            "2.28.9",
            "1",
            True,
            [],
            "NVLS possible (NCCL_NVLS_ENABLE=1): the GPUs support multicast, NCCL decides",
        ),
        ("asked for, nothing known of the GPUs", "2.28.9", "1", None, [], "NCCL_NVLS_ENABLE=1"),
        ("NCCL took it", "2.28.9", None, True, choices("RING", "NVLS", "NVLS_TREE"), "NVLS chosen for 2 of 3 messages"),
        ("NCCL did not", "2.28.9", None, True, choices("RING", "TREE"), "NVLS not chosen for any of 2 messages"),
    ],
)
def test_the_words(
    title: str, nccl: str, setting: str | None, multicast: bool | None, chosen: list[Chosen], state: str
) -> None:
    run = run_of(gpus(2), [measured(Operation.ALLREDUCE, (0, 1), 100.0)])
    run.machine = replace(run.machine, nccl=nccl, multicast=multicast)
    run.settings = replace(run.settings, environment={} if setting is None else {"NCCL_NVLS_ENABLE": setting})
    run.chosen = chosen
    assert nvls(run) == state, title
