"""The capacity of a path in one direction, in GB/s (1e9 B/s), with the source of every constant (method/verdicts.md 2).

NVLink limits are links × *data* rate. NVML reports the *line* rate, which on newer links includes the line code:
an H200 says 26.5625 GB/s, and 16/17 of it is data: 25 GB/s, the figure NVIDIA publishes (18 links, 900 GB/s both
ways). The line rate would put the limit of NV18 at 478 GB/s, which no byte of a user's can reach.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from collbench.model.run import Device
from collbench.model.units import fixed

# NVML's line rate in MB/s → data rate in GB/s. Raw values as `nvidia-smi nvlink -s` prints them.
_DATA_RATE_GBS = {
    20000: 20.0,  # P100
    25000: 25.0,  # A100
    25781: 25.0,  # V100, TITAN RTX: 25 × 66/64, the line code's overhead
    26562: 25.0,  # H100, H200: 25 × 17/16 [H200x4]
    53125: 50.0,  # B200, B300: 50 × 17/16
    14062: 14.0625,  # GA102 (RTX 3090, A6000, A40): published as 56.25 GB/s each way over 4 links
}

# Data rate in GB/s per NVLink by CUDA compute capability, for drivers that report no rate [method/verdicts.md 2, but
# for 7.5: TITAN RTX's product page, 100 GB/s both ways over 2 links; 10.3 (B300) reports the same rate as B200].
_RATE_BY_CAPABILITY = {
    (6, 0): 20.0,
    (7, 0): 25.0,
    (7, 5): 25.0,
    (8, 0): 25.0,
    (8, 6): 14.0625,
    (9, 0): 25.0,
    (10, 0): 50.0,
    (10, 3): 50.0,
}

# GB/s one way of a ×16 slot by generation: 2.5 and 5 GT/s × 16 lanes × 8/10 (line code) / 8, then 8, 16, 32 GT/s × 16 ×
# 128/130 / 8 [docs/method/verdicts.md 2].
_PCIE_X16_GBS = {1: 4.0, 2: 8.0, 3: 15.75, 4: 31.5, 5: 63.0}
FASTEST_SLOT_GBS = max(_PCIE_X16_GBS.values())  # for a slot that nothing reports


# Above the first share of its limit, a path takes NVLinks that no label shows; below the second, it lacks links or runs
# them slower (docs/method/verdicts.md 3, 5).
HIDDEN, DEGRADED = 1.05, 0.7


class Product(NamedTuple):
    """The most of any board of a name. The defaults stand for a name that is not known: the most of any product."""

    nvlinks: int = 18  # Hopper, Blackwell
    nvlink_gbs: float = 900.0  # one way, of all its NVLinks [NVIDIA's product pages]: 18 × 50 GB/s of a B200
    memory_gbs: float | None = None  # of its own memory, reads and writes together [NVIDIA's data sheets]


_PRODUCTS = {
    "TITAN RTX": Product(memory_gbs=672.0),
    "RTX 2080 Ti": Product(2, 50.0),  # by a bridge
    "P100": Product(4, 80.0, 732.0),
    "V100-SXM2": Product(6, 150.0, 900.0),
    "V100": Product(6, 150.0, 1134.0),  # V100S
    "A40": Product(4, 56.25, 696.0),  # as A6000, by one bridge
    "A6000": Product(4, 56.25, 768.0),
    "A100": Product(12, 300.0, 2039.0),
    "A800": Product(8, 200.0, 2039.0),
    "H800": Product(8, 200.0, 3938.0),
    "H100": Product(18, 450.0, 3938.0),  # NVL, a board's share; SXM has 3350
    "H200": Product(18, 450.0, 4800.0),
    "B200": Product(18, 900.0, 8000.0),
    "B300": Product(18, 900.0, 8000.0),
}
_NO_NVLINKS = ("RTX 4090", "RTX 5090", "RTX PRO 6000")  # nor a bridge for any [NVIDIA's product pages]
# GPUs whose host memory is behind NVLink-C2C: 900 GB/s both ways [NVIDIA's Grace Hopper and Grace Blackwell pages].
_ON_GRACE, _C2C_GBS = ("GH200", "GB200", "GB300"), 450.0


class Theory(NamedTuple):
    """A one-way limit in GB/s and, in words, where it comes from."""

    gbs: float
    source: str


def slowest(limits: Iterable[Theory | None]) -> Theory | None:
    """Return the lowest of the limits that are known; None if none is."""
    return min((limit for limit in limits if limit), key=lambda limit: limit.gbs, default=None)


def nvlink(
    links: int, *, capability: tuple[int, int] | None, line_mbps: int | None, through_switch: bool = False
) -> Theory | None:
    """Return the one-way limit of `links` NVLinks in GB/s; None if neither rate nor GPU is known.

    `line_mbps` is the rate per link that NVML reports, in MB/s; `capability` decides where NVML is silent.
    """
    rate, origin = _nvlink_rate(capability, line_mbps)
    if links < 1 or rate is None:
        return None
    switch = " through an NVSwitch" if through_switch else ""
    return Theory(links * rate, f"{links} × {fixed(rate, 6)} GB/s{switch}; {origin}")


def _nvlink_rate(capability: tuple[int, int] | None, line_mbps: int | None) -> tuple[float | None, str]:
    """Return GB/s of data per link and its origin. An unknown line rate is used as it is: it is still a limit."""
    if line_mbps is not None and line_mbps > 0:
        # Drivers round the fraction either way (26562.5), hence ± 1 MB/s.
        near = (line_mbps, line_mbps - 1, line_mbps + 1)
        rate = next((_DATA_RATE_GBS[mbps] for mbps in near if mbps in _DATA_RATE_GBS), line_mbps / 1000)
        return rate, f"line rate {fixed(line_mbps / 1000, 6)} GB/s, as NVML reports"
    if capability is None:
        return None, ""
    major, minor = capability
    return _RATE_BY_CAPABILITY.get(capability), f"known rate of compute capability {major}.{minor}, NVML reports none"


def pcie(generation: int | None, width: int | None) -> Theory | None:
    """Return the one-way limit in GB/s of a PCIe link of `width` lanes; None if the generation is not known."""
    if generation not in _PCIE_X16_GBS or not width:
        return None
    return Theory(_PCIE_X16_GBS[generation] * width / 16, f"PCIe gen {generation} ×{width}")


def product(name: str) -> Product:
    """Return the most of any board of a GPU's product name."""
    return next((product for part, product in _PRODUCTS.items() if part in name), Product())


def may_have_nvlinks(name: str) -> bool:
    """Return whether GPUs of this product name may be joined by NVLinks, such as those of a bridge."""
    return not any(part in name for part in _NO_NVLINKS)


def slot(device: Device) -> Theory | None:
    """Return the one-way limit of what joins a device to its host: its PCIe slot at its best; None if not known."""
    if any(part in device.name for part in _ON_GRACE):
        return Theory(_C2C_GBS, "NVLink-C2C")
    return pcie(device.pcie_generation, device.pcie_width)
