"""From facts about a machine to findings (ok, warn, fail or unknown) with their fixes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from collbench.machine import kernel, labels
from collbench.machine.doctor.facts import Driver, Facts, Gpu, Software
from collbench.machine.doctor.findings import (
    Finding,
    Group,
    Level,
    Line,
    Lines,
    fail,
    line,
    nvidia_smi,
    ok,
    tags,
    unknown,
    warn,
)
from collbench.machine.doctor.judge_host import judge_host
from collbench.machine.health import HOT_C, holds_back
from collbench.machine.variables import OF_CUDA, OF_TORCH, Use, cost, falsified, meant, reader, switched_on
from collbench.machine.visible_devices import NAME, ORDER, read
from collbench.model.capabilities import capabilities
from collbench.model.run import Path, PeerStatus
from collbench.model.units import abridged, amount, counted, format_approximate_size


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
    sections += [(Group.HOST, judge_host(facts, gpus)), (Group.VARIABLES, _variables(facts))]
    return tuple(Finding(group, *line) for group, lines in sections for line in lines)


def visible_gpus(facts: Facts) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves; all of them where it leaves none, for the list may be wrong."""
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


def _driver(facts: Facts) -> Lines:
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


def _count(facts: Facts) -> Line:
    gpus = facts.driver.gpus
    text = counted(gpu.device.name for gpu in gpus)
    hidden = (facts.driver.on_the_bus or 0) - len(gpus)
    if not gpus:
        fix = kernel.container_fix(facts.host.container, "check nvidia-smi -L and the permissions of /dev/nvidia*")
        return fail("GPUs", "the driver shows no GPU to this process", fix)
    if hidden <= 0:
        return ok("GPUs", text)
    if facts.host.container:
        return ok("GPUs", f"{text}; {hidden} more on PCI, not given to this container")
    fix = "check dmesg | grep -i xid for a GPU that fell off the bus, and /dev/nvidia* for one without access"
    return warn("GPUs", f"{text}; {hidden} more on PCI that the driver does not show", fix)


def _visibility(facts: Facts) -> Lines:
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


def _health(gpus: Sequence[Gpu]) -> Lines:
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
    is_bad: Callable[[Gpu], bool | None]
    good: str
    problem: Callable[[Collection[Gpu], Sequence[Gpu]], Line]
    everywhere: bool = True  # False: GPUs that do not report it do not have it


def _mode(mode: _Mode, gpus: Sequence[Gpu]) -> Line:
    bad = [gpu for gpu in gpus if mode.is_bad(gpu)]
    unreported = [gpu for gpu in gpus if mode.is_bad(gpu) is None]
    if bad:
        return mode.problem(bad, gpus)
    if len(unreported) == len(gpus) and not mode.everywhere:
        return ok(mode.name, "not supported by these GPUs")
    return unknown(mode.name, "NVML does not report it") if unreported else ok(mode.name, mode.good)


def _mig(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> Line:
    text = f"on for {tags(bad, gpus)}: CUDA shows parts of a GPU, and NCCL has no peer access between them"
    return fail("MIG", text, nvidia_smi(bad, "-mig 0"), bad)


def _compute_mode(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> Line:
    fix = nvidia_smi(bad, "-c DEFAULT")
    prohibited = [gpu for gpu in bad if gpu.compute_mode == _PROHIBITED]
    if prohibited:
        return fail("compute mode", f"prohibited on {tags(prohibited, gpus)}: CUDA cannot start there", fix, prohibited)
    text = f"exclusive on {tags(bad, gpus)}: a second process is refused, and each rank of torch may open all GPUs"
    return warn("compute mode", text, fix, bad)


def _no_persistence(bad: Collection[Gpu], gpus: Sequence[Gpu]) -> Line:
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


def _gpu_memory(gpus: Sequence[Gpu]) -> Line:
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


def _links(facts: Facts) -> Lines:
    """Judge peer access and NVLinks between the visible GPUs."""
    gpus, visible = facts.driver.gpus, visible_gpus(facts)
    paths = [path for path in facts.driver.paths if all(gpus[position] in visible for position in path.devices)]
    if not paths:
        return
    text = counted(sorted((path.label for path in paths), key=labels.rank_key))
    yield ok("labels", f"{amount(len(paths), 'pair')}: {text}")
    yield _peers(paths, gpus)
    most: dict[str, int] = {}  # NVLinks that are up, by product; cards without a bridge have none, and all alike
    for gpu in visible:
        most[gpu.device.name] = max(most.get(gpu.device.name, 0), gpu.links_up)
    fewer = [gpu for gpu in visible if gpu.links_up < most[gpu.device.name]]
    if fewer:
        each = ", ".join(f"{gpu.device.tag} {gpu.links_up} of {most[gpu.device.name]}" for gpu in fewer)
        fix = "nvidia-smi nvlink --status; reset the GPUs, or have the machine inspected"
        yield warn("NVLinks", f"some are down: {each}", fix, fewer)
    elif any(most.values()):
        yield ok("NVLinks", ", ".join(f"{count} up on each {name}" for name, count in most.items() if count))


def _peers(paths: Sequence[Path], gpus: Sequence[Gpu]) -> Line:
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


def _libraries(facts: Facts) -> Lines:
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


def _torch(facts: Facts) -> Line:
    software = facts.software
    if not software.torch:
        return warn("torch", "not installed: collbench train needs it", _TORCH)
    if not software.torch_cuda:
        text = f"{software.torch} has no CUDA: collbench can measure, but training would run on CPU cores"
        return warn("torch", text, _TORCH)
    text = f"{software.torch}, built for CUDA {software.torch_cuda}"
    ours, theirs = _major(software.libcuda or facts.driver.cuda), _major(software.torch_cuda)
    if ours is not None and theirs is not None and ours < theirs:
        # Within one major version any driver will do [CUDA compatibility guide, "minor version compatibility"].
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


def _variables(facts: Facts) -> Lines:
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
    for one in falsified(environment):
        level = Level.FAIL if Use.NATIVE in one.uses else Level.WARN
        refused = "nothing on GPUs" if level is Level.FAIL else f"no {' and no '.join(one.uses)}"
        yield line(level, one.name, f"{one.value}: {one.why}; collbench measures {refused}", f"unset {one.name}")
    false = {one.name for one in falsified(environment)}
    for name in (*OF_CUDA, *OF_TORCH):
        if name in environment and name not in false:
            yield _harmless(name, environment[name])


_DEFAULT_CONNECTIONS = 8  # [CUDA Programming Guide, "CUDA Environment Variables"]
_EFFECTS = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "queues that a GPU's streams share, 8 by default",
    "CUDA_MODULE_LOADING": "when kernels are loaded; collbench loads them before it times",
    "PYTORCH_ALLOC_CONF": "how torch takes memory, in overlap, replay and jobs",
    "PYTORCH_CUDA_ALLOC_CONF": "how torch takes memory, in overlap, replay and jobs",
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
