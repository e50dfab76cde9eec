"""Message sizes, element types, figures and lists in sentences: parsed, printed, wrapped; where seconds become GB/s.

Sizes are binary (1K = 1024 B) and rates decimal (1 GB/s = 1e9 B/s), as nccl-tests has them.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from itertools import groupby
from typing import TypeVar

from collbench.model.errors import UsageError

_Number = TypeVar("_Number", int, float)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# 18 digits: no larger number is a size or a factor, and int() stays fast and allowed.
_SIZE = re.compile(r"(\d{1,18}) ?([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
# Below the first size a message's time is latency and says little about bandwidth; up to the second one it is mostly
# that: at 400 GB/s 64 KiB take 0.16 µs of some 3 (docs/method/measuring.md 15).
TELLING_BYTES, SMALL_BYTES = 2**20, 64 * 2**10
# A smaller difference, of bandwidth or of its logarithm, changes no decision.
DELTA = 0.02
# Copies through host memory that are faster by more than this ratio show slow peer access (docs/method/verdicts.md 5).
# On healthy machines a host bridge may forward peer traffic at less than a slot's rate, which makes staging a little
# faster. nccl#814 has a factor of 2.2.
STAGED_FASTER = 4 / 3
_HUNDREDTHS = 0.1  # from here on two decimals are enough
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
# Nine digits on each side of the point: no larger number is meant, and float() stays exact enough.
_SHARE = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(%?)", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(ms|s|min)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}
# A half interval as wide as the median carries no information.
_COARSEST = 1.0
# In the order of ncclDataType_t and ncclRedOp_t [nccl.h]: streams of the recorder have their numbers.
DTYPE_BYTES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
REDOPS = ("sum", "prod", "max", "min", "avg")

# nccl-tests' -d names, and what people call the halves.
_DTYPE_ALIASES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}


def parse_size(text: str) -> int:
    """Return the bytes that `text` names: "8", "64K", "1M", "2GiB". Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"size '{text}' is not a number of bytes: write 8, 64K, 1M or 1G")
    size = int(match[1]) * _SUFFIXES[match[2].upper()]
    if size == 0:
        raise UsageError(f"size '{text}' is zero: the smallest message is 1 byte")
    return size


def parse_dtype(text: str) -> str:
    """Return the dtype that `text` names. Raises UsageError."""
    name = _DTYPE_ALIASES.get(text.lower(), text.lower())
    if name not in DTYPE_BYTES:
        raise UsageError(f"dtype '{text}' is unknown: choose from {', '.join(DTYPE_BYTES)}")
    return name


def whole_elements(size_bytes: int, dtype: str) -> int:
    """Return the largest size ≤ size_bytes that holds whole elements, as nccl-tests rounds; 0 if not even one fits."""
    return size_bytes // DTYPE_BYTES[dtype] * DTYPE_BYTES[dtype]


def parse_share(text: str) -> float | None:
    """Return the ratio that `text` names: "5%" or "0.05"; None if it names none."""
    match = _SHARE.fullmatch(text.strip())
    return match and float(match[1]) / (100 if match[2] else 1)


def parse_precision(text: str) -> float:
    """Return the ratio that `text` names: "1%", "0.5%" or "0.01". Raises UsageError."""
    ratio = parse_share(text)
    if ratio is None:
        raise UsageError(f"--precision '{text}' is not a share of the median: write 1%, 0.5% or 0.01")
    if not 0 < ratio < _COARSEST:
        raise UsageError(f"--precision {text} is not above 0 and below 100%: write 1%, 0.5% or 0.01")
    return ratio


def parse_budget(text: str) -> float:
    """Return the seconds that `text` names: "10s", "500ms" or "2min". Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--budget '{text}' is not a number and a unit: write 10s, 500ms or 2min")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds == 0:
        raise UsageError(f"--budget {text} is zero: write 10s, 500ms or 2min")
    return seconds


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return message sizes in bytes, ascending and distinct, from a size, a list or MIN:MAX[:FACTOR].

    A range multiplies MIN by FACTOR (default 2) until MAX is passed. Raises UsageError.
    """
    if not text.strip():
        raise UsageError("--sizes is empty: write one size (1M), a list (1K,1M) or a range (8:1G)")
    sizes: set[int] = set()
    for part in text.split(","):
        sizes.update(_parse_range(part) if ":" in part else (parse_size(part),))
    return tuple(sorted(sizes))


def _parse_range(text: str) -> tuple[int, ...]:
    fields = text.split(":")
    if len(fields) not in (2, 3):
        raise UsageError(f"size range '{text}' has {len(fields)} parts: write MIN:MAX or MIN:MAX:FACTOR")
    low, high = parse_size(fields[0]), parse_size(fields[1])
    factor = _parse_factor(fields[2]) if len(fields) == 3 else 2
    if low > high:
        raise UsageError(f"size range '{text}' starts above its end: write {fields[1]}:{fields[0]}")
    return multiplied(low, high, factor)


def multiplied(low: int, high: int, factor: int) -> tuple[int, ...]:
    """Return `low` and what multiplying it by a factor above 1 gives up to `high`."""
    sizes = [low]
    while sizes[-1] * factor <= high:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def _parse_factor(text: str) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise UsageError(f"factor '{text[:20]}' is not a whole number: write 2, 4, …")
    factor = int(text)
    if factor <= 1:
        raise UsageError(f"factor {factor} never reaches the end of the range: it must be 2 or more")
    return factor


def format_size(size_bytes: int) -> str:
    """Return bytes in the largest exact binary unit: 1048576 → "1M", 1000 → "1000 B"."""
    for suffix in ("T", "G", "M", "K"):
        if size_bytes >= _SUFFIXES[suffix] and size_bytes % _SUFFIXES[suffix] == 0:
            return f"{size_bytes // _SUFFIXES[suffix]}{suffix}"
    return f"{size_bytes} B"


def format_message_size(size_bytes: int) -> str:
    """Return a job's bytes as a person reads them: "25M" if that is exact, else three digits, "27.0M"."""
    value, suffix = _in_largest_unit(size_bytes)
    if not suffix:
        return f"{size_bytes} B"
    return f"{value:.{0 if value.is_integer() else 2 if value < 9.995 else 1 if value < 99.95 else 0}f}{suffix}"


def format_approximate_size(size_bytes: int) -> str:
    """Return bytes as a person reads free memory: "139.2 GiB", "512 MiB"."""
    value, suffix = _in_largest_unit(size_bytes)
    return f"{fixed(value)} {suffix}iB" if suffix else f"{size_bytes} B"


def _in_largest_unit(size_bytes: int) -> tuple[float, str]:
    """Return bytes in the largest binary unit of which they are one or more, and its letter, "" for bytes."""
    suffix = next((letter for letter in ("T", "G", "M", "K") if size_bytes >= _SUFFIXES[letter]), "")
    return size_bytes / _SUFFIXES[suffix], suffix


def fixed(value: float, digits: int = 4) -> str:
    """Return a number with this many significant digits, all integer digits and no exponent: 1088, 44.6, 0.0000123."""
    if abs(value) >= 10.0**digits:
        return f"{value:.0f}"
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    from decimal import Decimal  # late: 2 ms, and hardly a figure is so small

    return f"{Decimal(text):f}"


def figure(value: float, decimals: int = 1) -> str:
    """Return a figure in a table: 44.6; one below 10 gets a decimal more, 8.53, and below 0.1 two digits that matter.

    Without `decimals` columns are too narrow for that, and 0.0036 prints as 0.0.
    """
    if decimals and 0 < value < _HUNDREDTHS:
        return fixed(value, 2)
    return f"{value:.{decimals if value >= 9.95 else decimals + 1}f}"  # 9.96 rounds up to a number without it


def micro(seconds: float | None) -> str:
    """Return seconds in µs for a table, "-" for none: 5.25."""
    return "-" if seconds is None else f"{round(seconds * 1e6, 2) + 0.0:.2f}"  # no -0.00


def span(values: Collection[_Number], text: Callable[[_Number], str], between: str = " to ") -> str:
    """Return the lowest and the highest value as text: "5.25 to 7.31"; one of the two where both print alike."""
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low}{between}{high}"


def number_ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers in their order, those that follow each other as a range: 0, 1, 2, 8 → "0-2,8"."""
    # In such a range each number is as far from its place in the list.
    ranges = groupby(enumerate(numbers), key=lambda placed: placed[1] - placed[0])
    runs = [[number for _, number in run] for _, run in ranges]
    return ",".join(span(run, str, "-") for run in runs)


def size_span(sizes: Collection[int]) -> str:
    """Return the smallest and the largest of some sizes in bytes: "8 B to 1G", of a job's calls "32.0M to 48.0M"."""
    return span(sizes, format_message_size)


def amount(count: int, noun: str) -> str:
    """Return "1 trial", "2 trials"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def every(count: int) -> str:
    """Return the words for all of so many: "both" of 2, "all 3"."""
    return "both" if count == 2 else f"all {count}"


def verb(count: int, one: str, several: str) -> str:
    """Return the form of a verb whose subject is so many: "is" of 1, "are" of 2."""
    return one if count == 1 else several


def counted(names: Iterable[str]) -> str:
    """Return how often each name occurs: "7 × NVIDIA H200, 1 × NVIDIA H100"."""
    return ", ".join(f"{count} × {name}" for name, count in Counter(names).items())


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """Return the values of each key, both in the order in which they come."""
    groups = defaultdict[_Key, list[_Value]](list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


def abridged(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first `most` names, and how many more there are: "GPU0, GPU1 and 6 more"."""
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def capped(lines: Sequence[str], most: int, more: str) -> list[str]:
    """Return the first `most` lines, and `more` below them if there are further ones, how many in place of its {}."""
    left = len(lines) - most
    return [*lines[:most], *([more.format(left)] if left > 0 else [])]


def sentence(clause: str) -> str:
    """Return a clause as a sentence: with a capital letter and a full stop."""
    return f"{clause[0].upper()}{clause[1:]}."


def columns(rows: Sequence[Sequence[str]], gap: str = "  ", right: Collection[int] = ()) -> list[str]:
    """Return rows as lines of columns, without empty ones and without blanks at the ends.

    Columns `right` (their indices) are aligned right, the others left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [str.rjust if at in right else str.ljust for at, _ in enumerate(widths)]
    padded = (
        (align(point, width) for align, point, width in zip(aligned, row, widths, strict=True) if width) for row in rows
    )
    return [gap.join(points).rstrip() for points in padded]


def algbw(size_bytes: int, seconds: float) -> float:
    """Return S / t in GB/s (1e9 B/s)."""
    return size_bytes / seconds / 1e9


# Ages of runs.

AGES = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": timedelta(seconds=1)}
# Six digits stay far inside timedelta's range of 999,999,999 days.
_AGE = re.compile(r"([0-9]{1,6})([dhms])")


def parse_duration(text: str) -> timedelta:
    """Return the time that `text` names: "7d", "12h", "30m" or "90s". Raises UsageError."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"duration '{text}' is not a whole number and a unit: write 7d, 12h, 30m or 90s")
    duration = int(match[1]) * AGES[match[2]]
    if not duration:
        raise UsageError(f"duration '{text}' is zero, and every saved run is older: write --fresh to ignore them")
    return duration


# Sentences wrapped to a width.


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
