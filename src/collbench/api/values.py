"""Values from Python, each checked and as the command line has it: what is wrong with one is a UsageError."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from collbench.model.errors import UsageError
from collbench.model.units import fixed, parse_size


def path(value: object) -> Path:
    """Return a file's path."""
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{value!r} names no file: write its path")
    return Path(value)


def flag(name: str, value: object) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is neither True nor False")
    return value


def whole(name: str, value: object, least: int = 0) -> int:
    """Return a whole number from `least` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}={value!r} is not a whole number from {least}")
    return value


def number(name: str, value: object, below: float | None = None) -> float:
    """Return a number above 0, and below another."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    if not good or (below is not None and isinstance(value, int | float) and value >= below):
        limit = "" if below is None else f" and below {fixed(below)}"
        raise UsageError(f"{name}={value!r} is not a number above 0{limit}")
    return float(value)  # type: ignore[arg-type]


def text(name: str, value: object, choices: Collection[str] = ()) -> str:
    """Return a text, one of the known ones where there are any."""
    if not isinstance(value, str) or (choices and value not in choices):
        listing = f"one of {', '.join(choices)}" if choices else "a word"
        raise UsageError(f"{name}={value!r} is unknown: write {listing}")
    return value


def size(value: object) -> int:
    """Return a size in bytes, given as a number of them or in words."""
    if isinstance(value, str):
        return parse_size(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"size {value!r} is not a number of bytes: write 67108864 or '64M'")
    return value


def several(value: object) -> list[Any]:
    """Return the values of an iterable, or the one value."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else [value]


def listed(name: str, value: object) -> str:
    """Return numbers and words, at least one, with commas between them."""
    texts = []
    for item in several(value):
        if isinstance(item, bool) or not isinstance(item, int | str):
            raise UsageError(f"{name} has {item!r}, which is neither a number nor a word")
        texts.append(str(item))
    if not texts:
        raise UsageError(f"{name}={value!r} is empty: leave it out to use all")
    return ",".join(texts)


def excluded(value: object) -> str | None:
    """Return indices and UUIDs of a list, with commas between them; None for none."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise UsageError(f"exclude={value!r} is not a list of GPUs: write [0, 3], or a list of UUIDs")
    gpus = list(value)
    return listed("exclude", gpus) if gpus else None
