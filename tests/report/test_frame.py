"""What frames every page: NVLS, what NCCL did not do, the names of places, the variables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.model.operations import Operation, Registration, Variant, Work
from collbench.model.run import CommandKind, Run
from collbench.report.frame import device_names, nccl_notes, nvls, settings
from tests.builders import gpus, measured, run_of


@pytest.mark.parametrize(
    ("title", "nccl", "setting", "multicast", "state"),
    [
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
def test_the_words_of_nvls(title: str, nccl: str, setting: str | None, multicast: bool | None, state: str) -> None:
    run = run_of(gpus(2), [measured(Operation.ALLREDUCE, (0, 1), 100.0)])
    run.machine = replace(run.machine, nccl=nccl, multicast=multicast)
    run.settings = replace(run.settings, environment={} if setting is None else {"NCCL_NVLS_ENABLE": setting})
    assert nvls(run) == state, title


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


@pytest.mark.parametrize(
    ("work", "devices", "name"),
    [
        (Work(Operation.CE_READ), (1, 0), "GPU1 → GPU0"),
        (Work(Operation.SM_READ, Variant.BOTH_WAYS), (0, 2), "GPU0 ↔ GPU2"),
        (Work(Operation.SM_READ, Variant.ONE_TO_ALL), (1, 0, 2), "GPU1 → all others"),
        (Work(Operation.SM_READ, Variant.ALL_TO_ONE), (1, 0, 2), "all others → GPU1"),
        (Work(Operation.H2D_CE, Variant.HOST), (2,), "GPU2"),
        (Work(Operation.GATHER), (0, 1, 2), "GPU0, GPU1, GPU2"),
    ],
)
def test_places_are_named_as_the_work_uses_them(work: Work, devices: tuple[int, ...], name: str) -> None:
    assert device_names(gpus(3), work, devices) == name


def test_a_variable_that_nothing_reads_is_shown_with_the_one_that_was_probably_meant() -> None:
    environment = {"NCCL_PROTOO": "LL", "NCCL_ALGO": "Ring", "NCCL_FASTRAK_X": "1", "CUDA_MODULE_LOADING": "EAGER"}
    assert settings(environment) == (
        "CUDA_MODULE_LOADING=EAGER, NCCL_ALGO=Ring, NCCL_FASTRAK_X=1, "
        "NCCL_PROTOO=LL (not read; did you mean NCCL_PROTO?)"
    )
