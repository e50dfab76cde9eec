"""Step times in what a training script prints, whatever else it prints: pure, and safe on any bytes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from collbench.errors import UsageError

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_SCALE = SECONDS | {"µs": 1e-6, "μs": 1e-6}  # the micro sign and the Greek letter
_NUMBER = r"(?P<number>[0-9]{1,18}(?:\.[0-9]{0,18})?(?:e[+-]?[0-9]{1,3})?)"
_STEP = re.compile(rf"\bstep[ _]time\s{{0,8}}[=:]\s{{0,8}}{_NUMBER}\s{{0,8}}(?P<unit>ms|us|µs|μs|s)\b", re.IGNORECASE)
# The dictionary that Hugging Face's Trainer prints at its end; its version 5 prints the numbers as strings.
_TRAIN_RUNTIME = re.compile(rf"""(["'])train_runtime\1\s{{0,8}}:\s{{0,8}}["']?{_NUMBER}""")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Progress bars end their lines with a carriage return.
_LINE_END = re.compile(rb"[\r\n]")
# A longer line is binary output, or a tensor: it is read in pieces.
_LONGEST_LINE = 16 * 1024
# Nothing outside is one training step, and inside no ratio of two overflows: a nanosecond to 115 days.
_SHORTEST, _LONGEST = 1e-9, 1e7
# A traceback of every rank of a node, and torchrun's own report below it.
_TAIL = 400


def compile_pattern(text: str) -> re.Pattern[str]:
    """Return --step-pattern, whose group named s, ms or us is the time of a step in that unit. Raises UsageError."""
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--step-pattern '{text}' is no regular expression: {error}: see Python's re") from error
    if not SECONDS.keys() & pattern.groupindex.keys():
        raise UsageError(
            f"--step-pattern '{text}' has no group named s, ms or us, which says what the number counts: "
            r"write it like 'took (?P<ms>[0-9.]+)'"
        )
    return pattern


def step_seconds(line: str, pattern: re.Pattern[str] | None = None) -> float | None:
    """Return the first step time of a line in seconds; None without one. `pattern` replaces the documented words."""
    if pattern is None:
        found = _STEP.search(line)
        return found and _time(found["number"], _SCALE[found["unit"].lower()])
    found = pattern.search(line)
    if found is None:
        return None
    units = (unit for unit in SECONDS if unit in pattern.groupindex and found[unit] is not None)
    return next((_time(found[unit], SECONDS[unit]) for unit in units), None)


def train_runtime(line: str) -> float | None:
    """Return what Hugging Face's Trainer says that training took, in seconds; None where the line does not say."""
    found = _TRAIN_RUNTIME.search(line)
    return found and _time(found["number"], 1.0)


def _time(text: str, scale: float) -> float | None:
    try:
        seconds = float(text) * scale
    except ValueError:
        return None
    return seconds if _SHORTEST <= seconds <= _LONGEST else None


class Reader:
    """Reads the bytes of one run as they come: its step times, its train_runtime, and its last lines."""

    def __init__(self, pattern: re.Pattern[str] | None = None) -> None:
        self._pattern, self._rest = pattern, b""
        self.steps: list[float] = []
        self.train_runtime: float | None = None
        self.tail: deque[str] = deque(maxlen=_TAIL)

    def feed(self, data: bytes) -> None:
        """Read some more; where the bytes are cut makes no difference."""
        *whole, self._rest = _LINE_END.split(self._rest + data)
        for line in whole:
            self._read_all(line)
        while len(self._rest) >= _LONGEST_LINE:
            self._read(self._rest[:_LONGEST_LINE])
            self._rest = self._rest[_LONGEST_LINE:]

    def close(self) -> None:
        """Read what is left: a last line without its end."""
        self._read_all(self._rest)
        self._rest = b""

    def _read_all(self, line: bytes) -> None:
        for start in range(0, len(line), _LONGEST_LINE):
            self._read(line[start : start + _LONGEST_LINE])

    def _read(self, piece: bytes) -> None:
        line = _COLOUR.sub("", piece.decode("utf-8", errors="replace"))
        self.tail.append(line)
        seconds = step_seconds(line, self._pattern)
        if seconds is not None:
            self.steps.append(seconds)
        runtime = train_runtime(line)
        if runtime is not None:
            self.train_runtime = runtime  # the last: whoever trains twice means the whole script's end


def last_words(tail: Iterable[str], most: int = 60) -> list[str]:
    """Return the lines that say why a script ended: from the first traceback in its tail on, else the last ones.

    Torchrun's report follows the script's traceback, and would push it out of the last lines.
    """
    lines = list(tail)
    starts = (number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line)
    first = next(starts, None)
    return lines[-most // 2 :] if first is None else lines[first : first + most]
