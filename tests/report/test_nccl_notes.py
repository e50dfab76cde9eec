"""What a page says that NCCL did not do although the user may expect it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.model.operations import Operation, Registration, Work
from collbench.model.run import CommandKind, Run
from collbench.report.text.frame import nccl_notes
from tests.builders import gpus, measured, run_of

_BUFFER, _WINDOW = Registration.BUFFER, Registration.WINDOW


def _run(*works: tuple[Operation, Registration]) -> Run:
    """Return a run of one process whose GPUs and NCCL may use NVLS, with these works."""
    points = [measured(operation, (0, 1), 100.0) for operation, _ in works]
    for measurement, (_, registration) in zip(points, works, strict=True):
        measurement.point = replace(measurement.point, registration=registration)
    run = run_of(gpus(2), points)
    collectives = tuple(Work(operation, registration=registration) for operation, registration in works)
    run.settings = replace(run.settings, kind=CommandKind.COLLECTIVE, collectives=collectives, environment={})
    run.machine = replace(run.machine, nccl="2.28.9", multicast=True)
    return run


def test_registered_memory_in_one_process_names_the_launch_that_a_job_resembles() -> None:
    (line,) = nccl_notes(_run((Operation.ALLREDUCE, _BUFFER)))

    assert line.startswith("process   one process has all ranks, so NCCL registers no buffer for NVLS")
    assert line.endswith(" torchrun --nproc-per-node 2 -m collbench allreduce --registration buffer")


def test_small_allreduces_name_their_own_option() -> None:
    run = _run((Operation.ALLREDUCE, _BUFFER), (Operation.ALLREDUCE, _WINDOW))
    run.settings = replace(run.settings, kind=CommandKind.LATENCY, layers=80)
    (line,) = nccl_notes(run)
    assert line.endswith(" -m collbench latency --collectives")


def test_the_launch_has_the_devices_and_the_collectives_of_the_run() -> None:
    run = _run((Operation.ALLREDUCE, Registration.NONE), (Operation.ALLREDUCE, _BUFFER), (Operation.BROADCAST, _WINDOW))
    run.settings = replace(run.settings, kind=CommandKind.PAIRS, devices=("0", "1"))
    (line,) = nccl_notes(run)

    assert line.endswith(
        "measure with CUDA_VISIBLE_DEVICES=GPU-0,GPU-1 torchrun --nproc-per-node 2 -m collbench pairs "
        "--operations allreduce,broadcast --registration all"
    )


@pytest.mark.parametrize(
    ("title", "changes", "multicast", "registration"),
    [
        ("ordinary memory", {}, True, Registration.NONE),
        ("NVLS is off", {"environment": {"NCCL_NVLS_ENABLE": "0"}}, True, _BUFFER),
        ("no multicast", {}, False, _BUFFER),
        ("multicast unknown", {}, None, _BUFFER),
        ("a process per GPU", {"processes": 2}, True, _BUFFER),
        ("NCCL was told to", {"environment": {"NCCL_SINGLE_PROC_MEM_REG_ENABLE": "1"}}, True, _BUFFER),
    ],
)
def test_where_one_process_is_as_good_nothing_is_said(
    title: str, changes: dict[str, object], multicast: bool | None, registration: Registration
) -> None:
    run = _run((Operation.ALLREDUCE, registration))
    run.machine = replace(run.machine, multicast=multicast)
    run.settings = replace(run.settings, **changes)  # type: ignore[arg-type]
    assert list(nccl_notes(run)) == [], title
