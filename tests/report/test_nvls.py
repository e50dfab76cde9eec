"""What a page says of NVLS, from what was set and what the GPUs can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.model.operations import Operation
from collbench.report.text.frame import nvls
from tests.builders import gpus, measured, run_of


@pytest.mark.parametrize(
    ("title", "nccl", "setting", "multicast", "state"),
    [
        ("without NCCL", "", "0", True, ""),
        ("nothing known", "2.28.9", None, None, ""),
        ("switched off", "2.28.9", "0", True, "NVLS off (NCCL_NVLS_ENABLE=0)"),
        ("GPUs that cannot", "2.28.9", None, False, "NVLS not supported by these GPUs"),
        ("GPUs that can", "2.28.9", None, True, "NVLS possible: the GPUs support multicast, NCCL decides"),
        (
            "asked for",
            "2.28.9",
            "1",
            True,
            "NVLS possible (NCCL_NVLS_ENABLE=1): the GPUs support multicast, NCCL decides",
        ),
        ("asked for, nothing known of the GPUs", "2.28.9", "1", None, "NCCL_NVLS_ENABLE=1"),
    ],
)
def test_the_words(title: str, nccl: str, setting: str | None, multicast: bool | None, state: str) -> None:
    run = run_of(gpus(2), [measured(Operation.ALLREDUCE, (0, 1), 100.0)])
    run.machine = replace(run.machine, nccl=nccl, multicast=multicast)
    run.settings = replace(run.settings, environment={} if setting is None else {"NCCL_NVLS_ENABLE": setting})
    assert nvls(run) == state, title
