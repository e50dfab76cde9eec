"""Keeps a run in its file while it is measured: nothing that was finished is ever lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from collbench import runfile, wholefile
from collbench.errors import RunFileError
from collbench.journal import Journal
from collbench.model import Measurement, Run


class Keeper:
    """Writes the run whole with its first finished visit, then a journal line for each, and whole again at the end.

    Until there is something to keep, an older file is left alone; a stream (/dev/null) gets the run at the end only.
    What fails on the way is told once through `warn` and stays in `failure`; the run is kept in memory, and the end
    tries again.
    """

    def __init__(self, run: Run, path: Path, warn: Callable[[str], None]) -> None:
        self._run, self._path, self._warn = run, path, warn
        self._journal: Journal | None = None
        self._begun = False
        self._streams = wholefile.is_stream(path)
        self.failure: RunFileError | None = None

    def finished(self, measurement: Measurement) -> None:
        """Keep the latest visit of a cell, or its failure."""
        if self._streams:
            return
        try:
            if not self._begun:
                self._begun = True
                text = runfile.save(self._run, self._path)  # with this visit
                self._journal = Journal(self._path, text)
            elif self._journal is not None:
                self._journal.add(measurement)
        except OSError as error:
            self._give_up(runfile.cannot_save(self._path, error))
        except RunFileError as error:
            self._give_up(error)

    def end(self) -> None:
        """Write the run whole. A failure is for the caller to raise; what the journal holds then stays there."""
        try:
            runfile.save(self._run, self._path)
        except RunFileError as error:
            self.failure = error
            if self._journal is not None:
                self._journal.close()
            return
        self.failure = None
        if self._journal is not None:
            self._journal.remove()

    def _give_up(self, error: RunFileError) -> None:
        self.failure = error
        self._warn(f"{error} (measuring goes on)")
        if self._journal is not None:
            self._journal.close()
        self._journal = None
