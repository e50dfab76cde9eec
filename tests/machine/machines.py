"""Named machines as NVML would describe them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.machine.fake_nvml import SWITCH, FakeGpu, FakeNvml


def h200x4() -> FakeNvml:
    """Four H200 behind NVSwitches that the virtual machine does not see [method/verdicts.md, tests/data/h200x4]."""
    health = {
        "nvmlDeviceGetPowerUsage": 90_000,
        "nvmlDeviceGetTemperature": 38,
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetComputeRunningProcesses": [],
    }
    return FakeNvml(
        [
            FakeGpu(
                uuid=f"GPU-{i}",
                pci=f"00000000:00:{6 + i:02X}.0",
                links=[SWITCH] * 18,
                line_mbps=26562,
                answers=dict(health),
            )
            for i in range(4)
        ]
    )


def v100_mesh(links: Sequence[Sequence[int]]) -> FakeNvml:
    """V100s joined directly, links[i][j] NVLinks between GPU i and j; 25.781 GB/s each, rate given in common only."""
    ids = [f"00000000:{0x06 + i:02X}:00.0" for i in range(len(links))]
    gpus = [
        FakeGpu(
            uuid=f"GPU-{i}",
            pci=ids[i],
            name="Tesla V100-SXM2-16GB",
            capability=(7, 0),
            links=[ids[j] for j, count in enumerate(row) for _ in range(count)],
            common_mbps=25781,
            pcie=(3, 16),
        )
        for i, row in enumerate(links)
    ]
    return FakeNvml(gpus, ancestor=50)


def bare_pcie() -> FakeNvml:
    """Two consumer GPUs, gen 4 ×16 and ×8, where nearly every question is "not supported"."""
    nothing = {"cpu_words": None, "node_words": None, "virtualization": None}
    name = "NVIDIA GeForce RTX 4090"
    return FakeNvml(
        [
            FakeGpu("GPU-a", "00000000:01:00.0", name, (8, 9), pcie=(4, 16), **nothing),  # type: ignore[arg-type]
            FakeGpu("GPU-b", "00010000:02:00.0", name, (8, 9), pcie=(4, 8), **nothing),  # type: ignore[arg-type]
        ],
        peers={0: 2, 1: 2},
    )
