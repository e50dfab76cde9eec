"""The shipped file of reference figures."""

from __future__ import annotations

import json
from importlib import resources

from collbench.plain import build
from collbench.reference.figures import Figure, check

_NAME = "figures.json"
_FORMAT, _VERSION = "collbench-figures", 1


def load() -> tuple[Figure, ...]:
    """Return the shipped figures. Raises ValueError for a file that is none: it is a part of the program."""
    text = resources.files("collbench.reference").joinpath(_NAME).read_text(encoding="utf-8")
    data = json.loads(text)
    if (data.get("format"), data.get("format_version")) != (_FORMAT, _VERSION):
        raise ValueError(f"{_NAME} is not {_FORMAT} {_VERSION}")
    figures: tuple[Figure, ...] = build(tuple[Figure, ...], data["figures"], "figures")
    for figure in figures:
        check(figure)
    return figures
