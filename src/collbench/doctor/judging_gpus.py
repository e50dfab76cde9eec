"""What the driver's facts mean: its version, which GPUs are in sight, their modes and health. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from collbench.doctor.facts import Driver, Facts, Gpu
from collbench.doctor.findings import Finding, Group, Level, indices, tags
from collbench.machine.limits import HOT_C, holds_back
from collbench.machine.visible import NAME, ORDER, read
from collbench.units import format_approximate_size

# Reads the shipped PTX, ISA 7.8 [CONTRIBUTING.md, "The PTX"].
OLDEST_DRIVER = 520
# nvmlComputeMode_t and nvmlGpuFabricState_t [nvml.h, r580]
_PROHIBITED = 2  # 0 is the default, 1 and 3 let one process in
_FABRIC_WORDS = {1: "not started", 2: "in progress"}
_GPUS_FOR_CONTAINERS = {
    "docker": "start the container with its GPUs: docker run --gpus all …",
    "podman": "start the container with its GPUs: podman run --device nvidia.com/gpu=all …",
    "apptainer": "start the container with its GPUs: apptainer exec --nv …",
    "singularity": "start the container with its GPUs: singularity exec --nv …",
    "kubernetes": "ask for GPUs in the pod: resources.limits nvidia.com/gpu",
}
_INSTALL = "install the NVIDIA driver"
_WITHOUT = "or do without a GPU: collbench doctor --backend host"


def driver(facts: Facts) -> list[Finding]:
    """Judge the driver, its version, and how many GPUs it shows."""
    found = facts.driver
    if found.error:
        told, _, advice = found.error.partition("; ")
        missing = "no NVIDIA driver: libnvidia-ml.so.1 cannot be opened" in told
        fix = f"{_GPUS_FOR_CONTAINERS.get(facts.host.container, _INSTALL)}; {_WITHOUT}" if missing else advice
        return [Finding(Group.GPUS, "driver", Level.FAIL, told, fix)]
    return [_version(found), *_tool(found), _count(facts)]


def visibility(facts: Facts) -> list[Finding]:
    """Judge what CUDA_VISIBLE_DEVICES leaves; no finding where it is not set and there are GPUs enough."""
    devices = [gpu.device for gpu in facts.driver.gpus]
    given = facts.environment.get(NAME)
    seen = read(devices, given, facts.environment.get(ORDER))
    name, unset = NAME, f"unset {NAME}, or write indices or UUIDs of nvidia-smi -L"
    left = ", ".join(device.tag for device in seen.devices) or "no GPU"
    why = f": {seen.problem}" if seen.problem else ""
    found = []
    if seen.problem and not seen.certain:
        found.append(Finding(Group.GPUS, name, Level.WARN, f"only CUDA can tell what it leaves{why}", unset))
    elif not seen.devices:
        found.append(Finding(Group.GPUS, name, Level.FAIL, f"leaves no GPU{why}", unset))
    elif seen.problem:
        found.append(Finding(Group.GPUS, name, Level.WARN, f"leaves {left}{why}", unset))
    elif len(seen.devices) < 2:
        told = f"leaves {left} alone: no pair to measure" if given is not None else "one GPU: no pair to measure"
        found.append(Finding(Group.GPUS, name if given is not None else "pairs", Level.WARN, told, "use two or more"))
    elif given is not None:
        found.append(Finding(Group.GPUS, name, Level.OK, f"leaves {left}, {len(seen.devices)} of {len(devices)}"))
    return [*found, *_order(facts)]


def health(gpus: Sequence[Gpu]) -> list[Finding]:
    """Judge the modes and the state of the GPUs in sight, each thing in one line."""
    return [*_modes(gpus), *_memory(gpus), *_fabric(gpus), *_now(gpus)]


def _version(found: Driver) -> Finding:
    told = f"{found.version}, CUDA {found.cuda or 'unknown'}"
    branch = found.version.partition(".")[0]
    if not branch.isdigit():
        return Finding(Group.GPUS, "driver", Level.UNKNOWN, f"version '{found.version}' cannot be read")
    if int(branch) < OLDEST_DRIVER:
        fix = f"install driver r{OLDEST_DRIVER} or newer"
        return Finding(Group.GPUS, "driver", Level.FAIL, f"{told}: older than r{OLDEST_DRIVER}", fix)
    return Finding(Group.GPUS, "driver", Level.OK, told)


def _tool(found: Driver) -> list[Finding]:
    if found.nvidia_smi:
        return []
    told = "not on PATH: its words on links are not compared with NVML's; NVML has all else"
    return [Finding(Group.GPUS, "nvidia-smi", Level.OK, told)]


def _count(facts: Facts) -> Finding:
    found = facts.driver
    kinds = Counter(gpu.device.name for gpu in found.gpus)
    told = ", ".join(f"{count} × {name}" for name, count in kinds.items()) or "none"
    hidden = (found.on_the_bus or 0) - len(found.gpus)
    if not found.gpus:
        fix = _GPUS_FOR_CONTAINERS.get(facts.host.container, "see nvidia-smi -L, and who may open /dev/nvidia*")
        return Finding(Group.GPUS, "GPUs", Level.FAIL, "the driver shows no GPU to this process", fix)
    if hidden <= 0:
        return Finding(Group.GPUS, "GPUs", Level.OK, told)
    if facts.host.container:
        return Finding(Group.GPUS, "GPUs", Level.OK, f"{told}; {hidden} more on PCI, not given to this container")
    fix = "see dmesg | grep -i xid for a GPU that fell off the bus, and /dev/nvidia* for one that is not given to you"
    return Finding(Group.GPUS, "GPUs", Level.WARN, f"{told}; {hidden} more on PCI that the driver does not show", fix)


def _order(facts: Facts) -> list[Finding]:
    """Warn where indices mean other GPUs to CUDA than to nvidia-smi: it puts the fastest first unless told."""
    given = facts.environment.get(NAME, "")
    by_bus = facts.environment.get(ORDER) == "PCI_BUS_ID"
    names = {gpu.device.name for gpu in facts.driver.gpus}
    if by_bus or len(names) < 2 or not any(word.strip().isdigit() for word in given.split(",")):
        return []
    told = "unset, and the GPUs differ: CUDA's indices may not be nvidia-smi's"
    return [Finding(Group.GPUS, ORDER, Level.WARN, told, f"export {ORDER}=PCI_BUS_ID")]


def _modes(gpus: Sequence[Gpu]) -> Iterable[Finding]:
    yield _all_or(gpus, "MIG", lambda gpu: gpu.mig, "off", _mig)
    yield _all_or(
        gpus,
        "compute mode",
        lambda gpu: None if gpu.compute_mode is None else gpu.compute_mode != 0,
        "default",
        _compute_mode,
    )
    yield _all_or(
        gpus, "persistence", lambda gpu: None if gpu.persistence is None else not gpu.persistence, "on", _cold
    )


def _memory(gpus: Sequence[Gpu]) -> Iterable[Finding]:
    failed = [gpu for gpu in gpus if gpu.repair_failed]
    pending = [gpu for gpu in gpus if gpu.repair_pending]
    wrong = [gpu for gpu in gpus if gpu.ecc_errors]
    if failed:
        told = f"{tags(failed, gpus)} could not replace a bad memory row"
        yield Finding(Group.GPUS, "memory", Level.FAIL, told, "leave the GPU out and have it replaced")
    elif pending:
        told = f"{tags(pending, gpus)} will replace a bad memory row at the next reset"
        fix = f"sudo nvidia-smi -i {indices(pending)} --gpu-reset, when nothing runs there; or reboot"
        yield Finding(Group.GPUS, "memory", Level.WARN, told, fix)
    elif wrong:
        each = ", ".join(f"{gpu.ecc_errors} on {gpu.device.tag}" for gpu in wrong)
        fix = f"sudo nvidia-smi -i {indices(wrong)} --gpu-reset, when nothing runs there; replace it if they return"
        yield Finding(Group.GPUS, "memory", Level.WARN, f"uncorrected ECC errors since the driver started: {each}", fix)
    elif any(gpu.ecc_errors is None for gpu in gpus):
        yield Finding(Group.GPUS, "memory", Level.UNKNOWN, "errors are not counted: ECC is off, or NVML does not tell")
    else:
        yield Finding(Group.GPUS, "memory", Level.OK, "no uncorrected ECC error, no repair pending")


def _fabric(gpus: Sequence[Gpu]) -> Iterable[Finding]:
    waiting = [gpu for gpu in gpus if gpu.fabric_state in _FABRIC_WORDS]
    if waiting:
        words = _FABRIC_WORDS[waiting[0].fabric_state or 1]
        told = f"NVSwitch fabric {words} on {tags(waiting, gpus)}: CUDA cannot start (error 802)"
        fix = "sudo systemctl start nvidia-fabricmanager (its version must be the driver's)"
        yield Finding(Group.GPUS, "fabric", Level.FAIL, told, fix)
    elif any(gpu.fabric_state for gpu in gpus):
        yield Finding(Group.GPUS, "fabric", Level.OK, "NVSwitch fabric ready")


def _now(gpus: Sequence[Gpu]) -> Iterable[Finding]:
    held = [gpu for gpu in gpus if any(holds_back(reason) for reason in gpu.throttle)]
    hot = [gpu for gpu in gpus if (gpu.temperature or 0) > HOT_C]
    busy = [gpu for gpu in gpus if gpu.processes]
    if held:
        each = ", ".join(f"{gpu.device.tag}: {', '.join(gpu.throttle)}" for gpu in held)
        fix = "see nvidia-smi -q -d PERFORMANCE, and the cooling"
        yield Finding(Group.GPUS, "clocks", Level.WARN, f"held back on {each}", fix)
    if hot:
        each = ", ".join(f"{gpu.device.tag} {gpu.temperature} °C" for gpu in hot)
        fix = "see the fans and the air flow"
        yield Finding(Group.GPUS, "temperature", Level.WARN, f"over {HOT_C} °C: {each}", fix)
    if busy:
        each = ", ".join(
            f"{gpu.device.tag} ({gpu.processes}, {format_approximate_size(gpu.memory_used or 0)})" for gpu in busy
        )
        told = f"processes on {each}: what is measured beside them is theirs, too"
        yield Finding(Group.GPUS, "in use", Level.WARN, told, "nvidia-smi names them; wait, or leave these GPUs out")
    elif all(gpu.processes is not None for gpu in gpus):
        yield Finding(Group.GPUS, "in use", Level.OK, "no compute process on any of them")


def _all_or(
    gpus: Sequence[Gpu],
    name: str,
    bad: Callable[[Gpu], bool | None],
    good: str,
    told: Callable[[Collection[Gpu], Sequence[Gpu]], Finding],
) -> Finding:
    """Return `told` of the GPUs for which `bad` holds, else that all is good, or that NVML does not tell."""
    answers = [bad(gpu) for gpu in gpus]
    if any(answers):
        return told([gpu for gpu, answer in zip(gpus, answers, strict=True) if answer], gpus)
    if name == "MIG" and all(answer is None for answer in answers):
        return Finding(Group.GPUS, name, Level.OK, "not supported by these GPUs")
    if any(answer is None for answer in answers):
        return Finding(Group.GPUS, name, Level.UNKNOWN, "NVML does not tell")
    return Finding(Group.GPUS, name, Level.OK, good)


def _mig(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> Finding:
    told = f"on for {tags(bad, gpus)}: CUDA shows parts of a GPU, and NCCL has no peer access between them"
    return Finding(Group.GPUS, "MIG", Level.FAIL, told, f"sudo nvidia-smi -i {indices(bad)} -mig 0")


def _compute_mode(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> Finding:
    fix = f"sudo nvidia-smi -i {indices(bad)} -c DEFAULT"
    prohibited = [gpu for gpu in bad if gpu.compute_mode == _PROHIBITED]
    if prohibited:
        told = f"prohibited on {tags(prohibited, gpus)}: CUDA cannot start there"
        return Finding(Group.GPUS, "compute mode", Level.FAIL, told, fix)
    told = f"exclusive on {tags(bad, gpus)}: a second process is refused, and torch may open all GPUs in each rank"
    return Finding(Group.GPUS, "compute mode", Level.WARN, told, fix)


def _cold(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> Finding:
    told = f"off on {tags(bad, gpus)}: each first start waits for the driver, up to seconds a GPU"
    return Finding(Group.GPUS, "persistence", Level.WARN, told, f"sudo nvidia-smi -i {indices(bad)} -pm 1")
