"""What the libraries' versions and places mean: NCCL, the driver's CUDA library, torch. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from collbench.doctor.facts import Facts, Software
from collbench.doctor.findings import Finding, Group, Level

_UTILITY_ONLY = (
    "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility when it is started; else install the driver's libraries"
)
_TORCH = "pip install torch, as its site says for your CUDA"


def judge(facts: Facts) -> list[Finding]:
    """Judge the libraries that a run on GPUs opens, and whether they fit each other and the driver."""
    found = facts.software
    return [*_libcuda(facts), *_nccl(found), *_same_nccl(found), *_preload(facts), _torch(facts)]


def torch_for_cores(found: Software) -> list[Finding]:
    """Judge what the host backend needs: torch, for gloo."""
    if not found.torch:
        return [Finding(Group.LIBRARIES, "torch", Level.FAIL, "not installed: gloo's collectives come with it", _TORCH)]
    return [Finding(Group.LIBRARIES, "torch", Level.OK, f"{found.torch}: brings gloo for collectives between cores")]


def _libcuda(facts: Facts) -> Iterable[Finding]:
    found = facts.software
    if found.libcuda_error:
        if facts.driver.gpus:  # without a driver its line has said so
            told = f"libcuda.so.1 cannot be opened: {found.libcuda_error}"
            yield Finding(Group.LIBRARIES, "libcuda", Level.FAIL, told, _UTILITY_ONLY)
        return
    compatible = facts.driver.cuda and facts.driver.cuda != found.libcuda
    more = f", by a compatibility library: the driver's own is {facts.driver.cuda}" if compatible else ""
    yield Finding(Group.LIBRARIES, "libcuda", Level.OK, f"CUDA {found.libcuda}{more}")


def _nccl(found: Software) -> Iterable[Finding]:
    if found.nccl_error:
        told, _, advice = found.nccl_error.partition("; ")
        fix = advice or "install torch with CUDA or libnccl2, or name a file with --nccl PATH"
        yield Finding(Group.LIBRARIES, "NCCL", Level.FAIL, told, fix)
    else:
        yield Finding(Group.LIBRARIES, "NCCL", Level.OK, f"{found.nccl}, {found.nccl_path}")


def _same_nccl(found: Software) -> Iterable[Finding]:
    """Judge whether what is timed is what torch will load: the wheel beside it, where it came as one."""
    name = "torch's NCCL"
    if not found.wheel:
        if found.torch_cuda:
            told = "no nvidia-nccl wheel beside torch: it was built with NCCL inside, or takes the system's"
            fix = "compare with python -c 'import torch; print(torch.cuda.nccl.version())'"
            yield Finding(Group.LIBRARIES, name, Level.UNKNOWN, told, fix)
        return
    version = found.wheel_version or "of unknown version"
    if found.nccl_error or found.wheel == found.nccl_path:
        yield Finding(Group.LIBRARIES, name, Level.OK, f"{version}: what collbench times")
    elif found.wheel_version == found.nccl:
        yield Finding(Group.LIBRARIES, name, Level.OK, f"{version} at {found.wheel}: the same version")
    else:
        told = f"{version} at {found.wheel}: training loads that one, and collbench times {found.nccl}"
        fix = "unset COLLBENCH_NCCL and leave out --nccl to time torch's"
        yield Finding(Group.LIBRARIES, name, Level.WARN, told, fix)


def _preload(facts: Facts) -> Iterable[Finding]:
    preloaded = facts.environment.get("LD_PRELOAD", "")
    if "nccl" in preloaded.lower():
        told = f"LD_PRELOAD={preloaded}: every process takes this NCCL first"
        yield Finding(Group.LIBRARIES, "LD_PRELOAD", Level.WARN, told, "unset LD_PRELOAD, unless it is meant")


def _torch(facts: Facts) -> Finding:
    found = facts.software
    if not found.torch:
        return Finding(Group.LIBRARIES, "torch", Level.WARN, "not installed: collbench train needs it", _TORCH)
    if not found.torch_cuda:
        told = f"{found.torch} has no CUDA: collbench measures, and training would run on CPU cores"
        return Finding(Group.LIBRARIES, "torch", Level.WARN, told, _TORCH)
    told = f"{found.torch}, built for CUDA {found.torch_cuda}"
    ours, theirs = _major(found.libcuda or facts.driver.cuda), _major(found.torch_cuda)
    if ours is not None and theirs is not None and ours < theirs:
        # Within one major version any driver will do [CUDA compatibility guide, "minor version compatibility"].
        fix = f"install a driver for CUDA {theirs}, or torch built for CUDA {ours}"
        return Finding(Group.LIBRARIES, "torch", Level.FAIL, f"{told}; the driver has {ours}", fix)
    return Finding(Group.LIBRARIES, "torch", Level.OK, told)


def _major(version: str) -> int | None:
    number = version.partition(".")[0]
    return int(number) if number.isdigit() else None
