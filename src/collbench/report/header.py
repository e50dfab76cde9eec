"""The first lines of every page: where the numbers come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from collbench.model import Run
from collbench.report.nvls import nvls
from collbench.units import format_size


def header(run: Run) -> str:
    """Return the run's origin: backend first, then machine, devices, versions, and what was measured when."""
    machine = run.machine
    if run.backend == "sim":
        return _simulated(run)
    kinds = Counter(device.name for device in run.devices)
    devices = ", ".join(f"{count} × {name}" for name, count in kinds.items())
    lines = [
        f"backend   {run.backend}{_backend_note(run.backend)}",
        f"machine   {machine.hostname}: {devices}; {machine.system}",
    ]
    if machine.virtualization not in ("", "none"):
        lines.append(f"virtual   GPU {machine.virtualization} to a virtual machine")
    if machine.driver:
        lines.append(f"driver    {machine.driver}, CUDA {machine.cuda}, kernels from {machine.kernel_image or 'none'}")
    if machine.nccl:
        lines.append(f"NCCL      {machine.nccl}, {machine.nccl_path}")
    reductions = nvls(run)
    if reductions:
        lines.append(f"NVLS      {reductions.removeprefix('NVLS ')}")
    if run.settings.processes > 1:
        lines.append(f"processes {_processes(run)}")
    told = settings(run.settings.environment)
    if told:
        lines.append(f"settings  {told}")
    lines.append(
        f"measured  {run.started} in {run.seconds:.1f} s{_sizes(run)}{'' if run.complete else ' (interrupted)'}"
    )
    return "\n".join(lines)


def _simulated(run: Run) -> str:
    """Return the lines of a simulated machine. No figure of its may pass for a measured one."""
    kinds = Counter(device.name for device in run.devices)
    devices = ", ".join(f"{count} × {name}" for name, count in kinds.items())
    lines = [
        f"backend   sim: SIMULATED machine '{run.machine.fabric}', nothing below was measured on a GPU",
        f"machine   {devices}, all simulated",
    ]
    if run.machine.virtualization not in ("", "none"):
        lines.append(f"virtual   GPU {run.machine.virtualization} to a virtual machine (simulated)")
    told = settings(run.settings.environment)
    if told:
        lines.append(f"settings  {told} (simulated)")
    done = "" if run.complete else " (interrupted)"
    lines.append(f"simulated {run.started}, {run.seconds:.1f} s of the machine's time{_sizes(run)}{done}")
    return "\n".join(lines)


def _processes(run: Run) -> str:
    """Name how many processes measured, what started them, and on which hosts where there are several."""
    hosts = ", ".join(dict.fromkeys(device.host for device in run.devices if device.host))
    started = f"{run.settings.processes} ({run.settings.launcher}), one for each device"
    return f"{started}; hosts {hosts}" if hosts else started


def _backend_note(backend: str) -> str:
    return {
        "host": ": memory copies between CPU cores and gloo collectives, no GPU",
        "cuda": ": copies by the driver API, collectives by NCCL",
    }.get(backend, "")


def settings(environment: Mapping[str, str]) -> str:
    """Name the variables that were set: they change what NCCL does.

    NCCL_VERSION does not: NVIDIA's container images leave it behind, and the loaded library's version may differ.
    """
    return ", ".join(f"{name}={value}" for name, value in sorted(environment.items()) if name != "NCCL_VERSION")


def _sizes(run: Run) -> str:
    sizes = run.settings.sizes
    if not sizes:
        return ""
    span = format_size(sizes[0]) if len(sizes) == 1 else f"{format_size(sizes[0])} to {format_size(sizes[-1])}"
    return f", {span}, seed {run.settings.seed}"
