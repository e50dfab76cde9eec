"""Ablation ↔ versioned JSON, written whole or not at all. docs/ablate.md describes the format."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from collbench import wholefile
from collbench.ablation.model import Ablation
from collbench.errors import RunFileError
from collbench.plain import build, plain

FORMAT = "collbench-ablation"
VERSION = 1
_WORDS = ("save the ablation as", "--output")


def save(ablation: Ablation, path: Path) -> None:
    """Write the ablation whole: a reader, or a crash, meets either the old file or the new one. Raises RunFileError."""
    wholefile.write(dumps(ablation), path, *_WORDS)


def check_writable(path: Path) -> None:
    """Raise RunFileError if an ablation could not be saved at `path`; an existing file there is left alone."""
    wholefile.check(path, *_WORDS)


def load(path: Path) -> Ablation:
    """Read an ablation file. Raises RunFileError: what is wrong, and where."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunFileError(f"cannot read ablation file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RunFileError(f"{path} is not an ablation file: it is not text") from error
    return loads(text, str(path))


def dumps(ablation: Ablation) -> str:
    """Return the ablation as JSON text, ending in a line break."""
    data = {"format": FORMAT, "format_version": VERSION, **plain(ablation)}
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def loads(text: str, name: str) -> Ablation:
    """Return the ablation in JSON text; `name` is the file's, for errors. Raises RunFileError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"{name} is not an ablation file: not JSON, or cut off ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise RunFileError(f'{name} is JSON but not a collbench ablation: it has no "format": "{FORMAT}"')
    if data.get("format_version") != VERSION:
        raise RunFileError(
            f"{name} has ablation-file version {data.get('format_version')}, this collbench reads version {VERSION}: "
            "use the collbench that wrote it, or train again"
        )
    try:
        found: Ablation = build(Ablation, {key: data[key] for key in data if not key.startswith("format")}, "ablation")
        _check_meaning(found)
    except (TypeError, ValueError, KeyError) as error:
        raise RunFileError(f"{name} is a damaged ablation file: {error}") from error
    return found


def _check_meaning(found: Ablation) -> None:
    """Raise ValueError for times and sizes that mean nothing: whoever compares them would stumble over them."""
    times: list[tuple[str, Any]] = []
    for number, arm in enumerate(found.arms):
        where = f"ablation.arms[{number}]"
        times += [(f"{where}.allreduce", time) for one in arm.allreduce for time in (one.seconds, one.size_bytes)]
        times += [(f"{where}.runs", time) for run in arm.runs for time in (*run.step_seconds, run.wall_seconds)]
        times += [(f"{where}.runs", run.train_runtime) for run in arm.runs if run.train_runtime is not None]
    if found.result is not None:
        ratio = found.result.ratio
        times += [("ablation.result.ratio", one) for one in (ratio.low, ratio.middle, ratio.high)]
        times += [("ablation.result.arms", one) for arm in found.result.arms for one in (arm.seconds, *arm.interval)]
    for where, time in times:
        if not 0 < time < math.inf:
            raise ValueError(f"{where} has a time or a size that is not positive and finite")
