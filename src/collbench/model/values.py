"""What a value may be that comes from a file or a machine: numbers in a range, and text that is safe to print.

`runfile/codec.py` refuses a number outside its field's range, so nobody else has to check it. A run file, a device, a
variable or a file may have any name: a terminal, a page or a table shows it and never obeys it. Characters that would
move a cursor, change the order of the letters or begin a new line are written as in JSON: \\u001b. So JSON stays the
same JSON.
"""

from __future__ import annotations

import json
import math
import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import Annotated, Any

# Numbers.


@dataclass(frozen=True, slots=True)
class Range:
    """From `least` to `most`; `words` say it in an error: "is -1, not 0 or more"."""

    least: float
    most: float
    words: str

    def __contains__(self, number: float) -> bool:
        """True if the number lies in the range; NaN does not."""
        return self.least <= number <= self.most


# Sums and products of a few numbers must stay in 64 bits, and in a float: 2^60 B are an EiB, 10^15 s 30 million years.
# No clock resolves 10^-15 s.
_MAX_INT, _MAX_FLOAT, _MIN_FLOAT = 2**60, 1e15, 1e-15

FINITE = Range(-sys.float_info.max, sys.float_info.max, "a finite number")  # of a float without a range
Whole = Annotated[int, Range(-_MAX_INT, _MAX_INT, "within 2^60 of 0")]
Seed = Annotated[int, Range(0, math.inf, "0 or more")]
Count = Annotated[int, Range(0, _MAX_INT, "0 or more (at most 2^60)")]
Ordinal = Annotated[int, Range(1, _MAX_INT, "1 or more (at most 2^60)")]
Several = Annotated[int, Range(2, _MAX_INT, "2 or more (at most 2^60)")]
# A moment in UTC has 2^51 µs, and other tools' traces may be off.
Micros = Annotated[float, Range(-(2.0**62), 2.0**62, "within 2^62 µs of 0")]
Amount = Annotated[float, Range(0, _MAX_FLOAT, "0 or more and finite (at most 1e15)")]
Positive = Annotated[float, Range(_MIN_FLOAT, _MAX_FLOAT, "positive and finite (1e-15 to 1e15)")]


# Texts.

# Unicode's categories of what is obeyed and not shown: controls (ESC, C1), formats (bidi, zero width), halves of
# characters (bytes of a name that is not UTF-8), separators of lines and of paragraphs.
OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SUSPECT = re.compile(r"[^ -~\n\t]")
_SUSPECT_IN_LINE = re.compile(r"[^ -~]")
_SHORT = {"\n": "\\n", "\t": "\\t"}
_HOLDING = (str, list, dict)
# What JSON text must hold for one of its strings to hold such a character: an escape, or a character itself.
_SUSPECT_JSON = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)|[^ -~\n\r\t]")


def printable(text: str) -> str:
    """Return a page's text without what a terminal obeys; its line breaks and tabs stay."""
    return _SUSPECT.sub(_shown, text)


def one_line(text: str) -> str:
    """Return a name, or a notice with names in it, on one line and without what a terminal obeys."""
    return _SUSPECT_IN_LINE.sub(_shown, text)


def cleaned(data: Any, text: str) -> Any:
    """Return JSON's data with each string in it, keys too, on one line; `text` is the JSON that it was read from.

    Halves of characters stay: a file whose name is not UTF-8 must be found again.
    """
    if "\\" not in text and text.replace("\n", "").isprintable():  # as of most files, and seen four times as fast
        return data
    return _cleaned(data) if any(map(_is_obeyed, set(_SUSPECT_JSON.findall(text)))) else data


def _is_obeyed(written: str) -> bool:
    """Return whether a character, or JSON's escape for one, is obeyed; a half of one might be, with the other half."""
    char = json.loads(f'"{written}"') if written.startswith("\\") else written
    return unicodedata.category(char) in OBEYED


def _cleaned(data: Any) -> Any:
    if isinstance(data, str):
        return _SUSPECT_IN_LINE.sub(lambda match: match[0] if "\ud800" <= match[0] <= "\udfff" else _shown(match), data)
    # Numbers are most of a file, and a call for each is most of the time.
    if isinstance(data, list):
        return [_cleaned(item) if isinstance(item, _HOLDING) else item for item in data]
    if isinstance(data, dict):
        return {_cleaned(key): _cleaned(item) if isinstance(item, _HOLDING) else item for key, item in data.items()}
    return data


def _shown(match: re.Match[str]) -> str:
    char = match[0]
    if char in _SHORT:
        return _SHORT[char]
    if unicodedata.category(char) not in OBEYED:
        return char
    if ord(char) < 2**16:
        return f"\\u{ord(char):04x}"
    high, low = divmod(ord(char) - 2**16, 2**10)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
