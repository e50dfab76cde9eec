"""Sentences in lines of so many columns."""

from __future__ import annotations

import textwrap

WIDE = 100  # columns, where no terminal says fewer
NAME_WIDE = 10  # of what stands before a sentence: "typical   a pair carries …"


def filled(text: str, width: int, first: str = "", rest: str = "") -> str:
    """Return the text in lines that begin with `first`, then `rest`; a word longer than a line stays whole."""
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def named(line: str, width: int) -> str:
    """Return a line of name and sentence in lines, the sentence below itself."""
    return filled(line[NAME_WIDE:], width, line[:NAME_WIDE], " " * NAME_WIDE)
