"""What NCCL did not do although the user may expect it: notes below the figures of a page."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.judge.physics import NVLS_VARIABLE
from collbench.model.operations import Operation, Registration, Work
from collbench.model.run import CommandKind, Run
from collbench.model.units import abridged

_CTA_POLICY_ZERO = 2  # NCCL_CTA_POLICY_ZERO: a bit of CTAPolicy since NCCL 2.30
# What NCCL has in copy engines, on windows of one host [2.28.9 to 2.30.7, ce_coll.cc].
_BY_COPY_ENGINE = (Operation.ALLGATHER, Operation.ALLTOALL, Operation.GATHER, Operation.SCATTER)
# By which NCCL registers buffers for NVLS although ranks share a process [2.28.3, init.cc].
_IN_ONE_PROCESS = "NCCL_SINGLE_PROC_MEM_REG_ENABLE"
_MOST_NAMES = 4


def nccl_notes(run: Run) -> Iterator[str]:
    """Yield a line for each such thing."""
    works = [work for work in dict.fromkeys(one.point.work for one in run.measurements) if work.operation.is_collective]
    yield from _without_copy_engines(run, works)
    yield from _not_registered_for_nvls(run, works)


def _without_copy_engines(run: Run, works: list[Work]) -> Iterator[str]:
    """Yield which collectives ran kernels although the user asked NCCL for copy engines."""
    policy = run.settings.nccl_config.get("CTAPolicy", 0)
    names = [
        str(work)
        for work in works
        if work.operation not in _BY_COPY_ENGINE or work.registration is not Registration.WINDOW
    ]
    if policy & _CTA_POLICY_ZERO and names:
        yield (
            f"kernels   CTAPolicy={policy} does nothing for {abridged(names, _MOST_NAMES)}: NCCL has copy engines only "
            "for allgather, alltoall, gather and scatter, on --registration window"
        )


def _not_registered_for_nvls(run: Run, works: list[Work]) -> Iterator[str]:
    """Yield that a job gets more than one process: NVLS could use registered buffers (docs/method/collectives.md 1)."""
    kinds = dict.fromkeys(work.registration for work in works if work.registration is not Registration.NONE)
    environment = run.settings.environment
    possible = run.machine.multicast is True and environment.get(NVLS_VARIABLE) != "0"
    if not kinds or not possible or run.settings.processes > 1 or environment.get(_IN_ONE_PROCESS) == "1":
        return
    command = run.settings.command_name
    if run.settings.kind is CommandKind.PAIRS:
        command += f" --operations {','.join(dict.fromkeys(work.operation for work in works))}"
    registration = next(iter(kinds)) if len(kinds) == 1 else "all"
    visible = f"CUDA_VISIBLE_DEVICES={','.join(device.uuid for device in run.devices)} " if run.settings.devices else ""
    yield (
        "process   one process has all ranks, so NCCL registers no buffer for NVLS, as it does in a job; measure with "
        f"{visible}torchrun --nproc-per-node {len(run.devices)} -m collbench {command} --registration {registration}"
    )
