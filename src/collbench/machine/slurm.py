"""Slurm's lists of nodes: "node[01-16,20]"."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import groupby, product

from collbench.model.errors import UsageError
from collbench.model.units import number_ranges

_MAX_NODES = 1 << 16
# A name's pieces: text, or numbers and ranges in brackets; a name ends at a comma outside brackets.
_PIECE = re.compile(r"[^\[\],\s]+|\[[\d,-]+\]", re.ASCII)
_NAME = re.compile(rf"(?:{_PIECE.pattern})+", re.ASCII)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d{0,8})", re.ASCII)


def expand_node_list(text: str) -> tuple[str, ...]:
    """Return the names in a node list, in order. Raises UsageError."""
    names: list[str] = []
    position, text = 0, text.strip()
    while True:
        match = _NAME.match(text, position)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            raise UsageError(f"node list '{text}' cannot be read: write names and ranges as Slurm does, node[01-16,20]")
        pieces = [_choices(piece, text) for piece in _PIECE.findall(match[0])]
        if len(names) + math.prod(map(len, pieces)) > _MAX_NODES:
            raise UsageError(f"node list '{text}' has more than {_MAX_NODES:,} nodes")
        names += map("".join, product(*pieces))
        if match.end() == len(text):
            return tuple(names)
        position = match.end() + 1


def _choices(piece: str, text: str) -> list[str]:
    """Return what may stand in a name's piece: itself, or the numbers of its brackets with their leading zeros."""
    if not piece.startswith("["):
        return [piece]
    numbers: list[str] = []
    for part in piece[1:-1].split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first or last - first >= _MAX_NODES:
            raise UsageError(f"node list '{text}' cannot be read: '{part}' is not a range of numbers")
        numbers += (str(number).zfill(len(match[1])) for number in range(first, last + 1))
    return numbers


def format_node_list(names: Sequence[str]) -> str:
    """Return names as Slurm lists them, in their order: "node[0-16,18],login"."""
    parts = [_NUMBERED.fullmatch(name) for name in names]
    split = [(part[1], int(part[2])) if part else (name, -1) for name, part in zip(names, parts, strict=True)]
    spelled: list[str] = []
    for (prefix, whole), group in groupby(split, key=lambda name: (name[0], name[1] < 0)):
        numbers = [number for _, number in group]
        if whole:
            spelled += [prefix] * len(numbers)
            continue
        inside = number_ranges(numbers)
        spelled.append(f"{prefix}{inside}" if len(numbers) == 1 else f"{prefix}[{inside}]")
    return ",".join(spelled)
