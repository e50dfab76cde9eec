"""Ablation ↔ versioned JSON, written whole or not at all. docs/ablate.md describes the format."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collbench import wholefile
from collbench.ablation.arms import SWITCHES
from collbench.ablation.model import Ablation
from collbench.plain import build, plain
from collbench.versioned import Kind

_KIND = Kind("collbench-ablation", 1, "ablation", again="train again")
_WORDS = ("save the ablation as", "--output")


def save(ablation: Ablation, path: Path) -> None:
    """Write the ablation whole: a reader, or a crash, meets nothing or all of it. Raises RunFileError, Taken."""
    wholefile.write(dumps(ablation), path, *_WORDS)


def own(path: Path, warn: Callable[[str], None], *, force: bool = False) -> wholefile.OwnFile:
    """Return a file to write an ablation to again and again."""
    return wholefile.OwnFile(path, _WORDS, warn, force=force)


def check_writable(path: Path, *, force: bool = False) -> None:
    """Raise RunFileError if an ablation could not be saved at `path`, where a file is in the way, too."""
    wholefile.check(path, *_WORDS, force=force)


def load(path: Path) -> Ablation:
    """Read an ablation file. Raises RunFileError: what is wrong, and where."""
    return loads(_KIND.read(path), str(path))


def dumps(ablation: Ablation) -> str:
    """Return the ablation as JSON text, ending in a line break."""
    data = {**_KIND.head, **plain(ablation)}
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def loads(text: str, name: str) -> Ablation:
    """Return the ablation in JSON text; `name` is the file's, for errors. Raises RunFileError."""
    return _KIND.loads(text, name, _build)


def _build(fields: dict[str, Any]) -> Ablation:
    found: Ablation = build(Ablation, fields, "ablation")
    if not any("without" in arm for arm in fields["arms"]):
        found.arms[1].without = _told_by_name(found.arms[1].name)
    _check_meaning(found)
    return found


def _told_by_name(name: str) -> tuple[str, ...]:
    """Return what an arm lacks, as files before `without` say it: in its name alone."""
    words = name.removeprefix("without ").split(" and ")
    return tuple(words) if name.startswith("without ") and set(words) <= set(SWITCHES) else ()


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
