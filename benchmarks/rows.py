"""Rows of simulated trials as CSV, for all scripts here."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def save_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a line for each row, and a header of all names, in the order of their first use; a name may be absent."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
