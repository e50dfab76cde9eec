"""Pairs that meet on the wires that their PCIe label names: what an audit of running them together has to try."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from collbench.machine.labels import is_pcie, rank_key
from collbench.model import Path

Members = tuple[int, ...]


def crossings(
    groups: Sequence[Members], paths: Mapping[frozenset[int], Path], rng: random.Random
) -> Iterator[list[Members]]:
    """Yield for each PCIe label disjoint pairs of it, all from the same side to the same other side while any are left.

    Sides are the devices that better labels join: of SYS the sockets, of PHB what lies below one PCIe switch. So many
    pairs as can cross the wire between two of them, which a label promises to no one alone.
    """
    for label in sorted({path.label for path in paths.values() if is_pcie(path.label)}):
        side = _sides(paths, label)
        alike = [pair for pair in groups if len(pair) == 2 and _has(paths, pair, label)]
        rng.shuffle(alike)
        alike.sort(key=lambda pair: (side[pair[0]], side[pair[1]]))
        together = _disjoint(alike)
        if len(together) > 1:
            yield together


def _has(paths: Mapping[frozenset[int], Path], pair: Members, label: str) -> bool:
    path = paths.get(frozenset(pair))
    return path is not None and path.label == label


def _sides(paths: Mapping[frozenset[int], Path], label: str) -> dict[int, int]:
    """Return for each device the lowest one that better PCIe labels join it to; NVLinks have wires of their own."""
    side = {device: device for pair in paths for device in pair}
    for pair, path in paths.items():
        word = path.ancestor or path.label
        if is_pcie(word) and rank_key(word) < rank_key(label):
            joined = [side[device] for device in pair]
            side = {device: min(joined) if found in joined else found for device, found in side.items()}
    return side


def _disjoint(pairs: Sequence[Members]) -> list[Members]:
    """Return the pairs in their order, but those that share a device with an earlier one."""
    taken: set[int] = set()
    found = []
    for pair in pairs:
        if not taken & set(pair):
            taken |= set(pair)
            found.append(pair)
    return found
