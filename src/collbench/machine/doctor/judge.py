"""From facts about a machine to findings (ok, warn, fail or unknown) with their fixes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from collbench.machine import labels
from collbench.machine.doctor.facts import Driver, Facts, Folder, Gpu, Host, Software
from collbench.machine.doctor.nccl_variables import meaning
from collbench.machine.health import HOT_C, holds_back
from collbench.machine.network_affinity import NetworkAffinity
from collbench.machine.network_ports import down, slower
from collbench.machine.numa import format_cpus, parse_cpus
from collbench.machine.visible_devices import NAME, ORDER, read
from collbench.model.capabilities import capabilities
from collbench.model.run import NetworkPort, Path, PeerStatus
from collbench.model.units import abridged, amount, counted, fixed, format_approximate_size


class Level(StrEnum):
    """How a fact affects a run: no effect, a cost in speed or certainty, a failure, or not reported."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Group(StrEnum):
    """What a finding is about; the report's sections, in its order."""

    GPUS = "GPUs"
    LINKS = "links"
    LIBRARIES = "libraries"
    HOST = "host"
    VARIABLES = "variables"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was found, in a sentence that nothing reads, and what to do about it.

    `fix` is one command or sentence, "" if nothing is to be done. `devices` are the GPUs that it is about, by
    nvidia-smi's indices; () for all of them, and for none.
    """

    group: Group
    name: str
    level: Level
    text: str
    fix: str = ""
    devices: tuple[int, ...] = ()


# The exit status if any finding fails; warnings leave it at 0.
FAILED = 1


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings, in the order of the report."""
    gpus = visible_gpus(facts)
    if capabilities(facts.backend).nvml:
        sections = [(Group.GPUS, _driver(facts))]
        if facts.driver.gpus:
            sections += [(Group.GPUS, _visibility(facts)), (Group.GPUS, _health(gpus)), (Group.LINKS, _links(facts))]
        sections.append((Group.LIBRARIES, _libraries(facts)))
    else:
        sections = [(Group.LIBRARIES, _torch_for_cores(facts.software))]
    sections += [(Group.HOST, _host(facts)), (Group.VARIABLES, _variables(facts))]
    return tuple(Finding(group, *line) for group, lines in sections for line in lines)


def status(findings: Sequence[Finding]) -> int:
    """Return the exit status: 0 if nothing fails, else FAILED."""
    return FAILED if any(finding.level is Level.FAIL for finding in findings) else 0


def visible_gpus(facts: Facts) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves; all of them where it leaves none, for the list may be wrong."""
    gpus = facts.driver.gpus
    environment = facts.environment
    left = read([gpu.device for gpu in gpus], environment.get(NAME), environment.get(ORDER)).devices
    return tuple(gpu for gpu in gpus if gpu.device in left) or gpus


class _Line(NamedTuple):
    """A finding without its group: all lines of one function below are of the same group."""

    name: str
    level: Level
    text: str
    fix: str = ""
    devices: tuple[int, ...] = ()


_Lines = Iterator[_Line]


def _line(level: Level, name: str, text: str, fix: str = "", gpus: Collection[Gpu] = ()) -> _Line:
    return _Line(name, level, text, fix, tuple(gpu.device.index for gpu in gpus))


_ok = partial(_line, Level.OK)
_warn = partial(_line, Level.WARN)
_fail = partial(_line, Level.FAIL)
_unknown = partial(_line, Level.UNKNOWN)


def _tags(gpus: Collection[Gpu], among: Collection[Gpu] = ()) -> str:
    """Return the GPUs' names as "GPU0, GPU2", or "all 8 GPUs" where these are all of many."""
    if len(gpus) == len(among) > 2:
        return f"all {len(gpus)} GPUs"
    return ", ".join(gpu.device.tag for gpu in gpus)


def _nvidia_smi(gpus: Collection[Gpu], options: str) -> str:
    """Return the command that changes these GPUs."""
    return f"sudo nvidia-smi -i {','.join(str(gpu.device.index) for gpu in gpus)} {options}"


# The driver, which GPUs are visible, their modes and their state.

# Reads the shipped PTX, ISA 7.8 [CONTRIBUTING.md, "The PTX"].
OLDEST_DRIVER = 520
# nvmlComputeMode_t and nvmlGpuFabricState_t [nvml.h, r580]
_PROHIBITED = 2  # 0 is the default, 1 and 3 let one process in
_FABRIC_STATES = {1: "not started", 2: "in progress"}
_GPUS_FOR_CONTAINERS = {
    "docker": "start the container with its GPUs: docker run --gpus all …",
    "podman": "start the container with its GPUs: podman run --device nvidia.com/gpu=all …",
    "apptainer": "start the container with its GPUs: apptainer exec --nv …",
    "singularity": "start the container with its GPUs: singularity exec --nv …",
    "kubernetes": "request GPUs in the pod's spec: resources.limits nvidia.com/gpu",
}
_INSTALL = "install the NVIDIA driver"
_WITHOUT = "or use no GPU: collbench doctor --backend host"


def _driver(facts: Facts) -> _Lines:
    """Judge the driver, its version, and how many GPUs it shows."""
    driver = facts.driver
    if driver.error:
        instead = f"{_GPUS_FOR_CONTAINERS.get(facts.host.container, _INSTALL)}; {_WITHOUT}"
        yield _fail("driver", driver.error, instead if driver.missing else driver.advice)
        return
    yield _driver_version(driver)
    if not driver.nvidia_smi:
        text = "not on PATH: its labels cannot be compared with those of NVML; NVML reports everything else"
        yield _ok("nvidia-smi", text)
    yield _count(facts)


def _driver_version(driver: Driver) -> _Line:
    text = f"{driver.version}, CUDA {driver.cuda or 'unknown'}"
    branch = driver.version.partition(".")[0]
    if not branch.isdigit():
        return _unknown("driver", f"version '{driver.version}' cannot be read")
    if int(branch) < OLDEST_DRIVER:
        fix = f"install driver r{OLDEST_DRIVER} or newer"
        return _fail("driver", f"{text}: older than r{OLDEST_DRIVER}", fix)
    return _ok("driver", text)


def _count(facts: Facts) -> _Line:
    gpus = facts.driver.gpus
    text = counted(gpu.device.name for gpu in gpus)
    hidden = (facts.driver.on_the_bus or 0) - len(gpus)
    if not gpus:
        fix = _GPUS_FOR_CONTAINERS.get(facts.host.container, "check nvidia-smi -L and the permissions of /dev/nvidia*")
        return _fail("GPUs", "the driver shows no GPU to this process", fix)
    if hidden <= 0:
        return _ok("GPUs", text)
    if facts.host.container:
        return _ok("GPUs", f"{text}; {hidden} more on PCI, not given to this container")
    fix = "check dmesg | grep -i xid for a GPU that fell off the bus, and /dev/nvidia* for one without access"
    return _warn("GPUs", f"{text}; {hidden} more on PCI that the driver does not show", fix)


def _visibility(facts: Facts) -> _Lines:
    """Judge what CUDA_VISIBLE_DEVICES leaves; no line where it is not set and there are GPUs enough."""
    devices = [gpu.device for gpu in facts.driver.gpus]
    setting, order = facts.environment.get(NAME), facts.environment.get(ORDER)
    seen = read(devices, setting, order)
    unset = f"unset {NAME}, or write indices or UUIDs of nvidia-smi -L"
    left = ", ".join(device.tag for device in seen.devices) or "no GPU"
    why = f": {seen.problem}" if seen.problem else ""
    if seen.problem and not seen.certain:
        yield _warn(NAME, f"only CUDA knows which GPUs remain visible{why}", unset)
    elif not seen.devices:
        yield _fail(NAME, f"hides every GPU{why}", unset)
    elif seen.problem:
        yield _warn(NAME, f"leaves {left}{why}", unset)
    elif len(seen.devices) < 2 and setting is None:
        yield _warn("pairs", "one GPU: no pair to measure", "use two or more")
    elif len(seen.devices) < 2:
        yield _warn(NAME, f"leaves only {left}: no pair to measure", "use two or more")
    elif setting is not None:
        yield _ok(NAME, f"leaves {left}, {len(seen.devices)} of {len(devices)}")
    # CUDA puts the fastest GPU first unless asked.
    by_index = any(index.strip().isdigit() for index in (setting or "").split(","))
    if by_index and order != "PCI_BUS_ID" and len({device.name for device in devices}) > 1:
        text = "unset, and the GPUs differ: CUDA's indices may differ from those of nvidia-smi"
        yield _warn(ORDER, text, f"export {ORDER}=PCI_BUS_ID")


def _health(gpus: Sequence[Gpu]) -> _Lines:
    """Judge the modes and the state of the visible GPUs, one line for each kind of problem."""
    for mode in _MODES:
        yield _mode(mode, gpus)
    yield _gpu_memory(gpus)
    waiting = [gpu for gpu in gpus if gpu.fabric_state in _FABRIC_STATES]
    if waiting:
        state = _FABRIC_STATES[waiting[0].fabric_state or 1]
        text = f"NVSwitch fabric {state} on {_tags(waiting, gpus)}: CUDA cannot start (error 802)"
        fix = "sudo systemctl start nvidia-fabricmanager (same version as the driver)"
        yield _fail("fabric", text, fix, waiting)
    elif any(gpu.fabric_state for gpu in gpus):
        yield _ok("fabric", "NVSwitch fabric ready")
    held = [gpu for gpu in gpus if any(holds_back(reason) for reason in gpu.throttle)]
    if held:
        each = ", ".join(f"{gpu.device.tag}: {', '.join(gpu.throttle)}" for gpu in held)
        yield _warn("clocks", f"throttled: {each}", "check nvidia-smi -q -d PERFORMANCE and the cooling", held)
    hot = [gpu for gpu in gpus if (gpu.temperature or 0) > HOT_C]
    if hot:
        each = ", ".join(f"{gpu.device.tag} {gpu.temperature} °C" for gpu in hot)
        yield _warn("temperature", f"over {HOT_C} °C: {each}", "check the fans and the air flow", hot)
    busy = [gpu for gpu in gpus if gpu.processes]
    if busy:
        each = ", ".join(
            f"{gpu.device.tag} ({gpu.processes}, {format_approximate_size(gpu.memory_used or 0)})" for gpu in busy
        )
        text = f"processes on {each}: they disturb measurements"
        yield _warn("in use", text, "nvidia-smi lists them; wait, or use other GPUs", busy)
    elif all(gpu.processes is not None for gpu in gpus):
        yield _ok("in use", "no compute process on any of them")


@dataclass(frozen=True, slots=True)
class _Mode:
    """A mode of GPUs. `problem` judges those on which it `is_bad`; `good` is said of it where there is none."""

    name: str
    is_bad: Callable[[Gpu], bool | None]
    good: str
    problem: Callable[[Collection[Gpu], Sequence[Gpu]], _Line]
    everywhere: bool = True  # False: GPUs that do not report it do not have it


def _mode(mode: _Mode, gpus: Sequence[Gpu]) -> _Line:
    bad = [gpu for gpu in gpus if mode.is_bad(gpu)]
    unreported = [gpu for gpu in gpus if mode.is_bad(gpu) is None]
    if bad:
        return mode.problem(bad, gpus)
    if len(unreported) == len(gpus) and not mode.everywhere:
        return _ok(mode.name, "not supported by these GPUs")
    return _unknown(mode.name, "NVML does not report it") if unreported else _ok(mode.name, mode.good)


def _mig(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> _Line:
    text = f"on for {_tags(bad, gpus)}: CUDA shows parts of a GPU, and NCCL has no peer access between them"
    return _fail("MIG", text, _nvidia_smi(bad, "-mig 0"), bad)


def _compute_mode(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> _Line:
    fix = _nvidia_smi(bad, "-c DEFAULT")
    prohibited = [gpu for gpu in bad if gpu.compute_mode == _PROHIBITED]
    if prohibited:
        return _fail(
            "compute mode", f"prohibited on {_tags(prohibited, gpus)}: CUDA cannot start there", fix, prohibited
        )
    text = f"exclusive on {_tags(bad, gpus)}: a second process is refused, and each rank of torch may open all GPUs"
    return _warn("compute mode", text, fix, bad)


def _no_persistence(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> _Line:
    text = f"off on {_tags(bad, gpus)}: the first process waits some seconds per GPU for the driver"
    return _warn("persistence", text, _nvidia_smi(bad, "-pm 1"), bad)


_MODES = (
    _Mode("MIG", lambda gpu: gpu.mig, "off", _mig, everywhere=False),
    _Mode(
        "compute mode",
        lambda gpu: None if gpu.compute_mode is None else gpu.compute_mode != 0,
        "default",
        _compute_mode,
    ),
    _Mode("persistence", lambda gpu: None if gpu.persistence is None else not gpu.persistence, "on", _no_persistence),
)


def _gpu_memory(gpus: Sequence[Gpu]) -> _Line:
    failed = [gpu for gpu in gpus if gpu.repair_failed]
    if failed:
        text = f"{_tags(failed, gpus)} could not remap a bad memory row"
        return _fail("memory", text, "do not use this GPU; have it replaced", failed)
    pending = [gpu for gpu in gpus if gpu.repair_pending]
    if pending:
        text = f"{_tags(pending, gpus)} will remap a bad memory row at the next reset"
        return _warn("memory", text, _nvidia_smi(pending, "--gpu-reset when nothing runs there, or reboot"), pending)
    wrong = [gpu for gpu in gpus if gpu.ecc_errors]
    if wrong:
        each = ", ".join(f"{gpu.ecc_errors} on {gpu.device.tag}" for gpu in wrong)
        text = f"uncorrected ECC errors since the driver started: {each}"
        options = "--gpu-reset when nothing runs there; replace the GPU if they return"
        return _warn("memory", text, _nvidia_smi(wrong, options), wrong)
    if any(gpu.ecc_errors is None for gpu in gpus):
        return _unknown("memory", "errors are not counted: ECC is off, or NVML does not report them")
    return _ok("memory", "no uncorrected ECC errors, no row remapping pending")


# The paths between GPUs, as NVML reports them.


def _links(facts: Facts) -> _Lines:
    """Judge peer access and NVLinks between the visible GPUs."""
    gpus, visible = facts.driver.gpus, visible_gpus(facts)
    paths = [path for path in facts.driver.paths if all(gpus[position] in visible for position in path.devices)]
    if not paths:
        return
    text = counted(sorted((path.label for path in paths), key=labels.rank_key))
    yield _ok("labels", f"{amount(len(paths), 'pair')}: {text}")
    yield _peers(paths, gpus)
    most: dict[str, int] = {}  # NVLinks that are up, by product; cards without a bridge have none, and all alike
    for gpu in visible:
        most[gpu.device.name] = max(most.get(gpu.device.name, 0), gpu.links_up)
    fewer = [gpu for gpu in visible if gpu.links_up < most[gpu.device.name]]
    if fewer:
        each = ", ".join(f"{gpu.device.tag} {gpu.links_up} of {most[gpu.device.name]}" for gpu in fewer)
        fix = "nvidia-smi nvlink --status; reset the GPUs, or have the machine inspected"
        yield _warn("NVLinks", f"some are down: {each}", fix, fewer)
    elif any(most.values()):
        yield _ok("NVLinks", ", ".join(f"{count} up on each {name}" for name, count in most.items() if count))


def _peers(paths: Sequence[Path], gpus: Sequence[Gpu]) -> _Line:
    refused = [path for path in paths if path.peers_denied]
    if refused and (first := refused[0].peer_access):
        pairs = abridged(["-".join(gpus[end].device.tag for end in path.devices) for path in refused], 4)
        same = len(first.statuses) == 1
        explanation = labels.PEER_STATES[first.statuses[0]] if same else "the directions differ"
        text = f"refused ({first}: {explanation}) for {pairs}: data goes through host memory"
        fix = "nvidia-smi topo -p2p r; needs NVLink, or GPUs, driver and chipset that allow it"
        return _warn("peer access", text, fix, [gpus[end] for end in sorted({e for p in refused for e in p.devices})])
    answers = [path.peer_access for path in paths]
    if any(answer is None or PeerStatus.UNKNOWN in answer.statuses for answer in answers):
        return _unknown("peer access", "NVML does not report it; collbench pairs measures it")
    return _ok("peer access", "OK for every pair")


# The libraries: NCCL, the driver's CUDA library, torch.

_UTILITY_ONLY = (
    "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility when it is started; else install the driver's libraries"
)
_TORCH = "pip install torch for your CUDA: pytorch.org has the command"


def _libraries(facts: Facts) -> _Lines:
    """Judge the libraries that a run on GPUs opens, and whether they fit each other and the driver."""
    software = facts.software
    if not software.libcuda_error:
        compatible = facts.driver.cuda and facts.driver.cuda != software.libcuda
        more = f", by a compatibility library: the driver's own is {facts.driver.cuda}" if compatible else ""
        yield _ok("libcuda", f"CUDA {software.libcuda}{more}")
    elif facts.driver.gpus:  # without a driver its line has said so
        yield _fail("libcuda", f"libcuda.so.1 cannot be opened: {software.libcuda_error}", _UTILITY_ONLY)
    if software.nccl_error:
        fix = software.nccl_advice or "install torch with CUDA or libnccl2, or name a file with --nccl PATH"
        yield _fail("NCCL", software.nccl_error, fix)
    else:
        yield _ok("NCCL", f"{software.nccl}, {software.nccl_path}")
    yield from _torchs_nccl(software)
    preloaded = facts.environment.get("LD_PRELOAD", "")
    if "nccl" in preloaded.lower():
        text = f"LD_PRELOAD={preloaded}: every process loads this NCCL first"
        yield _warn("LD_PRELOAD", text, "unset LD_PRELOAD unless it is intended")
    yield _torch(facts)


def _torchs_nccl(software: Software) -> _Lines:
    """Judge whether the NCCL that is timed is the one that torch will load: that of the wheel next to it, if any."""
    name = "torch's NCCL"
    if not software.wheel:
        if software.torch_cuda:
            text = "no nvidia-nccl wheel next to torch: torch has NCCL built in, or loads the system's"
            fix = "compare the version with python -c 'import torch; print(torch.cuda.nccl.version())'"
            yield _unknown(name, text, fix)
        return
    version = software.wheel_version or "of unknown version"
    if software.nccl_error or software.wheel == software.nccl_path:
        yield _ok(name, f"{version}: what collbench times")
    elif software.wheel_version == software.nccl:
        yield _ok(name, f"{version} at {software.wheel}: the same version")
    else:
        text = f"{version} at {software.wheel}: training loads this one, but collbench times {software.nccl}"
        yield _warn(name, text, "unset COLLBENCH_NCCL and leave out --nccl to time torch's")


def _torch(facts: Facts) -> _Line:
    software = facts.software
    if not software.torch:
        return _warn("torch", "not installed: collbench train needs it", _TORCH)
    if not software.torch_cuda:
        text = f"{software.torch} has no CUDA: collbench can measure, but training would run on CPU cores"
        return _warn("torch", text, _TORCH)
    text = f"{software.torch}, built for CUDA {software.torch_cuda}"
    ours, theirs = _major(software.libcuda or facts.driver.cuda), _major(software.torch_cuda)
    if ours is not None and theirs is not None and ours < theirs:
        # Within one major version any driver will do [CUDA compatibility guide, "minor version compatibility"].
        fix = f"install a driver for CUDA {theirs}, or torch built for CUDA {ours}"
        return _fail("torch", f"{text}; the driver has {ours}", fix)
    return _ok("torch", text)


def _major(version: str) -> int | None:
    number = version.partition(".")[0]
    return int(number) if number.isdigit() else None


def _torch_for_cores(software: Software) -> _Lines:
    """Judge what the host backend needs: torch, for gloo."""
    if software.torch:
        yield _ok("torch", f"{software.torch}: includes gloo for collectives between cores")
    else:
        yield _fail("torch", "not installed: it includes gloo's collectives", _TORCH)


# The operating system's limits on processes that share memory, pin it and spin on cores; network cards.

_MIB = 2**20
# What NVIDIA starts containers with [NCCL user guide, troubleshooting, "Shared memory"]; docker's default is 64 MiB.
_ENOUGH_SHM = 1024 * _MIB
# NCCL's segments are 4 to 10 MiB each, and a rank has two at least [the same page: 4194660 bytes; NCCL_BUFFSIZE].
_LEAST_SHM_A_GPU = 8 * _MIB
# From here on NCCL shares host memory by CUDA's calls, and /dev/shm holds little [NCCL 2.30.7, src/misc/cudawrap.cc].
_CUMEM_CUDA = (12, 6)
# The usual default. A rank opens sockets to its neighbours, files of shared memory, libraries, data.
_FEW_FILES = 1024
# A run of all sizes on 8 GPUs is a file of 10 MB: room for several, and for the journal.
_LITTLE_ROOM = 100 * _MIB
# Two messages of 64 MiB a core and what torch takes in each of eight processes.
_LITTLE_MEMORY = 4096 * _MIB
_TRANSLATED = ("DMA", "DMA-FQ")  # an IOMMU group's type in the kernel's words; "identity" passes addresses through


def _host(facts: Facts) -> _Lines:
    """Judge the host around the process."""
    host, gpus = facts.host, visible_gpus(facts)
    gpu_virtualization = "" if facts.driver.virtualization == "none" else facts.driver.virtualization
    maker = f" ({host.hypervisor})" if host.hypervisor else ""
    parts = (
        host.system,
        f"{host.container} container" if host.container else "",
        f"virtual machine{maker}" if host.hypervisor or gpu_virtualization else "",
        f"GPU {gpu_virtualization}" if gpu_virtualization else "",
    )
    yield _ok("system", ", ".join(filter(None, parts)))
    yield _shared_memory(facts, len(gpus))
    yield _locked_memory(host)
    yield _open_files(host)
    yield from _cpus(facts, len(gpus))
    if capabilities(facts.backend).cores:
        yield _memory(host.memory_available)
    if gpus:
        yield _numa(host, gpus)
        yield from _peer_traffic(facts, gpus)
        yield from _gpu_direct(host)
        yield from _ports(host.network_ports)
        yield from _affinity(host.network_affinity)
    yield _saved_runs(facts.runs)


def _shared_memory(facts: Facts, gpus: int) -> _Line:
    name, shm = "shared memory", facts.host.shm
    if shm is None:
        text = "no /dev/shm that can be read: processes on one host share memory through it"
        return _fail(name, text, "mount a tmpfs on /dev/shm")
    text = f"{format_approximate_size(shm.free)} free of {format_approximate_size(shm.total)} in /dev/shm"
    fix = "docker run --shm-size=1g (or --ipc=host); elsewhere: sudo mount -o remount,size=8G /dev/shm"
    if shm.free < _LEAST_SHM_A_GPU * max(gpus, 1):
        return _fail(name, f"{text}: NCCL and torch's data loaders cannot start", fix)
    if shm.free < _ENOUGH_SHM:
        cuda = tuple(int(part) for part in facts.driver.cuda.split(".") if part.isdigit())
        through_cuda = cuda >= _CUMEM_CUDA and facts.environment.get("NCCL_CUMEM_HOST_ENABLE") != "0"
        little = "torch's data loaders may need more; with this driver NCCL does not"
        return _warn(name, f"{text}: {little if through_cuda else 'NCCL may need 1 GiB'}", fix)
    return _ok(name, text)


def _locked_memory(host: Host) -> _Line:
    name = "locked memory"
    if host.memlock is None:
        return _unknown(name, "the limit cannot be read")
    if host.memlock < 0:
        return _ok(name, "unlimited")
    limit = format_approximate_size(host.memlock)
    if not host.network_cards:
        return _ok(name, f"{limit}; it matters only for InfiniBand and RoCE, and there is no such card")
    text = f"{limit}: {', '.join(host.network_cards)} cannot register NCCL's buffers"
    fix = "docker run --ulimit memlock=-1; elsewhere: memlock unlimited in /etc/security/limits.conf"
    return _warn(name, text, fix)


def _open_files(host: Host) -> _Line:
    name = "open files"
    if host.open_files is None:
        return _unknown(name, "the limit cannot be read")
    if 0 <= host.open_files < _FEW_FILES:
        text = f"{host.open_files} a process: sockets, shared memory and data files may need more"
        return _warn(name, text, f"ulimit -n {_FEW_FILES * 64}")
    return _ok(name, "unlimited" if host.open_files < 0 else f"{host.open_files} a process")


def _cpus(facts: Facts, gpus: int) -> _Lines:
    """Judge how many CPUs this process may use, and how much of their time."""
    host, on_cores = facts.host, capabilities(facts.backend).cores
    text = f"{len(host.cpus)} available: {format_cpus(host.cpus)}"
    fix = "widen the cgroup's cpuset, taskset's mask, or the CPUs that the job asks for (srun --cpus-per-task)"
    needed = 2 if on_cores else gpus
    if len(host.cpus) >= needed:
        yield _ok("CPUs", text)
    elif on_cores:
        yield _fail("CPUs", f"{text}; the host backend needs two", fix)
    else:
        yield _warn("CPUs", f"{text}, for {needed} GPUs: ranks wait for each other's cores", fix)
    if host.cpu_quota is not None:
        text = f"a cgroup limits CPU time to {fixed(host.cpu_quota)} CPUs: a rank that polls is paused at times"
        if host.cpu_quota < max(needed, 1):
            yield _warn("CPU quota", text, "docker run without --cpus; Kubernetes: raise or drop the CPU limit")
        else:
            yield _ok("CPU quota", text)


def _memory(available_bytes: int) -> _Line:
    if not available_bytes:
        return _unknown("memory", "available memory is unknown")
    text = f"{format_approximate_size(available_bytes)} available"
    if available_bytes < _LITTLE_MEMORY:
        return _warn("memory", f"{text}: large messages may not fit", "--sizes 8:16M")
    return _ok("memory", text)


def _numa(host: Host, gpus: Sequence[Gpu]) -> _Line:
    """Judge whether this process may use the CPUs and the memory near its GPUs."""
    with_affinity = [gpu for gpu in gpus if gpu.device.cpu_affinity]
    far = [gpu for gpu in with_affinity if not set(parse_cpus(gpu.device.cpu_affinity)) & set(host.cpus)]
    if far:
        each = ", ".join(f"{gpu.device.tag} ({gpu.device.cpu_affinity})" for gpu in far)
        fix = "widen the cgroup's cpuset or taskset's mask to these CPUs; Slurm: --gpu-bind=closest"
        return _warn("NUMA", f"no available CPU is near {each}", fix, far)
    usable = (None, *host.memory_nodes)
    without = [gpu for gpu in gpus if host.memory_nodes and gpu.device.numa_node not in usable]
    if without:
        text = f"no memory is available on the NUMA node of {_tags(without, gpus)}"
        return _warn("NUMA", text, "widen the cgroup's cpuset.mems", without)
    if with_affinity:
        return _ok("NUMA", "CPUs near every GPU are available")
    return _unknown("NUMA", "neither driver nor kernel says which CPUs are near the GPUs")


def _peer_traffic(facts: Facts, gpus: Sequence[Gpu]) -> _Lines:
    """Judge what may turn peer copies over PCIe: translation by the IOMMU, and bridges that redirect (ACS)."""
    slots = {
        gpu.device.index: facts.host.slots[gpu.device.index] for gpu in gpus if gpu.device.index in facts.host.slots
    }
    matters = facts.host.network_cards or any(labels.is_pcie(path.label) for path in facts.driver.paths)
    level = Level.WARN if matters else Level.OK
    whom = "" if matters else "; no pair uses PCIe, and there is no network card that could"
    translated = [
        gpu for gpu in gpus if gpu.device.index in slots and slots[gpu.device.index].iommu_type in _TRANSLATED
    ]
    if translated:
        text = f"translates addresses of {_tags(translated, gpus)}: peer copies over PCIe may go through the CPU{whom}"
        fix = "boot with iommu=pt, or turn VT-d or AMD-Vi off in the firmware"
        yield _line(level, "IOMMU", text, fix if matters else "", translated)
    else:
        texts = {None: "not seen", False: "off", True: "on, and passes the GPUs' addresses through"}
        yield _ok("IOMMU", texts[facts.host.iommu])
    redirecting = sorted({bridge for slot in slots.values() for bridge in slot.redirecting})
    if redirecting:
        text = f"bridges send peer traffic up to the CPU: {', '.join(redirecting)}{whom}"
        fix = f"sudo setpci -s {redirecting[0]} ECAP_ACS+0x6.w=0000, for each, on bare metal; or off in the firmware"
        yield _line(level, "ACS", text, fix if matters else "")
    elif any(slot.unreadable for slot in slots.values()):
        yield _unknown("ACS", "only root may read it", "sudo $(which collbench) doctor")
    else:
        yield _ok("ACS", "no bridge above the GPUs redirects peer traffic")


def _gpu_direct(host: Host) -> _Lines:
    """Judge GPU direct transfers of network cards; no line without a card."""
    cards = ", ".join(host.network_cards)
    if cards and (host.peermem or host.open_modules):
        yield _ok(
            "GPU direct", f"{cards} by {'nvidia_peermem' if host.peermem else 'dma-buf of the open kernel modules'}"
        )
    elif cards:
        text = f"{cards} cannot reach GPU memory: neither nvidia_peermem nor the driver's open modules are loaded"
        yield _warn("GPU direct", text, "sudo modprobe nvidia-peermem")


def _ports(ports: tuple[NetworkPort, ...]) -> _Lines:
    """Judge the ports' state and rate; no line without a port."""
    faults = [
        f"{port.name} is {port.state}{f' ({port.physical_state})' if port.physical_state else ''}"
        for port in down(ports)
    ]
    faults += [
        f"{port.name} has {fixed(port.rate_gbits or 0.0)} Gbit/s, other ports of its kind {fixed(best)}"
        for port, best in slower(ports)
    ]
    unknown = [port.name for port in ports if not port.state]
    if faults:
        fix = "check ibstat, cable, switch port, and for InfiniBand the subnet manager"
        yield _warn("network ports", "; ".join(faults), fix)
    elif unknown:
        yield _unknown("network ports", f"the state of {', '.join(unknown)} cannot be read")
    elif ports:
        yield _ok("network ports", f"{len(ports)} active, none slower than another of its kind")


def _affinity(network_affinity: NetworkAffinity) -> _Lines:
    """Judge which cards are near the GPUs, and whether NCCL took those; no line if no nearness is known."""
    name = "network affinity"
    nearest = {gpu: network_affinity.nearest(gpu) for gpu in sorted(network_affinity.near)}
    nearest = {gpu: (cards, how) for gpu, (cards, how) in nearest.items() if cards}
    farther = [
        f"NCCL sends GPU{gpu}'s traffic over {card} ({how}), but {', '.join(better)} is nearer ({best})"
        for gpu, card, how, better, best in network_affinity.farther()
    ]
    disputed = [
        f"the PCI tree has {card} {how} from GPU{gpu}, nvidia-smi {other}"
        for gpu, card, how, other in network_affinity.disputed()
    ]
    far = [f"GPU{gpu}" for gpu, (_, how) in nearest.items() if how == "SYS"]
    if farther:
        fix = "check NCCL_IB_HCA, NCCL_CROSS_NIC and NCCL_TOPO_FILE: the cards that NCCL may use, and the topology"
        yield _warn(name, "; ".join(farther), fix)
    elif disputed:
        yield _warn(name, "; ".join(disputed), "see 'nvidia-smi topo -m' and 'lspci -t'")
    elif 0 < len(far) < len(nearest):
        text = f"{', '.join(far)} reach cards only across sockets (SYS), other GPUs have a nearer card"
        yield _warn(name, text, "see 'nvidia-smi topo -m' and the slots of the cards")
    elif nearest:
        routes = ", ".join(f"GPU{gpu} {'/'.join(cards)} {how}" for gpu, (cards, how) in nearest.items())
        yield _ok(name, f"nearest cards: {routes}{'; NCCL uses these' if network_affinity.chosen else ''}")


def _saved_runs(folder: Folder) -> _Line:
    name, fix = "saved runs", "name a file with --output, or another folder with XDG_STATE_HOME"
    if folder.error:
        return _warn(name, folder.error, fix)
    if not folder.writable:
        return _warn(name, f"{folder.path} cannot be written", fix)
    if folder.space is None:
        return _unknown(name, f"{folder.path}: its free space is unknown")
    text = f"{format_approximate_size(folder.space.free)} free for {folder.path}"
    return _warn(name, text, fix) if folder.space.free < _LITTLE_ROOM else _ok(name, text)


# What the variables that are set do here: NCCL's, in the environment and in nccl.conf, and CUDA's.

_LONGEST = 60  # characters of a value; longer values are lists or paths, which are cut


def _variables(facts: Facts) -> _Lines:
    """Judge each NCCL_* variable, from environment or file, in the order of names; collbench itself sets none."""
    own = [(name, value, "") for name, value in sorted(facts.environment.items()) if name.startswith("NCCL_")]
    configured = [(name, value, file) for file, name, value in sorted(facts.configured, key=lambda row: row[1])]
    for name, value, file in (*own, *configured):
        yield _nccl_variable(name, value, file)
    if not own and not configured and capabilities(facts.backend).nccl:
        yield _ok("NCCL_*", "none is set: NCCL decides by itself")
    if facts.environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        text = "1: every launch waits for its kernel, so nothing overlaps"
        yield _warn("CUDA_LAUNCH_BLOCKING", text, "unset CUDA_LAUNCH_BLOCKING")


def _nccl_variable(name: str, value: str, file: str) -> _Line:
    """Judge a variable; `file` sets it, "" for the environment."""
    shown = (value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…") or "(empty)"
    shown += f" (set in {file})" if file else ""
    effect = meaning(name, value)
    if effect.does and effect.cost:
        fix = "remove it from that file unless it is intended" if file else f"unset {name} unless it is intended"
        return _warn(name, f"{shown}: {effect.does}; {effect.cost}", fix)
    if effect.does:
        return _ok(name, f"{shown}: {effect.does}")
    text = f"{shown}: no NCCL from 2.18 to 2.30 reads this name"
    return _warn(name, text, f"did you mean {effect.near}?") if effect.near else _unknown(name, f"{text}; a plugin may")
