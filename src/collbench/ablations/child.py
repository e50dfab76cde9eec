"""One run of a script as a child process, and what its output says: the step times that it prints, its last lines."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import median
from threading import Thread
from typing import IO, Self

from collbench.ablations import ended_with_us
from collbench.model.errors import BackendError, UsageError

# Step times in what a training script prints, whatever else it prints: pure, and safe on any bytes.


SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_SCALE = SECONDS | {"µs": 1e-6, "μs": 1e-6}  # the micro sign and the Greek letter
_NUMBER = r"(?P<number>[0-9]{1,18}(?:\.[0-9]{0,18})?(?:e[+-]?[0-9]{1,3})?)"
_TIMED = rf"[ _]time\s{{0,8}}[=:]\s{{0,8}}{_NUMBER}\s{{0,8}}(?P<unit>ms|us|µs|μs|s)\b"
_STEP = re.compile(rf"\bstep{_TIMED}", re.IGNORECASE)
_GPU = re.compile(rf"\bgpu{_TIMED}", re.IGNORECASE)
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
        raise UsageError(f"--step-pattern '{text}' is not a regular expression of Python's re: {error}") from error
    if not SECONDS.keys() & pattern.groupindex.keys():
        raise UsageError(
            f"--step-pattern '{text}' has no group named s, ms or us, the unit of its number: "
            r"write it like 'took (?P<ms>[0-9.]+)'"
        )
    return pattern


class PrintedTime(float):
    """A time that was printed, in seconds; `rounding` is half a unit in its last digit, in seconds."""

    rounding: float

    def __new__(cls, text: str, scale: float) -> Self:
        """Read a number of units of `scale` seconds. Raises ValueError, ArithmeticError for what is no number."""
        made = super().__new__(cls, float(text) * scale)
        exponent = Decimal(text).as_tuple().exponent
        made.rounding = 10.0**exponent / 2 * scale if isinstance(exponent, int) else 0.0
        return made


def step_seconds(line: str, pattern: re.Pattern[str] | None = None) -> PrintedTime | None:
    """Return the first step time of a line in seconds; None without one. `pattern` replaces the documented words."""
    if pattern is None:
        return _timed(_STEP, line)
    match = pattern.search(line)
    if match is None:
        return None
    units = (unit for unit in SECONDS if unit in pattern.groupindex and match[unit] is not None)
    return next((_time(match[unit], SECONDS[unit]) for unit in units), None)


def gpu_seconds(line: str) -> PrintedTime | None:
    """Return the GPU's own time of a step in seconds, as in "gpu_time=18.2ms"; None if the line does not say."""
    return _timed(_GPU, line)


def _timed(pattern: re.Pattern[str], line: str) -> PrintedTime | None:
    match = pattern.search(line)
    return match and _time(match["number"], _SCALE[match["unit"].lower()])


def train_runtime(line: str) -> PrintedTime | None:
    """Return what Hugging Face's Trainer says that training took, in seconds; None if the line does not say."""
    match = _TRAIN_RUNTIME.search(line)
    return match and _time(match["number"], 1.0)


def _time(text: str, scale: float) -> PrintedTime | None:
    try:
        seconds = PrintedTime(text, scale)
    except (ValueError, ArithmeticError):
        return None
    return seconds if _SHORTEST <= seconds <= _LONGEST else None


def usual_rounding(times: Sequence[PrintedTime]) -> float:
    """Return the median rounding of printed times in seconds, 0 of none: a script may leave out zeros at the end."""
    return median(printed.rounding for printed in times) if times else 0.0


class Reader:
    """Reads the bytes of one run as they come: its step times, its train_runtime, and its last lines."""

    def __init__(self, pattern: re.Pattern[str] | None = None) -> None:
        self._pattern, self._rest = pattern, b""
        self.steps: list[PrintedTime] = []
        self.gpu: list[PrintedTime] = []
        self.train_runtime: PrintedTime | None = None
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
        gpu_time = gpu_seconds(line)
        if gpu_time is not None:
            self.gpu.append(gpu_time)
        runtime = train_runtime(line)
        if runtime is not None:
            self.train_runtime = runtime  # the last: a script that trains twice prints the whole time last


# A screen or two.
_LAST_LINES = 60


def last_lines(tail: Iterable[str]) -> list[str]:
    """Return the lines that explain why a script ended: the tail from its first traceback on, else the last lines.

    Torchrun's report follows the script's traceback, and would push it out of the last lines.
    """
    lines = list(tail)
    starts = (number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line)
    first = next(starts, None)
    return lines[-_LAST_LINES // 2 :] if first is None else lines[first : first + _LAST_LINES]


# The process: started, its output read and logged as it comes, timed, and ended with us.


# A grandchild that outlives the job may hold its output open; later output is not of the job's steps.
_AFTERMATH_SECONDS = 2.0


class _Output:
    """Reads a child's output on a thread of its own, because the main one waits for the child and for signals."""

    def __init__(self, pipe: IO[bytes], log: IO[bytes], reader: Reader, watch: Callable[[bytes], None]) -> None:
        self._pipe, self._log, self._reader, self._watch = pipe, log, reader, watch
        self._thread = Thread(target=self._follow, name="output", daemon=True)
        self._over = False
        self.failure: OSError | None = None
        self._thread.start()

    def _follow(self) -> None:
        while data := os.read(self._pipe.fileno(), 65536):
            if self._over:
                return
            self._reader.feed(data)
            try:
                self._log.write(data)
                self._watch(data)
            except OSError as error:  # a full disk; reading continues, else the job would stand still
                self.failure = self.failure or error

    def end(self) -> None:
        """Take what is left, from a child that has ended."""
        self._thread.join(_AFTERMATH_SECONDS)
        self._over = True
        self._reader.close()
        if not self._thread.is_alive():
            self._pipe.close()


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    reader: Reader,
    watch: Callable[[bytes], None] = lambda _data: None,
) -> tuple[int, float]:
    """Run a command to its end; return its exit status (negative: the signal) and its seconds from start to end.

    Its stdout and stderr go to the log, the reader, and `watch`. KeyboardInterrupt (Ctrl-C, SIGTERM) ends the child
    first, which has a process group of its own: torchrun must get one signal, because a second one would interrupt it
    while it ends its workers. It gets SIGTERM, too, when this process is killed. Raises BackendError.
    """
    try:
        with log.open("wb", buffering=0) as file:
            return _run(command, environment, file, reader, watch)
    except OSError as error:
        raise BackendError(f"cannot run '{command[0]}' with its output in {log}: {error.strerror}") from error


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: IO[bytes],
    reader: Reader,
    watch: Callable[[bytes], None],
) -> tuple[int, float]:
    begun = time.monotonic()
    child = subprocess.Popen(
        ended_with_us.with_us(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    assert child.stdout is not None  # noqa: S101 - asked for above
    output = _Output(child.stdout, log, reader, watch)
    try:
        status = child.wait()
        seconds = time.monotonic() - begun
    except BaseException:
        _end(child)
        raise
    finally:
        output.end()
    if output.failure is not None:
        raise output.failure
    return status, seconds


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to end; kill it after a while, or at a second Ctrl-C."""
    try:
        child.send_signal(signal.SIGTERM)
        child.wait(ended_with_us.GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
