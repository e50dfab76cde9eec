"""Sentences wrapped to a width, and the names of sets of devices: what needs neither rich nor numpy."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from collbench.model.run import Device, tags

WIDE = 100  # columns, where no terminal says fewer
NARROW = 80  # columns of a page that does not ask the terminal
NAME_WIDE = 10  # columns of the name before a sentence: "typical   a pair reaches …"


def filled(text: str, width: int, first: str = "", rest: str = "") -> str:
    """Return the text in lines that begin with `first`, then `rest`; a word longer than a line stays whole."""
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def named(line: str, width: int, hang: int = NAME_WIDE) -> str:
    """Return a line of name and sentence wrapped to `width`, further lines below the sentence, which is at `hang`."""
    return filled(line[hang:], width, line[:hang], " " * hang)


def device_sets(sets: Sequence[Sequence[int]], devices: Sequence[Device]) -> str:
    """Return the names of sets of devices: "GPU2-GPU3; GPU4"; "an unknown device" for an empty one."""
    names = (tags(device_set, devices, "-" if len(device_set) == 2 else ", ") for device_set in sets)
    return "; ".join(name or "an unknown device" for name in names)
