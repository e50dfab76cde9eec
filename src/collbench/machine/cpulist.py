"""The kernel's CPU lists, such as "0-3,8": read and written."""

from __future__ import annotations

from collections.abc import Iterable


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPUs of a kernel list such as "0-3,8"; an empty text gives none."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the shortest kernel list of these CPUs: 0, 1, 2, 8 → "0-2,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
