"""Figures of healthy machines that others published or that were measured here; figures.json beside this holds them.

The file holds what its sources say and nothing else; what is made of it stands here. docs/reference-figures.schema.json
describes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from collbench.operations import Operation, Variant

# A measured figure holds for other machines of its kind within ±5 %: where two sources measured the same thing, they
# differ by up to 4 % (8 × H200, all-reduce at 8G: 473 and 480; H100 links by one tool: 363 to 394).
_AROUND = 0.05


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what it is of, GB/s (busbw; of copies the bytes of all messages over the time), and where it is from.

    `gpus` and `links` are patterns: of the product name, and of the label of every pair among the members ("" for one
    device). `ranks` are members; `sizes` the smallest and the largest message in bytes that it speaks for. It has
    either `measured`, values of healthy machines, or `at_least`, what an acceptance test asks for. `nvls` is "on" or
    "off" where NCCL's use of NVLink SHARP matters.
    """

    gpus: str
    machine: str
    links: str
    operation: Operation
    ranks: int
    sizes: tuple[int, int]
    conditions: str
    source: str
    variant: Variant = Variant.PLAIN
    measured: tuple[float, ...] = ()
    at_least: float | None = None
    nvls: str | None = None
    nccl: str = ""

    @property
    def band(self) -> tuple[float, float | None]:
        """What is normal, GB/s: from and to; an acceptance test has no upper end."""
        if self.at_least is not None:
            return self.at_least, None
        return min(self.measured) * (1 - _AROUND), max(self.measured) * (1 + _AROUND)

    def is_of(self, name: str) -> bool:
        """Return whether it speaks for GPUs with this product name."""
        return re.search(self.gpus, name) is not None

    def links_are(self, label: str) -> bool:
        """Return whether it speaks for a pair with this label."""
        return re.fullmatch(self.links, label) is not None


def check(figure: Figure) -> None:
    """Raise ValueError where the fields of a figure do not fit each other."""
    for pattern in (figure.gpus, figure.links):
        re.compile(pattern)
    if bool(figure.measured) == (figure.at_least is not None):
        raise ValueError(f"{figure.machine}, {figure.operation}: give either 'measured' or 'at_least'")
    if not all(value > 0 for value in (*figure.measured, figure.at_least or 1.0)):
        raise ValueError(f"{figure.machine}, {figure.operation}: a bandwidth is above 0 GB/s")
    if not 0 < figure.sizes[0] <= figure.sizes[1]:
        raise ValueError(f"{figure.machine}, {figure.operation}: sizes go from the smaller to the larger")
    if figure.nvls not in (None, "on", "off"):
        raise ValueError(f"{figure.machine}, {figure.operation}: 'nvls' is on, off or null")
