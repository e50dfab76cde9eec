"""Values from Python, each checked and as the command line has it: what is wrong with one is a UsageError."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from collbench.model.errors import UsageError
from collbench.model.units import fixed, parse_size


def path(given: object) -> Path:
    """Return a file's path."""
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"{given!r} names no file: write its path")
    return Path(given)


def flag(name: str, given: object) -> bool:
    """Return True or False."""
    if not isinstance(given, bool):
        raise UsageError(f"{name}={given!r} is neither True nor False")
    return given


def whole(name: str, given: object, least: int = 0) -> int:
    """Return a whole number from `least` on."""
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise UsageError(f"{name}={given!r} is not a whole number from {least}")
    return given


def number(name: str, given: object, below: float | None = None) -> float:
    """Return a number above 0, and below another."""
    good = isinstance(given, int | float) and not isinstance(given, bool) and given > 0
    if not good or (below is not None and isinstance(given, int | float) and given >= below):
        limit = "" if below is None else f" and below {fixed(below)}"
        raise UsageError(f"{name}={given!r} is not a number above 0{limit}")
    return float(given)  # type: ignore[arg-type]


def text(name: str, given: object, known: Collection[str] = ()) -> str:
    """Return a text, one of the known ones where there are any."""
    if not isinstance(given, str) or (known and given not in known):
        listing = f"one of {', '.join(known)}" if known else "a word"
        raise UsageError(f"{name}={given!r} is unknown: write {listing}")
    return given


def size(given: object) -> int:
    """Return a size in bytes, given as a number of them or in words."""
    if isinstance(given, str):
        return parse_size(given)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise UsageError(f"size {given!r} is not a number of bytes: write 67108864 or '64M'")
    return given


def several(given: object) -> list[Any]:
    """Return the values of an iterable, or the one value."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]


def listed(name: str, given: object) -> str:
    """Return numbers and words, at least one, with commas between them."""
    texts = []
    for one in several(given):
        if isinstance(one, bool) or not isinstance(one, int | str):
            raise UsageError(f"{name} has {one!r}, which is neither a number nor a word")
        texts.append(str(one))
    if not texts:
        raise UsageError(f"{name}={given!r} is empty: leave it out to use all")
    return ",".join(texts)


def excluded(given: object) -> str | None:
    """Return indices and UUIDs of a list, with commas between them; None for none."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"exclude={given!r} is not a list of GPUs: write [0, 3], or a list of UUIDs")
    gpus = list(given)
    return listed("exclude", gpus) if gpus else None
