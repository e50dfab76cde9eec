"""Flags of run files from before flags had a type: sentences, which are read here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from collbench.model import FlagKind

_THROTTLED = re.compile(r"throttled: (?P<reason>.+) on (?P<tag>.+)", re.DOTALL)
_HOT = re.compile(r"hot: (?P<tag>.+) at (?P<figure>\d{1,9}) °C", re.DOTALL)
_SHARED = re.compile(r"shared: (?P<figure>\d{1,9}) other process(?:es)? on (?P<tag>.+)", re.DOTALL)
_PATTERNS = {FlagKind.THROTTLED: _THROTTLED, FlagKind.HOT: _HOT, FlagKind.SHARED: _SHARED}


def replace(measurements: Any, tags: Sequence[str]) -> None:
    """Replace the sentences among the flags of measurements, as JSON has them, by what they say of devices by tag.

    What is not as a run file has it is left alone: reading it says what is wrong.
    """
    for measurement in measurements if isinstance(measurements, list) else ():
        samples = measurement.get("samples") if isinstance(measurement, dict) else None
        for sample in samples if isinstance(samples, list) else ():
            flags = sample.get("flags") if isinstance(sample, dict) else None
            if isinstance(flags, list) and flags:
                sample["flags"] = [_typed(flag, tags) if isinstance(flag, str) else flag for flag in flags]


def _typed(words: str, tags: Sequence[str]) -> dict[str, Any]:
    for kind, pattern in _PATTERNS.items():
        match = pattern.fullmatch(words)
        if match and match["tag"] in tags:
            said = {"figure": None, "reason": "", **match.groupdict()}
            figure = None if said["figure"] is None else int(said["figure"])
            return {"kind": kind, "devices": [tags.index(said["tag"])], "figure": figure, "reason": said["reason"]}
    return {"kind": FlagKind.OTHER, "devices": [], "figure": None, "reason": words}
