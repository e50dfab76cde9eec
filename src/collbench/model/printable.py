"""Makes untrusted text safe to print: a terminal, a page or a table shows it and never obeys it.

A run file, a device, a variable or a file may have any name. Characters that would move a cursor, change the order of
the letters or begin a new line are written as in JSON: \\u001b. So JSON stays the same JSON.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

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
