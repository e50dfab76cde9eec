"""From facts to findings: each fault makes its line fail or warn, and a healthy machine has none."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.preflight.findings import Level, MachineFacts, Slot, Space, status
from collbench.preflight.judge import judge
from tests.preflight.described import GIB, gpu, machine, named, pairs

FOUR = tuple(gpu(index) for index in range(4))


def with_third(**changes: Any) -> MachineFacts:
    """Return the healthy machine whose GPU2 has these facts."""
    return machine((*FOUR[:2], gpu(2, **changes), FOUR[3]))


def test_a_healthy_machine_is_ok_in_every_line_and_has_nothing_to_fix() -> None:
    findings = judge(machine())
    assert {finding.level for finding in findings} == {Level.OK}
    assert {finding.fix for finding in findings} == {""}
    assert status(findings) == 0


@pytest.mark.parametrize(
    ("what", "facts", "name", "message", "fix"),
    [
        ("no driver", machine(driver={"error": "no NVIDIA driver", "missing": True}),
         "driver", "no NVIDIA driver", "--backend host"),
        ("no driver in docker", machine(host={"container": "docker"},
         driver={"error": "no NVIDIA driver", "missing": True}),
         "driver", "no NVIDIA driver", "--gpus all"),
        ("a lost GPU", machine(driver={"error": "GPU 2 does not answer NVML: lost", "advice": "reset it or reboot"}),
         "driver", "GPU 2 does not answer", "reset it or reboot"),
        ("a driver before r520", machine(driver={"version": "470.82.01"}), "driver", "older than r520", "r520"),
        ("no GPU", machine((), driver={"paths": (), "on_the_bus": 0}), "GPUs", "no GPU", "nvidia-smi -L"),
        ("all hidden", machine(environment={"CUDA_VISIBLE_DEVICES": ""}), "CUDA_VISIBLE_DEVICES", "every GPU", "unset"),
        ("MIG on", with_third(mig=True), "MIG", "GPU2", "sudo nvidia-smi -i 2 -mig 0"),
        ("no context allowed", with_third(compute_mode=2), "compute mode", "GPU2", "sudo nvidia-smi -i 2 -c DEFAULT"),
        ("a memory row beyond repair", with_third(repair_failed=True), "memory", "GPU2", "replaced"),
        ("no fabric manager", with_third(fabric_state=1), "fabric", "not started", "systemctl start"),
        ("libcuda missing", machine(software={"libcuda": "", "libcuda_error": "libcuda.so.1: no such file"}), "libcuda",
         "no such file", "NVIDIA_DRIVER_CAPABILITIES"),
        ("NCCL missing", machine(software={"nccl_error": "it cannot be opened", "nccl_advice": "install torch"}),
         "NCCL", "cannot be opened", "install torch"),
        ("torch for a newer driver", machine(driver={"cuda": "12.4"}, software={"libcuda": "12.4"}), "torch",
         "built for CUDA 13.0; the driver has 12", "CUDA 13"),
        ("no /dev/shm", machine(host={"shm": None}), "shared memory", "no /dev/shm", "tmpfs"),
        ("16 MiB of /dev/shm for four", machine(host={"shm": Space(64 * 2**20, 16 * 2**20)}), "shared memory",
         "16 MiB free", "--shm-size=1g"),
        ("one launch at a time", machine(environment={"CUDA_LAUNCH_BLOCKING": "1"}), "CUDA_LAUNCH_BLOCKING",
         "collbench measures nothing", "unset CUDA_LAUNCH_BLOCKING"),
        ("one core for cores", machine((), backend="host", host={"cpus": (0,)}), "CPUs", "needs two", "taskset"),
        ("no torch for cores", machine((), backend="host", software={"torch": ""}), "torch", "gloo", "pip install"),
    ],
)  # fmt: skip
def test_what_prevents_a_run_fails_with_its_fix(
    what: str, facts: MachineFacts, name: str, message: str, fix: str
) -> None:
    finding = named(facts, name)
    assert (finding.level, message in finding.text, fix in finding.fix) == (Level.FAIL, True, True), (what, finding)
    assert status(judge(facts)) == 1


@pytest.mark.parametrize(
    ("what", "facts", "name", "message", "fix"),
    [
        ("a GPU off the bus", machine(driver={"on_the_bus": 5}), "GPUs", "1 more on PCI", "dmesg"),
        ("a task bound to half of its step", machine(driver={"on_the_bus": 8}, environment={"SLURM_GPUS_ON_NODE": "8"}),
         "GPUs", "Slurm's step has 4 more here, and NCCL has no P2P with GPUs that", "srun --gpu-bind=none"),
        ("cores of the far socket in a job", machine(host={"cpus": (64, 65)}), "NUMA", "GPU0 (0-63)",
         "Slurm: --gres-flags=enforce-binding"),
        ("one GPU left", machine(environment={"CUDA_VISIBLE_DEVICES": "3"}), "CUDA_VISIBLE_DEVICES", "leaves only GPU3",
         "two or more"),
        ("exclusive mode", with_third(compute_mode=3), "compute mode", "GPU2", "-c DEFAULT"),
        ("no persistence", machine(tuple(gpu(i, persistence=False) for i in range(4))), "persistence", "all 4 GPUs",
         "sudo nvidia-smi -i 0,1,2,3 -pm 1"),
        ("ECC errors", with_third(ecc_errors=2), "memory", "2 on GPU2", "--gpu-reset"),
        ("a repair to come", with_third(repair_pending=True), "memory", "GPU2", "--gpu-reset"),
        ("throttling", with_third(throttle=("HW thermal slowdown",)), "clocks", "GPU2: HW thermal", "cooling"),
        ("heat", with_third(temperature=87), "temperature", "GPU2 87 °C", "fans"),
        ("somebody at work", with_third(processes=1, memory_used=40 * GIB), "in use", "GPU2 (1, 40 GiB)", "wait"),
        ("refused peer access", machine(driver={"paths": pairs(4, "PHB", "CNS")}), "peer access",
         "CNS: chipset not supported", "topo -p2p r"),
        ("a link down", with_third(links_up=17), "NVLinks", "GPU2 17 of 18", "nvlink --status"),
        ("another NCCL than torch's", machine(software={"nccl": "2.27.3", "nccl_path": "/opt/libnccl.so.2"}),
         "torch's NCCL", "training loads this one", "unset COLLBENCH_NCCL"),
        ("NCCL preloaded", machine(environment={"LD_PRELOAD": "/x/libnccl.so.2"}), "LD_PRELOAD", "first", "unset"),
        ("torch without CUDA", machine(software={"torch_cuda": ""}), "torch", "no CUDA", "pip install"),
        ("docker's /dev/shm and an old driver", machine(driver={"cuda": "12.2"}, software={"torch_cuda": "12.1"},
         host={"shm": Space(64 * 2**20, 64 * 2**20)}), "shared memory", "NCCL may need 1 GiB", "--shm-size=1g"),
        ("memlock and InfiniBand", machine(host={"memlock": 8 * 2**20, "network_cards": ("mlx5_0",), "peermem": True}),
         "locked memory", "mlx5_0", "memlock=-1"),
        ("InfiniBand without peermem", machine(host={"network_cards": ("mlx5_0",)}), "GPU direct", "mlx5_0",
         "modprobe nvidia-peermem"),
        ("two cores for four GPUs", machine(host={"cpus": (0, 1)}), "CPUs", "for 4 GPUs", "cpus-per-task"),
        ("a CPU quota", machine(host={"cpu_quota": 2.5}), "CPU quota", "2.5 CPUs", "--cpus"),
        ("cores of the far socket", machine(host={"cpus": (64, 65, 66, 67)}), "NUMA", "GPU0 (0-63)", "taskset"),
        ("memory of the far socket", machine(host={"memory_nodes": (1,)}), "NUMA", "all 4 GPUs", "cpuset.mems"),
        ("an IOMMU before PCIe pairs", machine(driver={"paths": pairs(4, "PHB")},
         host={"iommu": True, "slots": {2: Slot("DMA-FQ")}}), "IOMMU", "GPU2", "iommu=pt"),
        ("ACS before PCIe pairs", machine(driver={"paths": pairs(4, "PIX")},
         host={"slots": {2: Slot("", ("0000:40:01.0",))}}), "ACS", "0000:40:01.0", "setpci -s 0000:40:01.0"),
        ("little memory for cores", machine((), backend="host", host={"memory_available": GIB}), "memory", "1 GiB",
         "--sizes"),
        ("one queue", machine(environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}), "CUDA_DEVICE_MAX_CONNECTIONS",
         "collbench measures no overlap", "unset CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)  # fmt: skip
def test_what_costs_speed_or_certainty_warns_with_its_fix(
    what: str, facts: MachineFacts, name: str, message: str, fix: str
) -> None:
    finding = named(facts, name)
    assert (finding.level, message in finding.text, fix in finding.fix) == (Level.WARN, True, True), (what, finding)
    assert status(judge(facts)) == 0


@pytest.mark.parametrize(
    ("what", "facts", "name", "message"),
    [
        ("GPUs kept from a container", machine(host={"container": "docker"}, driver={"on_the_bus": 8}), "GPUs",
         "4 more on PCI, not given to this container"),
        ("GPUs of other jobs", machine(driver={"on_the_bus": 8}, environment={"SLURM_GPUS_ON_NODE": "4"}), "GPUs",
         "4 more on PCI, not given to this step of Slurm"),
        ("an IOMMU where all is NVLink", machine(host={"iommu": True, "slots": {2: Slot("DMA")}}), "IOMMU", "no pair"),
        ("ACS where all is NVLink", machine(host={"slots": {2: Slot("", ("0000:40:01.0",))}}), "ACS", "no pair"),
        ("a small memlock and no InfiniBand", machine(host={"memlock": 65536}), "locked memory", "InfiniBand"),
        ("no nvidia-smi", machine(driver={"nvidia_smi": ""}), "nvidia-smi", "not on PATH"),
        ("a compatibility library", machine(driver={"cuda": "12.4"}), "libcuda", "the driver's own is 12.4"),
        ("cards without NVLink", machine(tuple(gpu(i, links_up=0) for i in range(2)),
         driver={"paths": pairs(2, "PHB")}), "labels", "1 × PHB"),
        ("half the GPUs in sight", machine(environment={"CUDA_VISIBLE_DEVICES": "2,0"}), "CUDA_VISIBLE_DEVICES",
         "GPU2, GPU0, 2 of 4"),
        ("GPU direct by the open modules", machine(host={"network_cards": ("mlx5_0",), "open_modules": True}),
         "GPU direct", "dma-buf"),
        ("the system's NCCL of the wheel's version", machine(software={"nccl_path": "/usr/lib/libnccl.so.2"}),
         "torch's NCCL", "the same version"),
        ("a virtual machine", machine(driver={"virtualization": "pass-through"}, host={"hypervisor": "QEMU"}), "system",
         "virtual machine (QEMU), GPU pass-through"),
    ],
)  # fmt: skip
def test_what_is_no_fault_is_reported_as_ok(what: str, facts: MachineFacts, name: str, message: str) -> None:
    finding = named(facts, name)
    assert (finding.level, message in finding.text, finding.fix) == (Level.OK, True, ""), (what, finding)


@pytest.mark.parametrize(
    ("what", "facts", "name"),
    [
        ("a version in other words", machine(driver={"version": "unknown"}), "driver"),
        ("modes that NVML does not tell", with_third(compute_mode=None), "compute mode"),
        ("persistence that NVML does not tell", with_third(persistence=None), "persistence"),
        ("errors that are not counted", with_third(ecc_errors=None), "memory"),
        ("peer access that NVML does not tell", machine(driver={"paths": pairs(4, "NV18", None)}), "peer access"),
        ("an NCCL inside torch", machine(software={"wheel": "", "wheel_version": ""}), "torch's NCCL"),
        ("bridges that only root may read", machine(host={"slots": {0: Slot("", (), 2)}}), "ACS"),
        ("GPUs that no CPUs are known to be near", machine((gpu(0, near=""), gpu(1, near="")),
         driver={"paths": pairs(2)}), "NUMA"),
    ],
)  # fmt: skip
def test_what_nobody_reported_is_unknown_and_fails_nothing(what: str, facts: MachineFacts, name: str) -> None:
    assert named(facts, name).level is Level.UNKNOWN, what
    assert status(judge(facts)) == 0


def test_gpus_out_of_sight_are_not_judged() -> None:
    facts = machine((*FOUR[:2], gpu(2, mig=True, links_up=3), FOUR[3]), environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert {finding.level for finding in judge(facts)} == {Level.OK}
    assert "1 pair: 1 × NV18" in named(facts, "labels").text


@pytest.mark.parametrize(
    ("names", "order", "visible", "warns"),
    [
        (("A", "B"), None, "1,0", True),
        (("A", "B"), "PCI_BUS_ID", "1,0", False),
        (("A", "A"), None, "1,0", False),
        (("A", "B"), None, "GPU-0,GPU-1", False),
    ],
)
def test_indices_are_doubted_where_cuda_orders_different_gpus_itself(
    names: tuple[str, str], order: str | None, visible: str, warns: bool
) -> None:
    two = tuple(gpu(i, name=name) for i, name in enumerate(names))
    environment = {"CUDA_VISIBLE_DEVICES": visible} | ({"CUDA_DEVICE_ORDER": order} if order else {})
    named_findings = [
        finding.name for finding in judge(machine(two, environment=environment, driver={"paths": pairs(2)}))
    ]
    assert ("CUDA_DEVICE_ORDER" in named_findings) == warns
