"""Sentences wrapped to a width: what needs neither rich nor numpy."""

from __future__ import annotations

import textwrap

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
    return filled(line[hang:], width, line[:hang], " " * hang) or line  # a name alone, such as "GPU0, GPU1"
