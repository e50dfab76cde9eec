"""From facts about a machine to findings (ok, warn, fail or unknown) with their fixes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from collbench.machine import kernel, labels
from collbench.machine.device_names import NAME, ORDER, read
from collbench.machine.health import HOT_C, holds_back
from collbench.machine.kernel import format_cpus, parse_cpus
from collbench.machine.variables import OF_CUDA, OF_TORCH, falsified, meant, reader, switched_on
from collbench.model.run import NetworkPort, Path, PeerStatus, capabilities
from collbench.model.units import abridged, amount, counted, fixed, format_approximate_size, verb
from collbench.preflight.findings import (
    Driver,
    Finding,
    GpuState,
    Host,
    Level,
    Line,
    Lines,
    MachineFacts,
    Software,
    Topic,
    fail,
    line,
    nvidia_smi,
    ok,
    tags,
    unknown,
    warn,
)


def judge(facts: MachineFacts) -> tuple[Finding, ...]:
    """Return all findings, in the order of the report."""
    gpus = visible_gpus(facts)
    if capabilities(facts.backend).nvml:
        sections = [(Topic.GPUS, _driver(facts))]
        if facts.driver.gpus:
            sections += [(Topic.GPUS, _visibility(facts)), (Topic.GPUS, _health(gpus)), (Topic.LINKS, _links(facts))]
        sections.append((Topic.LIBRARIES, _libraries(facts)))
    else:
        sections = [(Topic.LIBRARIES, _torch_for_cores(facts.software))]
    sections += [(Topic.HOST, judge_host(facts, gpus)), (Topic.VARIABLES, _variables(facts))]
    return tuple(of(group) for group, lines in sections for of in lines)


def visible_gpus(facts: MachineFacts) -> tuple[GpuState, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves; all of them where it leaves none: the list may be wrong."""
    gpus = facts.driver.gpus
    environment = facts.environment
    left = read([gpu.device for gpu in gpus], environment.get(NAME), environment.get(ORDER)).devices
    return tuple(gpu for gpu in gpus if gpu.device in left) or gpus


# The driver, which GPUs are visible, their modes and their state.

# Reads the shipped PTX, ISA 7.8 [CONTRIBUTING.md, "The PTX"].
OLDEST_DRIVER = 520
# nvmlComputeMode_t and nvmlGpuFabricState_t [nvml.h, r580]
_PROHIBITED = 2  # 0 is the default, 1 and 3 let one process in
_FABRIC_STATES = {1: "not started", 2: "in progress"}
_INSTALL = "install the NVIDIA driver"
_WITHOUT = "or use no GPU: collbench doctor --backend host"


def _driver(facts: MachineFacts) -> Lines:
    """Judge the driver, its version, and how many GPUs it shows."""
    driver = facts.driver
    if driver.error:
        instead = f"{kernel.container_fix(facts.host.container, _INSTALL)}; {_WITHOUT}"
        yield fail("driver", driver.error, instead if driver.missing else driver.advice)
        return
    yield _driver_version(driver)
    if not driver.nvidia_smi:
        text = "not on PATH: its labels cannot be compared with those of NVML; NVML reports everything else"
        yield ok("nvidia-smi", text)
    yield _count(facts)


def _driver_version(driver: Driver) -> Line:
    text = f"{driver.version}, CUDA {driver.cuda or 'unknown'}"
    branch = driver.version.partition(".")[0]
    if not branch.isdigit():
        return unknown("driver", f"version '{driver.version}' cannot be read")
    if int(branch) < OLDEST_DRIVER:
        fix = f"install driver r{OLDEST_DRIVER} or newer"
        return fail("driver", f"{text}: older than r{OLDEST_DRIVER}", fix)
    return ok("driver", text)


def _count(facts: MachineFacts) -> Line:
    gpus = facts.driver.gpus
    text = counted(gpu.device.name for gpu in gpus)
    hidden = (facts.driver.on_the_bus or 0) - len(gpus)
    if not gpus:
        fix = kernel.container_fix(facts.host.container, "check nvidia-smi -L and the permissions of /dev/nvidia*")
        return fail("GPUs", "the driver shows no GPU to this process", fix)
    unseen = kernel.unseen_in_step(len(gpus), facts.environment)
    if unseen and not any(gpu.mig for gpu in gpus):  # Slurm may count MIG devices
        text += f"; Slurm's step has {unseen} more here, and NCCL has no P2P with GPUs that a task does not see"
        return warn("GPUs", text, f"{kernel.UNBOUND}; without bound tasks, check dmesg | grep -i xid")
    if hidden <= 0:
        return ok("GPUs", text)
    if facts.host.container or unseen == 0:
        owner = "container" if facts.host.container else "step of Slurm"
        return ok("GPUs", f"{text}; {hidden} more on PCI, not given to this {owner}")
    fix = "check dmesg | grep -i xid for a GPU that fell off the bus, and /dev/nvidia* for one without access"
    return warn("GPUs", f"{text}; {hidden} more on PCI that the driver does not show", fix)


def _visibility(facts: MachineFacts) -> Lines:
    """Judge what CUDA_VISIBLE_DEVICES leaves; no line where it is not set and there are GPUs enough."""
    devices = [gpu.device for gpu in facts.driver.gpus]
    setting, order = facts.environment.get(NAME), facts.environment.get(ORDER)
    seen = read(devices, setting, order)
    unset = f"unset {NAME}, or write indices or UUIDs of nvidia-smi -L"
    left = ", ".join(device.tag for device in seen.devices) or "no GPU"
    why = f": {seen.problem}" if seen.problem else ""
    if seen.problem and not seen.certain:
        yield warn(NAME, f"only CUDA knows which GPUs remain visible{why}", unset)
    elif not seen.devices:
        yield fail(NAME, f"hides every GPU{why}", unset)
    elif seen.problem:
        yield warn(NAME, f"leaves {left}{why}", unset)
    elif len(seen.devices) < 2 and setting is None:
        yield warn("pairs", "one GPU: no pair to measure", "use two or more; copies, latency and check measure one")
    elif len(seen.devices) < 2:
        yield warn(NAME, f"leaves only {left}: no pair to measure", "use two or more")
    elif setting is not None:
        yield ok(NAME, f"leaves {left}, {len(seen.devices)} of {len(devices)}")
    # CUDA puts the fastest GPU first unless asked.
    by_index = any(index.strip().isdigit() for index in (setting or "").split(","))
    if by_index and order != "PCI_BUS_ID" and len({device.name for device in devices}) > 1:
        text = "unset, and the GPUs differ: CUDA's indices may differ from those of nvidia-smi"
        yield warn(ORDER, text, f"export {ORDER}=PCI_BUS_ID")


def _health(gpus: Sequence[GpuState]) -> Lines:
    """Judge the modes and the state of the visible GPUs, one line for each kind of problem."""
    for mode in _MODES:
        yield _mode(mode, gpus)
    yield _gpu_memory(gpus)
    waiting = [gpu for gpu in gpus if gpu.fabric_state in _FABRIC_STATES]
    if waiting:
        state = _FABRIC_STATES[waiting[0].fabric_state or 1]
        text = f"NVSwitch fabric {state} on {tags(waiting, gpus)}: CUDA cannot start (error 802)"
        fix = "sudo systemctl start nvidia-fabricmanager (same version as the driver)"
        yield fail("fabric", text, fix, waiting)
    elif any(gpu.fabric_state for gpu in gpus):
        yield ok("fabric", "NVSwitch fabric ready")
    held = [gpu for gpu in gpus if any(holds_back(reason) for reason in gpu.health.throttle)]
    if held:
        each = ", ".join(f"{gpu.device.tag}: {', '.join(gpu.health.throttle)}" for gpu in held)
        yield warn("clocks", f"throttled: {each}", "check nvidia-smi -q -d PERFORMANCE and the cooling", held)
    hot = [gpu for gpu in gpus if (gpu.health.temperature or 0) > HOT_C]
    if hot:
        each = ", ".join(f"{gpu.device.tag} {gpu.health.temperature} °C" for gpu in hot)
        yield warn("temperature", f"over {HOT_C} °C: {each}", "check the fans and the air flow", hot)
    busy = [gpu for gpu in gpus if gpu.health.processes]
    if busy:
        each = ", ".join(
            f"{gpu.device.tag} ({gpu.health.processes}, {format_approximate_size(gpu.health.memory_used or 0)})"
            for gpu in busy
        )
        text = f"processes on {each}: they disturb measurements"
        yield warn("in use", text, "nvidia-smi lists them; wait, or use other GPUs", busy)
    elif all(gpu.health.processes is not None for gpu in gpus):
        yield ok("in use", "no compute process on any of them")


@dataclass(frozen=True, slots=True)
class _Mode:
    """A mode of GPUs. `problem` judges those on which it `is_bad`; `good` is said of it where there is none."""

    name: str
    is_bad: Callable[[GpuState], bool | None]
    good: str
    problem: Callable[[Collection[GpuState], Sequence[GpuState]], Line]
    everywhere: bool = True  # False: GPUs that do not report it do not have it


def _mode(mode: _Mode, gpus: Sequence[GpuState]) -> Line:
    bad = [gpu for gpu in gpus if mode.is_bad(gpu)]
    unreported = [gpu for gpu in gpus if mode.is_bad(gpu) is None]
    if bad:
        return mode.problem(bad, gpus)
    if len(unreported) == len(gpus) and not mode.everywhere:
        return ok(mode.name, "not supported by these GPUs")
    return unknown(mode.name, "NVML does not report it") if unreported else ok(mode.name, mode.good)


def _mig(bad: Collection[GpuState], gpus: Sequence[GpuState]) -> Line:
    text = f"on for {tags(bad, gpus)}: CUDA shows parts of a GPU, and NCCL has no peer access between them"
    return fail("MIG", text, nvidia_smi(bad, "-mig 0"), bad)


def _compute_mode(bad: Collection[GpuState], gpus: Sequence[GpuState]) -> Line:
    fix = nvidia_smi(bad, "-c DEFAULT")
    prohibited = [gpu for gpu in bad if gpu.compute_mode == _PROHIBITED]
    if prohibited:
        return fail("compute mode", f"prohibited on {tags(prohibited, gpus)}: CUDA cannot start there", fix, prohibited)
    text = f"exclusive on {tags(bad, gpus)}: a second process is refused, and each rank of torch may open all GPUs"
    return warn("compute mode", text, fix, bad)


def _no_persistence(bad: Collection[GpuState], gpus: Sequence[GpuState]) -> Line:
    text = f"off on {tags(bad, gpus)}: the first process waits some seconds per GPU for the driver"
    return warn("persistence", text, nvidia_smi(bad, "-pm 1"), bad)


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


def _gpu_memory(gpus: Sequence[GpuState]) -> Line:
    failed = [gpu for gpu in gpus if gpu.repair_failed]
    if failed:
        text = f"{tags(failed, gpus)} could not remap a bad memory row"
        return fail("memory", text, "do not use this GPU; have it replaced", failed)
    pending = [gpu for gpu in gpus if gpu.repair_pending]
    if pending:
        text = f"{tags(pending, gpus)} will remap a bad memory row at the next reset"
        return warn("memory", text, nvidia_smi(pending, "--gpu-reset when nothing runs there, or reboot"), pending)
    wrong = [gpu for gpu in gpus if gpu.health.ecc_errors]
    if wrong:
        each = ", ".join(f"{gpu.health.ecc_errors} on {gpu.device.tag}" for gpu in wrong)
        text = f"uncorrected ECC errors since the driver started: {each}"
        options = "--gpu-reset when nothing runs there; replace the GPU if they return"
        return warn("memory", text, nvidia_smi(wrong, options), wrong)
    if any(gpu.health.ecc_errors is None for gpu in gpus):
        return unknown("memory", "errors are not counted: ECC is off, or NVML does not report them")
    return ok("memory", "no uncorrected ECC errors, no row remapping pending")


# The paths between GPUs, as NVML reports them.


def _links(facts: MachineFacts) -> Lines:
    """Judge peer access and NVLinks between the visible GPUs."""
    gpus, visible = facts.driver.gpus, visible_gpus(facts)
    paths = [path for path in facts.driver.paths if all(gpus[position] in visible for position in path.devices)]
    if not paths:
        return
    text = counted(sorted((path.label for path in paths), key=labels.rank_key))
    yield ok("labels", f"{amount(len(paths), 'pair')}: {text}")
    yield _peers(paths, gpus)
    most: dict[str, int] = {}  # NVLinks that are up, by product; all cards without a bridge have none
    for gpu in visible:
        most[gpu.device.name] = max(most.get(gpu.device.name, 0), gpu.links_up)
    fewer = [gpu for gpu in visible if gpu.links_up < most[gpu.device.name]]
    if fewer:
        each = ", ".join(f"{gpu.device.tag} {gpu.links_up} of {most[gpu.device.name]}" for gpu in fewer)
        fix = "nvidia-smi nvlink --status; reset the GPUs, or have the machine inspected"
        yield warn("NVLinks", f"some are down: {each}", fix, fewer)
    elif any(most.values()):
        yield ok("NVLinks", ", ".join(f"{count} up on each {name}" for name, count in most.items() if count))


def _peers(paths: Sequence[Path], gpus: Sequence[GpuState]) -> Line:
    refused = [path for path in paths if path.peers_denied]
    if refused and (first := refused[0].peer_access):
        pairs = abridged(["-".join(gpus[end].device.tag for end in path.devices) for path in refused], 4)
        same = len(first.statuses) == 1
        explanation = labels.PEER_STATES[first.statuses[0]] if same else "the directions differ"
        text = f"refused ({first}: {explanation}) for {pairs}: data goes through host memory"
        fix = "nvidia-smi topo -p2p r; needs NVLink, or GPUs, driver and chipset that allow it"
        return warn("peer access", text, fix, [gpus[end] for end in sorted({e for p in refused for e in p.devices})])
    answers = [path.peer_access for path in paths]
    if any(answer is None or PeerStatus.UNKNOWN in answer.statuses for answer in answers):
        return unknown("peer access", "NVML does not report it; collbench pairs measures it")
    return ok("peer access", "OK for every pair")


# The libraries: NCCL, the driver's CUDA library, torch.

_UTILITY_ONLY = (
    "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility when it is started; else install the driver's libraries"
)
_TORCH = "pip install torch for your CUDA: pytorch.org has the command"


def _libraries(facts: MachineFacts) -> Lines:
    """Judge the libraries that a run on GPUs opens, and whether they fit each other and the driver."""
    software = facts.software
    if not software.libcuda_error:
        compatible = facts.driver.cuda and facts.driver.cuda != software.libcuda
        more = f", by a compatibility library: the driver's own is {facts.driver.cuda}" if compatible else ""
        yield ok("libcuda", f"CUDA {software.libcuda}{more}")
    elif facts.driver.gpus:  # without a driver its line has said so
        yield fail("libcuda", f"libcuda.so.1 cannot be opened: {software.libcuda_error}", _UTILITY_ONLY)
    if software.nccl_error:
        fix = software.nccl_advice or "install torch with CUDA or libnccl2, or name a file with --nccl PATH"
        yield fail("NCCL", software.nccl_error, fix)
    else:
        yield ok("NCCL", f"{software.nccl}, {software.nccl_path}")
    yield from _torchs_nccl(software)
    preloaded = facts.environment.get("LD_PRELOAD", "")
    if "nccl" in preloaded.lower():
        text = f"LD_PRELOAD={preloaded}: every process loads this NCCL first"
        yield warn("LD_PRELOAD", text, "unset LD_PRELOAD unless it is intended")
    yield _torch(facts)


def _torchs_nccl(software: Software) -> Lines:
    """Judge whether the NCCL that is timed is the one that torch will load: that of the wheel next to it, if any."""
    name = "torch's NCCL"
    if not software.wheel:
        if software.torch_cuda:
            text = "no nvidia-nccl wheel next to torch: torch has NCCL built in, or loads the system's"
            fix = "compare the version with python -c 'import torch; print(torch.cuda.nccl.version())'"
            yield unknown(name, text, fix)
        return
    version = software.wheel_version or "of unknown version"
    if software.nccl_error or software.wheel == software.nccl_path:
        yield ok(name, f"{version}: what collbench times")
    elif software.wheel_version == software.nccl:
        yield ok(name, f"{version} at {software.wheel}: the same version")
    else:
        text = f"{version} at {software.wheel}: training loads this one, but collbench times {software.nccl}"
        yield warn(name, text, "unset COLLBENCH_NCCL and leave out --nccl to time torch's")


def _torch(facts: MachineFacts) -> Line:
    software = facts.software
    if not software.torch:
        return warn("torch", "not installed: collbench train needs it", _TORCH)
    if not software.torch_cuda:
        text = f"{software.torch} has no CUDA: collbench can measure, but training would run on CPU cores"
        return warn("torch", text, _TORCH)
    text = f"{software.torch}, built for CUDA {software.torch_cuda}"
    ours, theirs = _major(software.libcuda or facts.driver.cuda), _major(software.torch_cuda)
    if ours is not None and theirs is not None and ours < theirs:
        # Within one major version any driver works [CUDA compatibility guide, "minor version compatibility"].
        fix = f"install a driver for CUDA {theirs}, or torch built for CUDA {ours}"
        return fail("torch", f"{text}; the driver has {ours}", fix)
    return ok("torch", text)


def _major(version: str) -> int | None:
    number = version.partition(".")[0]
    return int(number) if number.isdigit() else None


def _torch_for_cores(software: Software) -> Lines:
    """Judge what the host backend needs: torch, for gloo."""
    if software.torch:
        yield ok("torch", f"{software.torch}: includes gloo for collectives between cores")
    else:
        yield fail("torch", "not installed: it includes gloo's collectives", _TORCH)


# What the variables that are set do here: NCCL's, in the environment and in nccl.conf, and CUDA's.

_LONGEST = 60  # characters of a value; longer values are lists or paths, which are cut


def _variables(facts: MachineFacts) -> Lines:
    """Judge each NCCL_* variable, from environment or file, in the order of names; collbench itself sets none."""
    own = [(name, value, "") for name, value in sorted(facts.environment.items()) if name.startswith("NCCL_")]
    configured = [(name, value, file) for file, name, value in sorted(facts.configured, key=lambda row: row[1])]
    for name, value, file in (*own, *configured):
        yield _nccl_variable(name, value, file)
    if not own and not configured and capabilities(facts.backend).nccl:
        yield ok("NCCL_*", "none is set: NCCL decides by itself")
    if capabilities(facts.backend).nvml:
        yield from _cuda_variables(facts.environment)


def _cuda_variables(environment: Mapping[str, str]) -> Lines:
    """Judge those of CUDA and torch that change figures; some are refused (docs/method/measuring.md 5)."""
    for found in falsified(environment):
        level = Level.WARN if found.commands else Level.FAIL
        refused = f"no {' and no '.join(found.commands)}" if found.commands else "nothing on GPUs"
        yield line(
            level, found.name, f"{found.value}: {found.why}; collbench measures {refused}", f"unset {found.name}"
        )
    false = {found.name for found in falsified(environment)}
    for name in (*OF_CUDA, *OF_TORCH):
        if name in environment and name not in false:
            yield _harmless(name, environment[name])


_DEFAULT_CONNECTIONS = 8  # [CUDA Programming Guide, "CUDA Environment Variables"]
_EFFECTS = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "queues that a GPU's streams share, 8 by default",
    "CUDA_MODULE_LOADING": "when kernels are loaded; collbench loads them before it times",
    **dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "how torch takes memory, in jobs too"),
}


def _harmless(name: str, value: str) -> Line:
    """Judge a variable that makes no figure false."""
    text = f"{_shown(value)}: {_EFFECTS.get(name, 'changes nothing')}"
    if name == "CUDA_FORCE_PTX_JIT" and switched_on(value):
        why = "NCCL and torch start slowly with other code than their own, or not at all"
        text = f"{value}: CUDA compiles PTX instead of loading compiled kernels: {why}"
        return warn(name, text, f"unset {name} unless the job has it")
    if name == "CUDA_DEVICE_MAX_CONNECTIONS" and value.isdigit() and int(value) < _DEFAULT_CONNECTIONS:
        return warn(name, f"{text}; streams that share one wait for each other", f"unset {name} unless the job has it")
    return ok(name, text)


def _shown(value: str) -> str:
    return (value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…") or "(empty)"


# (name, value or "" for any, what it costs). The value as NCCL reads it: numbers by strtoll, words in any case.
_COSTS = (
    ("P2P_DISABLE", "1", "all data between GPUs goes through host memory"),
    ("P2P_LEVEL", "LOC", "all data between GPUs goes through host memory"),
    ("P2P_LEVEL", "0", "all data between GPUs goes through host memory"),
    ("CUMEM_ENABLE", "0", "NVLS and memory windows are off"),
    ("SHM_DISABLE", "1", "GPUs without peer access use the network, even on one host"),
    ("CHECK_POINTERS", "1", "each call takes longer"),
    ("DEBUG", "TRACE", "every call gets slower"),
    ("ALGO", "", "NCCL cannot choose the best for each size and operation"),
    ("PROTO", "", "NCCL cannot choose the best for each size; LL128 forced where it is unsafe corrupts data"),
    ("GRAPH_FILE", "", "rings of another machine would be used unchecked"),
    ("TOPO_FILE", "", "a file of another machine misleads NCCL: compare with NCCL_TOPO_DUMP_FILE"),
    ("MAX_NCHANNELS", "", "fewer channels than NCCL would choose lower bandwidth"),
    ("MAX_CTAS", "", "fewer thread blocks than NCCL would choose lower bandwidth"),
    ("NTHREADS", "", "fewer threads than NCCL would choose lower bandwidth"),
    ("BUFFSIZE", "", "smaller buffers than 4 MiB lower bandwidth"),
    ("NVB_DISABLE", "1", "GPUs without a link of their own use PCIe"),
    ("IB_DISABLE", "1", "between hosts all traffic uses sockets"),
    ("IB_CUDA_SUPPORT", "", "NCCL no longer reads it"),
    ("CHECKS_DISABLE", "", "NCCL no longer reads it"),
    ("SINGLE_RING_THRESHOLD", "", "NCCL no longer reads it"),
    ("TREE_THRESHOLD", "", "NCCL no longer reads it"),
)

# Read as whole numbers: any other text counts as 0 [src/misc/param.cc, ncclLoadParam: strtoll].
_NUMBER = re.compile(r"[+-]?(0x[0-9a-f]|[0-9])", re.IGNORECASE | re.ASCII)
_NUMBERS = (
    *("BUFFSIZE", "CHECK_POINTERS", "COLLNET_ENABLE", "COMM_BLOCKING", "CROSS_NIC", "CUMEM_ENABLE"),
    *("CUMEM_HOST_ENABLE", "DMABUF_ENABLE", "GRAPH_REGISTER", "IB_DISABLE", "IB_GID_INDEX", "IB_TC", "IB_TIMEOUT"),
    *("IB_QPS_PER_CONNECTION", "IGNORE_CPU_AFFINITY", "LOCAL_REGISTER", "MAX_CTAS", "MAX_NCHANNELS", "MIN_CTAS"),
    *("MIN_NCHANNELS", "MNNVL_ENABLE", "NET_GDR_READ", "NTHREADS", "NVB_DISABLE", "NVLS_ENABLE", "P2P_DIRECT_DISABLE"),
    *("P2P_DISABLE", "P2P_READ_ENABLE", "P2P_USE_CUDA_MEMCPY", "PXN_DISABLE", "RAS_ENABLE", "SHM_DISABLE"),
    *("SOCKET_NTHREADS", "NSOCKS_PERTHREAD", "WIN_ENABLE"),
)


def cost(name: str, value: str) -> str:
    """Return what the value of a variable costs, as a clause; "" for nothing."""
    short, given = name.removeprefix("NCCL_"), value.strip().upper()
    if short in _NUMBERS and given and not _NUMBER.match(given):
        return "NCCL expects a whole number here and reads this text as 0"
    return next((costs for costly, setting, costs in _COSTS if costly == short and setting in ("", given)), "")


def _nccl_variable(name: str, value: str, file: str) -> Line:
    """Judge a variable; `file` sets it, "" for the environment."""
    shown = f"{_shown(value)} (set in {file})" if file else _shown(value)
    if costs := cost(name, value):
        fix = "remove it from that file unless it is intended" if file else f"unset {name} unless it is intended"
        return warn(name, f"{shown}: {costs}", fix)
    if read_by := reader(name):
        return ok(name, f"{shown}: {read_by}")
    text = f"{shown}: no NCCL from 2.18 to 2.30 reads this name"
    if near := meant(name):
        return warn(name, text, f"did you mean {near}?")
    return unknown(name, f"{text}; a plugin may")


# The host of a measurement: limits on its processes, memory and CPUs, and network cards.

_MIB = 2**20
# What NVIDIA starts containers with [NCCL user guide, troubleshooting, "Shared memory"]; docker's default is 64 MiB.
_ENOUGH_SHM = 1024 * _MIB
# NCCL's segments are 4 to 10 MiB each, and a rank has two at least [the same page: 4194660 bytes; NCCL_BUFFSIZE].
_MIN_SHM_A_GPU = 8 * _MIB
# From here on NCCL shares host memory by CUDA's calls, and /dev/shm holds little [NCCL 2.30.7, src/misc/cudawrap.cc].
_CUMEM_CUDA = (12, 6)
# Two messages of 64 MiB a core and what torch takes in each of eight processes.
_LITTLE_MEMORY = 4096 * _MIB
_TRANSLATED = ("DMA", "DMA-FQ")  # an IOMMU group's type in the kernel's words; "identity" passes addresses through


def judge_host(facts: MachineFacts, gpus: Sequence[GpuState]) -> Lines:
    """Judge the host around the process; `gpus` are the visible ones, none on the host backend."""
    host = facts.host
    gpu_virtualization = "" if facts.driver.virtualization == "none" else facts.driver.virtualization
    maker = f" ({host.hypervisor})" if host.hypervisor else ""
    parts = (
        host.system,
        f"{host.container} container" if host.container else "",
        f"virtual machine{maker}" if host.hypervisor or gpu_virtualization else "",
        f"GPU {gpu_virtualization}" if gpu_virtualization else "",
    )
    yield ok("system", ", ".join(filter(None, parts)))
    yield _shared_memory(facts, len(gpus))
    yield _locked_memory(host)
    yield from _cpus(facts, len(gpus))
    if capabilities(facts.backend).cores:
        yield _memory(host.memory_available)
    if gpus:
        yield _numa(host, gpus)
        yield from _peer_traffic(facts, gpus)
        yield from _gpu_direct(host)
        yield from _ports(host.network_ports)
        yield from _affinity(host.near_cards)


def _shared_memory(facts: MachineFacts, gpus: int) -> Line:
    name, shm = "shared memory", facts.host.shm
    if shm is None:
        text = "no /dev/shm that can be read: processes on one host share memory through it"
        return fail(name, text, "mount a tmpfs on /dev/shm")
    text = f"{format_approximate_size(shm.free)} free of {format_approximate_size(shm.total)} in /dev/shm"
    fix = "docker run --shm-size=1g (or --ipc=host); elsewhere: sudo mount -o remount,size=8G /dev/shm"
    if shm.free < _MIN_SHM_A_GPU * max(gpus, 1):
        return fail(name, f"{text}: NCCL and torch's data loaders cannot start", fix)
    if shm.free < _ENOUGH_SHM:
        cuda = tuple(int(part) for part in facts.driver.cuda.split(".") if part.isdigit())
        through_cuda = cuda >= _CUMEM_CUDA and facts.environment.get("NCCL_CUMEM_HOST_ENABLE") != "0"
        little = "torch's data loaders may need more; with this driver NCCL does not"
        return warn(name, f"{text}: {little if through_cuda else 'NCCL may need 1 GiB'}", fix)
    return ok(name, text)


def _locked_memory(host: Host) -> Line:
    name = "locked memory"
    if host.memlock < 0:
        return ok(name, "unlimited")
    limit = format_approximate_size(host.memlock)
    if not host.network_cards:
        return ok(name, f"{limit}; it matters only for InfiniBand and RoCE, and there is no such card")
    text = f"{limit}: {', '.join(host.network_cards)} cannot register NCCL's buffers"
    fix = "docker run --ulimit memlock=-1; elsewhere: memlock unlimited in /etc/security/limits.conf"
    return warn(name, text, fix)


def _cpus(facts: MachineFacts, gpus: int) -> Lines:
    """Judge how many CPUs this process may use, and how much of their time."""
    host, on_cores = facts.host, capabilities(facts.backend).cores
    text = f"{len(host.cpus)} available: {format_cpus(host.cpus)}"
    fix = "widen the cgroup's cpuset, taskset's mask, or the CPUs that the job asks for (srun --cpus-per-task)"
    needed = 2 if on_cores else gpus
    if len(host.cpus) >= needed:
        yield ok("CPUs", text)
    elif on_cores:
        yield fail("CPUs", f"{text}; the host backend needs two", fix)
    else:
        yield warn("CPUs", f"{text}, for {amount(needed, 'GPU')}: ranks wait for each other's cores", fix)
    if host.cpu_quota is not None:
        text = f"a cgroup limits CPU time to {fixed(host.cpu_quota)} CPUs: a rank that polls is paused at times"
        if host.cpu_quota < max(needed, 1):
            yield warn("CPU quota", text, "docker run without --cpus; Kubernetes: raise or drop the CPU limit")
        else:
            yield ok("CPU quota", text)


def _memory(available_bytes: int) -> Line:
    if not available_bytes:
        return unknown("memory", "available memory is unknown")
    text = f"{format_approximate_size(available_bytes)} available"
    if available_bytes < _LITTLE_MEMORY:
        return warn("memory", f"{text}: large messages may not fit", "--sizes 8:16M")
    return ok("memory", text)


def _numa(host: Host, gpus: Sequence[GpuState]) -> Line:
    """Judge whether this process may use the CPUs and the memory near its GPUs."""
    with_affinity = [gpu for gpu in gpus if gpu.device.cpu_affinity]
    far = [gpu for gpu in with_affinity if not set(parse_cpus(gpu.device.cpu_affinity)) & set(host.cpus)]
    if far:
        each = ", ".join(f"{gpu.device.tag} ({gpu.device.cpu_affinity})" for gpu in far)
        fix = "widen the cgroup's cpuset or taskset's mask to these CPUs; Slurm: --gres-flags=enforce-binding"
        return warn("NUMA", f"no available CPU is near {each}", fix, far)
    usable = (None, *host.memory_nodes)
    without = [gpu for gpu in gpus if host.memory_nodes and gpu.device.numa_node not in usable]
    if without:
        text = f"no memory is available on the NUMA node of {tags(without, gpus)}"
        return warn("NUMA", text, "widen the cgroup's cpuset.mems", without)
    if with_affinity:
        return ok("NUMA", "CPUs near every GPU are available")
    return unknown("NUMA", "neither driver nor kernel says which CPUs are near the GPUs")


def _peer_traffic(facts: MachineFacts, gpus: Sequence[GpuState]) -> Lines:
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
        text = f"translates addresses of {tags(translated, gpus)}: peer copies over PCIe may go through the CPU{whom}"
        fix = "boot with iommu=pt, or turn VT-d or AMD-Vi off in the firmware"
        yield line(level, "IOMMU", text, fix if matters else "", translated)
    else:
        texts = {None: "not seen", False: "off", True: "on, and passes the GPUs' addresses through"}
        yield ok("IOMMU", texts[facts.host.iommu])
    redirecting = sorted({bridge for slot in slots.values() for bridge in slot.redirecting})
    if redirecting:
        text = f"bridges send peer traffic up to the CPU: {', '.join(redirecting)}{whom}"
        fix = f"sudo setpci -s {redirecting[0]} ECAP_ACS+0x6.w=0000, for each, on bare metal; or off in the firmware"
        yield line(level, "ACS", text, fix if matters else "")
    elif any(slot.unreadable for slot in slots.values()):
        yield unknown("ACS", "only root may read it", "sudo $(which collbench) doctor")
    else:
        yield ok("ACS", "no bridge above the GPUs redirects peer traffic")


def _gpu_direct(host: Host) -> Lines:
    """Judge GPU direct transfers of network cards; no line without a card."""
    cards = ", ".join(host.network_cards)
    if cards and (host.peermem or host.open_modules):
        yield ok(
            "GPU direct", f"{cards} by {'nvidia_peermem' if host.peermem else 'dma-buf of the open kernel modules'}"
        )
    elif cards:
        text = f"{cards} cannot reach GPU memory: neither nvidia_peermem nor the driver's open modules are loaded"
        yield warn("GPU direct", text, "sudo modprobe nvidia-peermem")


_ACTIVE = "ACTIVE"


def down(ports: tuple[NetworkPort, ...]) -> tuple[NetworkPort, ...]:
    """Return the ports that report that they carry no traffic."""
    return tuple(port for port in ports if port.state not in ("", _ACTIVE))


def slower(ports: tuple[NetworkPort, ...]) -> tuple[tuple[NetworkPort, float], ...]:
    """Return the active ports below the rate of an active sibling, with the best sibling's Gbit/s.

    Siblings have the same model and link layer: a card for storage or management is no measure for the others.
    """
    best: dict[tuple[str, str], float] = {}
    active_ports = [
        (port, port.rate_gbits) for port in ports if port.state == _ACTIVE and port.model and port.rate_gbits
    ]
    for port, rate in active_ports:
        kind = (port.model, port.link_layer)
        best[kind] = max(rate, best.get(kind, 0.0))
    return tuple(
        (port, best[port.model, port.link_layer])
        for port, rate in active_ports
        if rate < best[port.model, port.link_layer]
    )


def _ports(ports: tuple[NetworkPort, ...]) -> Lines:
    """Judge the ports' state and rate; no line without a port."""
    faults = [
        f"{port.name} is {port.state}{f' ({port.physical_state})' if port.physical_state else ''}"
        for port in down(ports)
    ]
    faults += [
        f"{port.name} has {fixed(port.rate_gbits or 0.0)} Gbit/s, other ports of its kind {fixed(best)}"
        for port, best in slower(ports)
    ]
    unread = [port.name for port in ports if not port.state]
    if faults:
        fix = "check ibstat, cable, switch port, and for InfiniBand the subnet manager"
        yield warn("network ports", "; ".join(faults), fix)
    elif unread:
        yield unknown("network ports", f"the state of {', '.join(unread)} cannot be read")
    elif ports:
        yield ok("network ports", f"{len(ports)} active, none slower than another of its kind")


def nearest(near: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the cards nearest to a GPU, and how near: ((), "") if nothing is known."""
    best = next((how for how in labels.PCIE_BEST_FIRST if how in near.values()), "")
    return tuple(sorted(card for card, how in near.items() if how == best)), best


def _affinity(near: Mapping[int, Mapping[str, str]]) -> Lines:
    """Judge which cards are near the GPUs; no line if no nearness is known."""
    name = "network affinity"
    known = {gpu: nearest(cards) for gpu, cards in sorted(near.items()) if cards}
    far = [f"GPU{gpu}" for gpu, (_, how) in known.items() if how == "SYS"]
    if 0 < len(far) < len(known):
        gpus = f"{', '.join(far)} {verb(len(far), 'reaches', 'reach')}"
        text = f"{gpus} cards only across sockets (SYS), other GPUs have a nearer card"
        yield warn(name, text, "see 'nvidia-smi topo -m' and the slots of the cards")
    elif known:
        routes = ", ".join(f"GPU{gpu} {'/'.join(cards)} {how}" for gpu, (cards, how) in known.items())
        yield ok(name, f"nearest cards: {routes}")
