"""The values in a file of another tool. A value has the expected type, or it is dropped."""

from __future__ import annotations

import json
import math
from typing import Any, TypeGuard

from collbench.jobs.job import MOST_RANKS

MOST_ELEMENTS = 2**50


class Unreadable(Exception):
    """Why a file is not a readable trace."""


def fields(value: Any) -> dict[Any, Any]:
    """Return an object's fields; {} of what is none."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return a list's items; [] of what is none."""
    return list(value) if isinstance(value, list | tuple) else []


def text(value: Any) -> str:
    """Return a text; "" of what is none."""
    return value if isinstance(value, str) else ""


def natural(value: Any) -> TypeGuard[int]:
    """True for a whole number from 0 on, of less than 63 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def number(value: Any) -> float:
    """Return a number from 0 on, as large as moments in UTC at most; NaN of what is none."""
    real = float(value) if isinstance(value, int | float) and abs(value) < 2**53 else math.nan
    return real if real >= 0 and math.isfinite(real) else math.nan


def hashable(value: Any) -> int | str | None:
    """Return a number or text that can be a dictionary key; None for anything else.

    Whole numbers of more bits can be made to have one hash, and each then takes as long as all before it.
    """
    return value if natural(value) or isinstance(value, str) else None


def rank(value: Any) -> int | None:
    """Return a rank; None of what cannot be one."""
    return value if natural(value) and value < MOST_RANKS else None


def size(value: Any) -> int:
    """Return how many ranks there are; 0 if it is not said."""
    return rank(value) or 0


def naturals(value: Any) -> list[int]:
    """Return the numbers of a list, or of its text "[0, 1]"; none of what is cut short or no such list."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return items(value) if all(map(natural, items(value))) else []


def ranks(value: Any) -> tuple[int, ...]:
    """Return ranks of a list or its text; () of what is no list of different ranks."""
    numbers = naturals(value)
    return tuple(numbers) if len(set(numbers)) == len(numbers) and max(numbers, default=0) < MOST_RANKS else ()


def elements(value: Any) -> int:
    """Return a tensor's elements; −1 of what cannot be their number."""
    return value if natural(value) and value < MOST_ELEMENTS else -1


def shaped(shapes: Any) -> list[int]:
    """Return the elements of each tensor by its shape; −1 of what is none."""
    sizes = []
    for shape in map(items, items(shapes)):
        known = len(shape) < 64 and all(map(natural, shape))
        sizes.append(elements(math.prod(shape)) if known else -1)
    return sizes
