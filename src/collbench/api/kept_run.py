"""A run that is saved again and again while it is measured by workers with torch: of overlap, and of a replay."""

from __future__ import annotations

from pathlib import Path

from collbench.api.notices import Notices
from collbench.model.errors import RunFileError
from collbench.model.run import Run
from collbench.runfile import atomic_write, run_file


class KeptRun:
    """A run and its file, if it has one. A save that fails is reported once and stays in `failure`; measuring goes on.

    Raises RunFileError where `path` cannot be written.
    """

    def __init__(self, run: Run, path: Path | None, notices: Notices, *, replace: bool) -> None:
        self._run, self._notices = run, notices
        self._file = None if path is None else run_file.own(path, notices.say, replace=replace)
        self._streams = path is not None and atomic_write.is_stream(path)
        self.failure: RunFileError | None = None

    @property
    def path(self) -> Path | None:
        """Where the run is saved, None for nowhere."""
        return None if self._file is None else self._file.path

    def save(self, *, last: bool = False) -> None:
        """Write what was measured so far, nothing where nothing was; into a stream only at last."""
        empty = not self._run.overlaps and not self._run.replays
        if self._file is None or empty or (self._streams and not last):
            return
        try:
            self._file.write(run_file.dumps(self._run))
            self.failure = None
        except RunFileError as error:
            if self.failure is None:
                self._notices.say(f"{error} (measuring goes on)")
            self.failure = error
