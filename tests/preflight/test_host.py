"""Facts about the host, read from a made-up root: any file may be missing, unreadable or malformed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from collbench.machine import kernel
from collbench.model.run import Device
from collbench.preflight import collect
from collbench.preflight.collect import acs_control, cpu_quota, slot
from collbench.preflight.findings import Slot
from tests.machine.roots import put, write


@pytest.mark.parametrize(
    ("what", "files", "environment", "kind"),
    [
        ("nothing", {}, {}, ""),
        ("docker's mark", {".dockerenv": ""}, {}, "docker"),
        ("podman's mark", {"run/.containerenv": ""}, {}, "podman"),
        ("a pod, in docker", {".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ("apptainer's variable", {}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ("a cgroup's name", {"proc/1/cgroup": "0::/kubepods.slice/pod1\n"}, {}, "kubernetes"),
        ("systemd's variable", {}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
    ],
)
def test_containers_are_known_by_what_they_leave(
    tmp_path: Path, what: str, files: dict[str, str], environment: dict[str, str], kind: str
) -> None:
    write(tmp_path, files)
    assert kernel.container_kind(tmp_path, environment) == kind, what


@pytest.mark.parametrize(
    ("files", "hypervisor"),
    [
        ({}, ""),
        ({"proc/cpuinfo": "flags\t: fpu vme sse\n"}, ""),
        ({"proc/cpuinfo": "flags\t: fpu hypervisor sse\n", "sys/class/dmi/id/product_name": "KVM\n",
          "sys/class/dmi/id/sys_vendor": "QEMU\n"}, "QEMU KVM"),
        ({"proc/cpuinfo": "flags\t: fpu hypervisor\n"}, "unknown hypervisor"),
        ({"sys/hypervisor/type": "xen\n"}, "xen"),
    ],
)  # fmt: skip
def test_virtual_machines_are_known_by_the_kernels_files(
    tmp_path: Path, files: dict[str, str], hypervisor: str
) -> None:
    write(tmp_path, files)
    assert collect.hypervisor(tmp_path) == hypervisor


def test_a_host_without_any_file_has_unknown_facts_and_no_error(tmp_path: Path) -> None:
    facts = collect.host(tmp_path, {}, [Device(index=0, uuid="GPU-0", name="H200", pci_bus_id="00000000:01:00.0")])
    assert (facts.shm, facts.iommu, facts.container, facts.hypervisor) == (None, None, "", "")
    assert facts.slots == {0: Slot()}
    assert facts.network_cards == ()


def test_a_host_with_files_has_their_facts(tmp_path: Path) -> None:
    for folder in ("dev/shm", "sys/class/iommu/dmar0", "sys/class/infiniband/mlx5_1", "sys/class/infiniband/mlx5_0"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    put(tmp_path, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580\n")
    facts = collect.host(tmp_path, {}, [])
    assert (facts.iommu, facts.network_cards) == (True, ("mlx5_0", "mlx5_1"))
    assert (facts.peermem, facts.open_modules) == (True, True)
    assert facts.shm is not None
    assert facts.shm.total > 0


def test_what_was_told_to_the_kernel_and_to_the_drivers_module_is_read(tmp_path: Path) -> None:
    put(tmp_path, "proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 amd_iommu=on iommu=pt quiet\n")
    settings = 'RegistryDwords: "ForceP2P=0x11;RMForceP2PType=1"\nRegistryDwordsPerDevice: ""\n'
    put(tmp_path, "proc/driver/nvidia/params", f"EnableMSI: 1\n{settings}")
    facts = collect.host(tmp_path, {}, [])
    assert facts.iommu_parameters == ("amd_iommu=on", "iommu=pt")
    assert facts.registry == "ForceP2P=0x11;RMForceP2PType=1"


def config(control: int, position: int = 0x140) -> bytes:
    """Return a bridge's configuration space: AER (0x0001) at 0x100, then ACS (0x000D) with its control register."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, position << 20 | 1 << 16 | 0x0001)
    struct.pack_into("<IHH", space, position, 1 << 16 | 0x000D, 0x5F, control)
    return bytes(space)


def loop() -> bytes:
    """Return a configuration space whose list of capabilities runs in a circle."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x100 << 20 | 1 << 16 | 0x0001)
    return bytes(space)


@pytest.mark.parametrize(
    ("what", "content", "control"),
    [
        ("lspci's ACSCtl: SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+", config(0x1D), 0x1D),
        ("all off", config(0), 0),
        ("no ACS", bytes(4096), 0),
        ("a circle", loop(), 0),
        ("the 64 bytes that users get", bytes(64), None),
        ("nothing", b"", None),
    ],
)
def test_the_acs_register_is_found_in_the_configuration_space(
    tmp_path: Path, what: str, content: bytes, control: int | None
) -> None:
    put(tmp_path, "config", content)
    assert acs_control(tmp_path) == control, what


def test_the_way_up_from_a_gpu_is_read(tmp_path: Path) -> None:
    port = "sys/devices/pci0000:40/0000:40:01.0"
    gpu = tmp_path / port / "0000:41:00.0/0000:42:00.0"
    put(gpu, "vendor", "0x10de\n")
    put(tmp_path / port, "config", config(0x1D))
    put(gpu.parent, "config", bytes(64))
    put(tmp_path, "sys/kernel/iommu_groups/7/type", "DMA-FQ\n")
    (gpu / "iommu_group").symlink_to(tmp_path / "sys/kernel/iommu_groups/7")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:42:00.0").symlink_to(gpu)
    assert slot(tmp_path, "00000000:42:00.0") == Slot("DMA-FQ", ("0000:40:01.0",), 1)


def test_source_validation_by_itself_redirects_nothing(tmp_path: Path) -> None:
    put(tmp_path, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    assert slot(tmp_path, "00000000:01:00.0").redirecting == ()
    put(tmp_path / "0000:00:01.0", "config", config(0x01))
    gpu = tmp_path / "0000:00:01.0/0000:02:00.0"
    gpu.mkdir()
    (tmp_path / "sys/bus/pci/devices/0000:02:00.0").symlink_to(gpu)
    assert slot(tmp_path, "00000000:02:00.0") == Slot("", (), 0)


@pytest.mark.parametrize("odd", ["", "nonsense", "zz:01:00.0", "00000000:../../etc"])
def test_an_invalid_bus_id_gives_no_facts(tmp_path: Path, odd: str) -> None:
    assert slot(tmp_path, odd) == Slot()


@pytest.mark.parametrize(
    ("what", "files", "quota"),
    [
        ("none", {}, None),
        ("v2, no limit", {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
        ("v2, the parent is tighter", {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
         "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n"}, 1.5),
        ("v1", {"proc/self/cgroup": "2:cpu,cpuacct:/d\n", "sys/fs/cgroup/cpu/d/cpu.cfs_quota_us": "400000\n",
         "sys/fs/cgroup/cpu/d/cpu.cfs_period_us": "100000\n"}, 4.0),
        ("v1, no limit", {"proc/self/cgroup": "2:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("a line that is none", {"proc/self/cgroup": "garbage\n0::/a\n", "sys/fs/cgroup/a/cpu.max": "x y z\n"}, None),
    ],
)  # fmt: skip
def test_the_tightest_cpu_quota_above_the_process_counts(
    tmp_path: Path, what: str, files: dict[str, str], quota: float | None
) -> None:
    write(tmp_path, files)
    assert cpu_quota(tmp_path) == quota, what
