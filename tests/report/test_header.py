from dataclasses import replace

import pytest

from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import Machine
from collbench.report.text.frame import header
from tests.builders import gpus, measured, run_of

POINT = measured(Operation.ALLREDUCE, (0, 1), 300.0)


def test_a_header_names_backend_machine_versions_and_date() -> None:
    run = run_of(gpus(4), [POINT, measured(Operation.ALLREDUCE, (0, 1), 1.0, 8)])
    run.machine = Machine("box", "Linux 6.8 x86_64", "EPYC", "580.159.04", "13.0", "2.28.9", "/opt/libnccl.so.2", "ptx")
    assert header(run).split("\n") == [
        "backend   cuda: copies by the driver API, collectives by NCCL",
        "machine   box: 4 × NVIDIA H200; Linux 6.8 x86_64",
        "driver    580.159.04, CUDA 13.0, kernels from ptx",
        "NCCL      2.28.9, /opt/libnccl.so.2",
        "measured  2026-01-02T03:04:05Z in 1.5 s, 8 B to 1G, seed 7",
    ]


@pytest.mark.parametrize(
    ("title", "complete", "virtualization", "environment", "line"),
    [
        ("an interruption", False, "", {}, "measured  2026-01-02T03:04:05Z in 1.5 s, 1G, seed 7 (interrupted)"),
        (
            "a virtual machine",
            True,
            "pass-through",
            {},
            "virtual   GPU pass-through to a virtual machine",
        ),
        ("bare metal", True, "none", {}, "machine   box: 2 × NVIDIA H200; Linux 6.8 x86_64"),
        (
            "variables, sorted",
            True,
            "",
            {"NCCL_P2P_LEVEL": "SYS", "NCCL_ALGO": "Ring", "NCCL_VERSION": "2.28.3-1"},
            "settings  NCCL_ALGO=Ring, NCCL_P2P_LEVEL=SYS",
        ),
    ],
)
def test_what_changes_the_numbers_is_said(
    title: str, complete: bool, virtualization: str, environment: dict[str, str], line: str
) -> None:
    run = run_of(gpus(2), [POINT])
    run.complete = complete
    run.machine = replace(run.machine, virtualization=virtualization)
    run.settings = replace(run.settings, environment=environment)
    assert line in header(run).split("\n")


def test_mixed_devices_are_counted_by_name() -> None:
    run = run_of((*gpus(2, "NVIDIA A100"), *gpus(1, "NVIDIA H200")), [POINT])
    assert "machine   box: 2 × NVIDIA A100, 1 × NVIDIA H200; " in header(run)


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'mars' is unknown"):
        header(run_of(gpus(2), [POINT], backend="mars"))


def test_a_run_without_sizes_has_no_span() -> None:
    assert header(run_of(gpus(2), [])).endswith("\nmeasured  2026-01-02T03:04:05Z in 1.5 s")
