"""How a run is shown: as its page, or as nccl-tests prints it; and the JSON file beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from collbench import wholefile
from collbench.cli.terminal import echo, say, show_page
from collbench.errors import ExitStatus, UsageError
from collbench.model import Run
from collbench.outcome import outcome
from collbench.printable import one_line
from collbench.world.environment import find_place

_TABLE, _NCCL_TESTS = "table", "nccl-tests"
_JSON = ("write", "--json")
_SAME = "--output and --json name the same file, and each writes its own: choose another one for --json"

FORMAT = click.option(
    "--format",
    "layout",
    type=click.Choice((_TABLE, _NCCL_TESTS)),
    default=_TABLE,
    show_default=True,
    help="nccl-tests: print what its parsers read, in and out of place.",
)


@dataclass(frozen=True, slots=True)
class Showing:
    """Where a finished run goes: stdout in one of two layouts, and the file of --json."""

    layout: str = _TABLE
    json: Path | None = None
    force: bool = False

    @classmethod
    def asked(cls, given: Mapping[str, Any]) -> Showing:
        """Return what the options ask for. Raises RunFileError if the JSON file could not be written, UsageError."""
        json, run = given.get("json"), given.get("resume") or given.get("output")
        if json is not None:
            if run is not None and run.resolve() == json.resolve() and not wholefile.is_stream(json):
                raise UsageError(_SAME)
            place = find_place(os.environ)
            if place is None or place.rank == 0:  # who writes it
                wholefile.check(json, *_JSON, force=given["force"])
        return cls(given["layout"], json, given["force"])

    @property
    def as_nccl_tests(self) -> bool:
        """True where nccl-tests' columns are wanted, which are two: out of place and in place."""
        return self.layout == _NCCL_TESTS or self.json is not None

    def begun(self, run: Run) -> None:
        """Take note of a run that is about to be measured, or taken up; it fills while it is."""

    def show(self, run: Run) -> None:
        """Print the run, and write its JSON. Raises RunFileError, and UsageError where the layout does not suit it."""
        # Late: numpy need not be there before something was measured.
        from collbench.report import nccl_json, nccl_tests
        from collbench.report.page import page

        if self.layout == _NCCL_TESTS:
            for line in nccl_tests.lines(run):
                echo(line)
        else:
            show_page(page(run))
        if self.json is not None:
            wholefile.write(nccl_json.dumps(run), self.json, *_JSON, force=self.force)

    def status(self, run: Run) -> ExitStatus:
        """Return how the command ends once this run is shown."""
        return outcome(run).status

    def saved(self, path: Path) -> None:
        """Say where the run is: in nccl-tests' layout on stderr, for stdout is a parser's."""
        if self.layout == _NCCL_TESTS:
            say(f"saved {path}")
        else:
            show_page([f"\nsaved     {one_line(str(path))}"])
