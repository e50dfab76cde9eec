"""Our files as JSON: kind and version first, and what earlier versions wrote otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from collbench.model.errors import RunFileError
from collbench.model.printable import cleaned
from collbench.model.run import FlagKind

# Our files as JSON: what each says first is its kind and version, and who reads one is told what is wrong with it.
#
# They may be a stranger's: what a terminal would obey in their texts is made readable here, where they come in.


_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of file: its "format", the version that is read, what people call it, how to come by another."""

    format: str
    version: int
    noun: str
    again: str

    @property
    def head(self) -> dict[str, Any]:
        """What such a file begins with."""
        return {"format": self.format, "format_version": self.version}

    def read(self, path: Path) -> str:
        """Return a file's text. Raises RunFileError."""
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise RunFileError(f"cannot read {self.noun} file {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise RunFileError(f"{path} is not {self._what}: it is not text") from error

    def loads(self, text: str, name: str, build: Callable[[dict[str, Any]], _Found]) -> _Found:
        """Return what `build` makes of the fields in JSON text; `name` is the file's, for errors. Raises RunFileError.

        Of what `build` raises, TypeError, ValueError and KeyError say that the file is damaged.
        """
        try:
            data = cleaned(json.loads(text), text)
        except (ValueError, RecursionError) as error:  # the latter for brackets nested a thousand deep
            raise RunFileError(f"{name} is not {self._what}: not JSON, or cut off ({error})") from error
        if not isinstance(data, dict) or data.get("format") != self.format:
            raise RunFileError(f'{name} is JSON but not a collbench {self.noun}: it has no "format": "{self.format}"')
        if data.get("format_version") != self.version:
            raise RunFileError(
                f"{name} has {self.noun}-file version {data.get('format_version')}, this collbench reads version "
                f"{self.version}: use the collbench that wrote it, or {self.again}"
            )
        try:
            return build({key: value for key, value in data.items() if key not in self.head})
        except (TypeError, ValueError, KeyError) as error:
            raise RunFileError(f"{name} is a damaged {self.noun} file: {error}") from error

    @property
    def _what(self) -> str:
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun} file"


# Flags of run files from before flags had a type: sentences, which are read here and nowhere else.


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
