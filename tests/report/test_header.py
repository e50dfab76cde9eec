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


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'mars' is unknown"):
        header(run_of(gpus(2), [POINT], backend="mars"))
