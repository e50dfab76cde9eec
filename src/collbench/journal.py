"""Visits beside the run file, a JSON line each: what is left of a run whose process was killed.

A journal names the text of the file that it continues. Once that file is written anew, it means nothing any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from collbench.model import Cell, Measurement, Run, StopReason
from collbench.plain import build

_FORMAT = "collbench-journal"
# Visits of small messages last 0.1 ms, so a line is made in a fifth of that: tuples and enums are left to json.
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=lambda value: {n: getattr(value, n) for n in value.__slots__})


class Journal:
    """An open journal. Lines reach the kernel at once, which a killed process cannot take back; nothing is synced."""

    def __init__(self, run_file: Path, text: str) -> None:
        """Begin an empty journal for the file that holds `text`. Raises OSError."""
        self._path = journal_of(run_file)
        # Closed by `close`. A name that is not UTF-8 is written as in the run file.
        self._file = self._path.open("w", encoding="utf-8", errors="backslashreplace", buffering=1)
        self._file.write(json.dumps({"format": _FORMAT, "continues": _digest(text)}) + "\n")

    def add(self, found: Measurement) -> None:
        """Append the latest visit of a cell, or why it was given up. Raises OSError."""
        latest = [] if found.failure else found.samples[-1:]
        visit = Measurement(found.cell, latest, found.stop, found.wrong, found.failure)
        self._file.write(_ENCODER.encode(visit) + "\n")

    def close(self) -> None:
        """Close the file and leave it where it is."""
        with contextlib.suppress(OSError):  # a full disk has been told
            self._file.close()

    def remove(self) -> None:
        """Close and delete the file: all of it is in the run file now."""
        self.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def journal_of(run_file: Path) -> Path:
    """Return where the journal of a run file lies: beside it, its name and ".journal"."""
    return run_file.with_name(f"{run_file.name}.journal")


def read(run_file: Path, text: str) -> list[Measurement]:
    """Return the visits that continue the run file with this text, each with its latest sample, in order.

    Nothing where there is no journal, or where it continues another text. Reading ends at a line that is cut off.
    """
    try:
        lines = journal_of(run_file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    header = next(_objects(lines[:1]), None)
    if header != {"format": _FORMAT, "continues": _digest(text)}:
        return []
    return list(_visits(lines[1:]))


def merge(run: Run, visits: Iterable[Measurement]) -> None:
    """Add visits to a run in their order."""
    known: dict[Cell, Measurement] = {found.cell: found for found in run.measurements}
    for visit in visits:
        found = known.get(visit.cell)
        if found is None:
            known[visit.cell] = visit
            run.measurements.append(visit)
        else:
            found.samples += visit.samples
            found.stop, found.wrong, found.failure = visit.stop, visit.wrong, visit.failure


def mark_interrupted(run: Run) -> None:
    """Give every cell of an unfinished run that has no reason to stop this one."""
    for found in run.measurements:
        found.stop = found.stop or StopReason.INTERRUPTED


def _visits(lines: list[str]) -> Iterator[Measurement]:
    for number, data in enumerate(_objects(lines)):
        try:
            visit: Measurement = build(Measurement, data, f"visit {number}")
        except ValueError:
            return
        yield visit


def _objects(lines: list[str]) -> Iterator[object]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="backslashreplace")).hexdigest()
