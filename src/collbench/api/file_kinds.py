"""Files besides runs: of which kind one is, and the module for it, loaded only then."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from collbench import untrusted
from collbench.api import Notices
from collbench.model.printable import one_line
from collbench.model.run import Run

if TYPE_CHECKING:
    from collbench.choose.choice import Choice, Decision

JOB = "collbench-job"
# What a file's "format" says: the module that offers what `Kind` lists.
KINDS = {JOB: "collbench.jobs.hooks", "collbench-ablation": "collbench.cli.saved_ablation"}
MAX_BYTES = 2**30  # a job of a thousand ranks, each with 32 whole repetitions of a thousand calls


@dataclass(frozen=True, slots=True)
class Settled:
    """The choice that was settled, what a job decided, and the files of what was measured of finalists.

    `decision` is None where none was needed, and `files` are None where no finalist was measured.
    """

    choice: Choice
    decision: Decision | None = None
    files: Sequence[Path] | None = None


class Scorer(Protocol):
    """Measures the finalists of a choice by something else than all-reduces."""

    def prepared(
        self, count: int, backend: str, fabric: str | None, notices: Notices, command: Sequence[str]
    ) -> Callable[[Choice, Run], Settled]:
        """Return what settles a choice of so many devices, made from a run; `command` are the words before the count.

        Raises UsageError for what has no meaning on so many, or cannot be measured on this backend.
        """


class Kind(Protocol):
    """What such a module offers."""

    NAME: str  # "a recorded job"
    CALL: str  # that loads one in Python; "{!r}" is the file
    OPTIONS: tuple[str, ...]  # of `show`, by their parameters' names, that are for such a file alone
    load: Callable[[Path], object]
    show: Callable[..., None]  # prints it
    export: Callable[[Path, str], str]  # the text of --format. Raises UsageError for one that it does not have
    html: Callable[[Sequence[Path]], str]  # its page; runs may follow. Raises UsageError for anything else


class JobKind(Kind, Protocol):
    """What the module for recorded jobs also offers."""

    scorer: Callable[[object, str], Scorer]  # of what was loaded, and its name. Raises UsageError for something else


def format_of(path: Path) -> str:
    """Return which of KINDS a file says that it is; "" for a run, and where loading it as one says what is wrong."""
    try:
        text = untrusted.read_text(path, MAX_BYTES) if path.is_file() else ""  # a pipe can be read once alone
        fields = json.loads(text) if any(f'"{name}"' in text for name in KINDS) else {}
    except (OSError, ValueError, RecursionError):
        return ""
    named = fields.get("format") if isinstance(fields, dict) else None
    return named if isinstance(named, str) and named in KINDS else ""


def kind_of(path: Path) -> Kind | None:
    """Return the module for a file; None for a run, and for what cannot be read."""
    name = format_of(path)
    return cast("Kind", import_module(KINDS[name])) if name else None


def job_kind() -> JobKind:
    """Return the module for recorded jobs."""
    return cast("JobKind", import_module(KINDS[JOB]))


def trace_title(path: Path) -> str:
    """Return what a file of another tool is that `collbench import` reads, "" for anything else."""
    return str(import_module("collbench.jobs.traces.formats").title_of(path)) if path.is_file() else ""


def job_scorer(file: Path) -> Scorer:
    """Return what measures finalists by a recorded job. Raises RunFileError."""
    jobs = job_kind()
    return jobs.scorer(jobs.load(file), one_line(file.name))
