"""The facts of a healthy machine as `doctor` collects them, and ways to change one fact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from collbench.model.run import Device, Health, Path
from collbench.preflight.findings import Driver, Finding, GpuState, Host, MachineFacts, Slot, Software, Space
from collbench.preflight.judge import judge
from tests.builders import nvml_says

GIB = 2**30


def gpu(index: int, name: str = "NVIDIA H200", near: str = "0-63", **changes: Any) -> GpuState:
    """Return one healthy GPU: CPUs 0-63 near it (none known for ""), 18 NVLinks up, no process on it."""
    device = Device(
        index=index,
        uuid=f"GPU-{index}aaaaaaa-0000",
        name=name,
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        numa_node=0 if near else None,
        cpu_affinity=near,
    )
    healthy = GpuState(
        device=device,
        health=Health(ecc_errors=0, processes=0, memory_used=0, temperature=31),
        compute_mode=0,
        persistence=True,
        mig=False,
        repair_pending=False,
        repair_failed=False,
        fabric_state=3,
        links_up=18,
    )
    of_health = {name: changes.pop(name) for name in Health.__slots__ if name in changes}
    return replace(healthy, health=replace(healthy.health, **of_health), **changes)


def pairs(count: int, label: str = "NV18", peer_access: str | None = "OK") -> tuple[Path, ...]:
    """Return equal paths for every pair of `count` GPUs."""
    ends = [(i, j) for i in range(count) for j in range(i + 1, count)]
    reported = None if peer_access is None else nvml_says(peer_access)
    return tuple(Path(end, label, peer_access=reported) for end in ends)


def machine(
    gpus: tuple[GpuState, ...] | None = None,
    *,
    environment: dict[str, str] | None = None,
    backend: str = "cuda",
    host: dict[str, Any] | None = None,
    driver: dict[str, Any] | None = None,
    software: dict[str, Any] | None = None,
    **changes: Any,
) -> MachineFacts:
    """Return the facts of four healthy H200 with a test's changes."""
    four = tuple(gpu(index) for index in range(4)) if gpus is None else gpus
    nccl = "/site/nvidia/nccl/lib/libnccl.so.2"
    facts = MachineFacts(
        backend=backend,
        host=replace(
            Host(
                name="node7",
                system="Linux 6.1 x86_64",
                shm=Space(64 * GIB, 64 * GIB),
                memlock=-1,
                cpus=tuple(range(64)),
                memory_nodes=(0,),
                memory_available=500 * GIB,
                iommu=False,
                slots={slot_gpu.device.index: Slot() for slot_gpu in four},
            ),
            **host or {},
        ),
        driver=replace(
            Driver("580.159.04", "13.0", gpus=four, paths=pairs(len(four)), on_the_bus=4, nvidia_smi="/bin/nvidia-smi"),
            **driver or {},
        ),
        software=replace(Software("2.28.9", nccl, "", nccl, "2.28.9", "13.0", "", "2.9.0", "13.0"), **software or {}),
        environment=environment or {},
    )
    return replace(facts, **changes)


def named(facts: MachineFacts, name: str) -> Finding:
    """Return the only finding of this name; fails the test if there are none or several."""
    findings = [finding for finding in judge(facts) if finding.name == name]
    assert len(findings) == 1, [finding.name for finding in judge(facts)]
    return findings[0]
