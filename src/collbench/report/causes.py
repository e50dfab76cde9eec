"""The likely cause of a verdict as a clause, and the shell commands that check it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from collbench.judge.diagnose.causes import (
    Check,
    Either,
    ErrorCounter,
    GpuItself,
    GpuPart,
    Known,
    LikelyCause,
    Look,
    NewErrors,
    OfLabel,
    OfLinks,
    Shared,
    SharedPart,
    Throttled,
    VariableSet,
)
from collbench.judge.diagnose.evidence import Extent, Presence
from collbench.model.run import Device, Run

_KNOWN = {
    Known.OTHER_JOBS: "another job computes, copies or holds memory there; measure again when it has ended",
    Known.NVLINK_TRAFFIC: (
        "traffic of other jobs on the NVLinks, GPUs that share ports, or NCCL and copies that share another link"
    ),
    Known.BRIDGE_DETOUR: (
        "copies below one bridge are routed through the root complex (ACS, an IOMMU), or other jobs load the bridge"
    ),
    Known.FEWER_LANES: ("the slot has fewer lanes, the card is badly seated or on a riser, or the link trained down"),
    Known.LOWER_GENERATION: (
        "the link trained down to a lower generation, or power management holds it there under load"
    ),
    Known.CALL_FAILED: "a CUDA or NCCL call, the driver or a worker process failed",
    Known.FAULTY_CORES: "this machine's memory or a core is faulty",
    Known.FAULTY_NVLINKS: (
        "an NVLink, a GPU's memory or the NVSwitch fabric is faulty, or a virtual IOMMU is set up wrongly"
    ),
    Known.ACS_CORRUPTS: ("an IOMMU or PCIe ACS corrupts transfers between GPUs [pytorch#84803, nccl#667, nccl#2079]"),
    Known.ACS_STALLS: "an IOMMU or PCIe ACS stalls transfers between GPUs [pytorch#84803, nccl#667, nccl#2079]",
    Known.TIMING_OR_LIMIT: (
        "the timing is wrong, or the limit is because the driver reports fewer or slower links than there are"
    ),
    Known.PEERS_REFUSED: "CUDA refuses peer access, so copies pass through host memory",
    Known.NVLINKS_DOWN: (
        "the NVLinks are down or not set up (on NVSwitch machines: the fabric manager is not running)"
    ),
    Known.NVLINKS_LOST: (
        "NVLinks are down at one end, or went down between the two queries (or the text is of another machine)"
    ),
    Known.PEERS_TAKEN: (
        "the driver, a container or MIG mode disables peer access, or an IOMMU or ACS setting forbids it"
    ),
    Known.LABEL_RULES: (
        "the two tools label PCIe paths by different rules on some machines; a label names the path, not its rate"
    ),
    Known.NVLINKS_NOT_IN_TREE: ("topo -p reports only the PCIe path and no NVLinks; traffic uses the NVLinks"),
    Known.NVLINKS_OF_LABEL_UNUSED: "the NVLinks of these pairs are not used, or most of them are down",
    Known.NVLINK_LANES: "one direction's lanes: NVLinks of this path replay packets or run at a lower rate",
    Known.PCIE_DIRECTION: (
        "one direction of a PCIe link or switch port on this path: a riser, a lane, or the root port's forwarding"
    ),
    Known.SHARED_CORES: "these cores share a cache or a physical core with other processes",
    Known.NCCL_PAIR: (
        "NCCL's path between the two (its channels, transport or buffers), as every pair has the same label"
    ),
    Known.NCCL_PATH: (
        "NCCL uses another path than the copies (no peer access inside its container, a small /dev/shm, an IOMMU) or "
        "too few channels; its log names the path"
    ),
    Known.LINK_OR_NCCL: (
        "the link itself or NCCL's path over it: no copies were measured on it, which show which ('collbench pairs')"
    ),
    Known.SEVERAL: (
        "several faults at once, or a shared part that labels do not show: no single part explains all of these pairs"
    ),
    Known.CHANGED: "clocks, heat or a power limit changed during the run, or another job was there for a part of it",
    Known.ONE_NVLINK: "only this link: a cable, bridge or port, or NVLinks that are down or replay packets",
    Known.ONE_PCIE_PATH: "only this path: a riser, a switch port, or a slot with fewer lanes",
    Known.NVLINKS_HIDDEN: "{machine} hides the NVLinks or NVSwitches from the labels; the links exist and are used",
    Known.PCIE_TREE_HIDDEN: "the hypervisor hides the PCIe tree ({virtualization}); only measurements show the paths",
    Known.NVLINKS_DEGRADED: (
        "{paths}: NVLinks are down, run at a lower rate, or replay packets (a cable, bridge or port)"
    ),
    Known.NVLINKS_IDLE: "{slow}traffic does not use the NVLinks of this path",
    Known.PEER_DETOUR: (
        "peer traffic takes a detour: {slow}ACS or the IOMMU routes it through the root complex, or the link between "
        "sockets is slow; without peer access (NCCL_P2P_DISABLE=1) NCCL is faster [nccl#814]"
    ),
    Known.NO_PEER_ACCESS: (
        "no peer access on {label} pairs: copies go through host memory, and GPUs near each other share one uplink to "
        "it [nccl#1309]"
    ),
    Known.UPLINK_SHARED: (
        "{label} pairs share an uplink, or ACS routes their traffic through the root complex; labels do not name rates"
    ),
}
_COUNTERS = {
    ErrorCounter.NVLINK: "NVLink errors",
    ErrorCounter.REPLAYS: "NVLink replays",
    ErrorCounter.ECC: "ECC errors",
}
_PARTS = {
    GpuPart.NVLINKS: "its NVLinks or its switch ports are down or slow",
    GpuPart.ONE_DIRECTION: "its copy engines, or its ports in one direction",
    GpuPart.ANY: "its slot, its NVLinks or its clocks, because all of its links are slow",
}
_SHARED = {
    SharedPart.UPLINK: "the uplink of the PCIe switch above {}",
    SharedPart.ROOT: "the PCIe root complex above {}",
    SharedPart.FORWARDING: "the root complexes between {}",
    SharedPart.SOCKETS: "the link between the sockets of {}",
    SharedPart.BELOW: "the PCIe switch between {}",
    SharedPart.PATH: "the path between {}",
}
_REASONS = {
    SharedPart.UPLINK: " (a lane, a riser, or a lower generation)",
    SharedPart.FORWARDING: ", which forward copies between GPUs slowly (ACS, an IOMMU, or the CPU's own limit)",
}
_ALONE = {Extent.PAIR: "only this path", Extent.DIRECTION: "only one direction of this path"}
_CHANNELS = "limits the channels, and so how many links are used at once"
# What each variable does [NCCL docs, environment variables]. Pairs, because a dict with such keys looks like an
# environment that sets them (tests/test_walls.py).
_VARIABLES = (
    ("NCCL_P2P_DISABLE", "disables direct transfers between GPUs, so NCCL goes through host memory"),
    ("NCCL_P2P_LEVEL", "limits direct transfers to nearer GPUs; farther ones go through host memory"),
    ("NCCL_SHM_DISABLE", "disables shared host memory: without direct transfers NCCL uses the network"),
    ("NCCL_TOPO_FILE", "replaces the topology that NCCL detects by one from a file"),
    ("NCCL_NET_DISABLE_INTRA", "changes how GPUs of one node reach each other"),
    ("NCCL_PROTO", "fixes the protocol: LL moves at most half of a link's bandwidth"),
    ("NCCL_ALGO", "fixes the algorithm for all sizes"),
    ("NCCL_MAX_NCHANNELS", _CHANNELS),
    ("NCCL_MAX_CTAS", _CHANNELS),
    ("NCCL_MAX_NRINGS", _CHANNELS),
    ("NCCL_NTHREADS", "limits the threads that move data"),
    ("NCCL_BUFFSIZE", "sets the size of NCCL's buffers, and so of each transfer"),
    ("NCCL_IB_DISABLE", "disables InfiniBand: between nodes NCCL uses sockets"),
    ("NCCL_NET", "chooses the network"),
    ("NCCL_SOCKET_IFNAME", "chooses the network card"),
)


def cause(likely_cause: LikelyCause, run: Run) -> str:  # noqa: PLR0911 - a clause for each type
    """Return a likely cause as a clause without a full stop."""
    match likely_cause:
        case Known() | OfLinks() | OfLabel():
            return _known(likely_cause, run)
        case Throttled(reasons, seen):
            return f"{run.devices[seen.device].tag} was throttled ({', '.join(reasons)}) {presence(seen)}"
        case NewErrors(device, counter, count):
            return f"{count} new {_COUNTERS[counter]} on {run.devices[device].tag}"
        case VariableSet(name, value):
            return f"the environment variable {name}={value} {dict(_VARIABLES)[name]}"
        case GpuItself(device, part):
            return f"{run.devices[device].tag} itself: {_PARTS[part]}"
        case Shared(part):
            return _part(likely_cause, run) + _REASONS.get(part, "")
        case Either(first, second):
            one, other = (" and ".join(_part(part, run) for part in parts) for parts in (first, second))
            return f"either {one}, or {other}: both explain all slow links"


def _part(blamed: GpuItself | Shared, run: Run) -> str:
    devices = (blamed.device,) if isinstance(blamed, GpuItself) else blamed.devices
    names = ", ".join(run.devices[device].tag for device in devices)
    return names if isinstance(blamed, GpuItself) else _SHARED[blamed.part].format(names)


def _known(likely_cause: Known | OfLinks | OfLabel, run: Run) -> str:
    known = likely_cause if isinstance(likely_cause, Known) else likely_cause.known
    single = likely_cause.single if isinstance(likely_cause, OfLinks) else None
    kind = run.machine.virtualization
    return _KNOWN[known].format(
        paths="these paths" if single is None else _ALONE[single],
        slow="" if single is None else f"{_ALONE[single]} is slow (a riser, a switch port), or ",
        label=likely_cause.label if isinstance(likely_cause, OfLabel) else "",
        machine="a virtual machine or the driver" if kind in ("", "none") else f"the virtual machine ({kind})",
        virtualization=kind,
    )


def presence(seen: Presence) -> str:
    """Return when something was seen: "in 3 of 40 trials", "before measuring"."""
    return f"{seen.when} measuring" if seen.when else f"in {seen.trials} of {seen.of_trials} trials"


# The command of each check. {gpus} are nvidia-smi's indices, {on} is its option for them, if there are any.
_COMMANDS = {
    Look.GPU_PROCESSES: "nvidia-smi{on} --query-compute-apps=pid,name,used_memory --format=csv",
    Look.RUNNING: "nvidia-smi pmon -c 1",
    Look.LIMITING: "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER{on}",
    Look.LABELS: "nvidia-smi topo -m",
    Look.PEERS: "nvidia-smi topo -p2p r",
    Look.PCIE_LABELS: "nvidia-smi topo -p{on}",
    Look.NVLINKS: "nvidia-smi nvlink -s{on}",
    Look.NVLINK_ERRORS: "nvidia-smi nvlink -e{on}",
    Look.NVLINK_TRAFFIC: "nvidia-smi nvlink -gt d{on}",
    Look.FABRIC_MANAGER: "systemctl status nvidia-fabricmanager",
    Look.MIG: "nvidia-smi -q{on} | grep -A2 'MIG Mode'",
    Look.PCIE_LINKS: "{slots}",
    Look.PCIE_DEVICES: "lspci | grep -i nvidia",
    Look.PCIE_TREE: "lspci -t",
    Look.PCIE_NUMA: "cat /sys/bus/pci/devices/*/numa_node | sort | uniq -c",
    Look.ACS: "sudo lspci -vvv | grep ACSCtl",
    Look.KERNEL_COMMAND: "cat /proc/cmdline",
    Look.LOG_DRIVER: "sudo dmesg | grep -i -e Xid -e nvidia",
    Look.LOG_FABRIC: "sudo dmesg | grep -i -e Xid -e SXid",
    Look.LOG_IOMMU: "sudo dmesg | grep -i -e iommu -e dmar",
    Look.LOG_IOMMU_GPUS: "sudo dmesg | grep -i -e iommu -e dmar -e Xid",
    Look.LOG_IOMMU_DRIVER: "sudo dmesg | grep -i -e iommu -e NVRM",
    Look.LOG_MEMORY: "sudo dmesg | grep -i -e mce -e edac",
    Look.MEMORY_TEST: "memtest86+",
    Look.CORES: "lscpu -e",
    Look.NUMA: "numactl --hardware",
    Look.WITHOUT_VARIABLE: "env -u {variable} collbench allreduce --devices {gpus} --sizes 64M",
    Look.NCCL_LOG: (
        "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.%p collbench allreduce --devices {gpus} --sizes 64M; "
        "grep ' via ' /tmp/nccl.*"
    ),
}


def command(checks: Iterable[Check], run: Run) -> str:
    """Return the shell commands of these checks on one line."""
    commands = []
    for check in checks:
        devices = [run.devices[position] for position in check.devices]
        gpus = ",".join(str(device.index) for device in devices)
        on = f" -i {gpus}" if gpus else ""
        commands.append(_COMMANDS[check.look].format(gpus=gpus, on=on, slots=_slots(devices), variable=check.variable))
    return "; ".join(commands)


# As NVML writes it, "00000000:1B:00.0"; a run file may contain anything.
_BUS_ID = re.compile(r"([0-9A-Fa-f]+):([0-9A-Fa-f]+:[0-9A-Fa-f]+\.[0-9A-Fa-f])")


def _slots(devices: Sequence[Device]) -> str:
    ids = (_BUS_ID.fullmatch(device.pci_bus_id) for device in devices)
    known = [f"{int(match[1], 16):04x}:{match[2].lower()}" for match in ids if match]
    if not known:
        return "sudo lspci -vvv | grep -e NVIDIA -e LnkSta"
    return "; ".join(f"sudo lspci -vvv -s {address} | grep LnkSta:" for address in known)
