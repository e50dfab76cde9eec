"""Keeps a run in its file while it is measured: no finished trial is lost, and no other file is replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from collbench.model.errors import RunFileError
from collbench.model.run import Latency, Measurement, Run
from collbench.runfile import atomic_write, run_file
from collbench.runfile.journal import Journal


class RunWriter:
    """Writes the run whole with its first finished trial, then a journal line for each, and whole again at the end.

    Until there is something to keep, nothing is written; a stream (/dev/null) gets the run at the end only, and None
    for a path keeps nothing. `replace` are older files that give way; of a run that is taken up, `resumed` is what its
    file was, and `journal` its journal. Where another file has come to `path` meanwhile, the run goes beside it, and
    `path` says where. What fails on the way is reported once through `warn` and stays in `failure`; the run is kept in
    memory, and the end tries again.
    """

    def __init__(
        self,
        run: Run,
        path: Path | None,
        warn: Callable[[str], None],
        *,
        replace: bool = False,
        resumed: atomic_write.Identity | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._run, self._warn, self._journal = run, warn, journal
        self._file = None if path is None else run_file.own(path, warn, replace=replace, stood=resumed)
        self._begun = False
        self._streams = path is None or atomic_write.is_stream(path)
        self.failure: RunFileError | None = None

    @property
    def path(self) -> Path | None:
        """Where the run is, None for nowhere."""
        return None if self._file is None else self._file.path

    def finished(self, found: Measurement | Latency) -> None:
        """Keep the latest trial of a data point, its failure, or its single launches."""
        if self._file is None or self._streams:
            return
        try:
            if not self._begun:
                self._begun = True
                self._begin(self._file)  # with this trial
            elif self._journal is not None:
                self._journal.add(found)
        except OSError as error:
            self._give_up(run_file.cannot_save(self._file.path, error))
        except RunFileError as error:
            self._give_up(error)

    def rewrite(self) -> None:
        """Write the run whole while it is measured: what workers with torch measure has no lines in a journal."""
        if self._file is None or self._streams or not (self._run.overlaps or self._run.replays):
            return
        try:
            self._file.write(run_file.dumps(self._run))
            self.failure = None
        except RunFileError as error:
            if self.failure is None:
                self._warn(f"{error} (measuring goes on)")
            self.failure = error

    def end(self) -> None:
        """Write the run whole. A failure is for the caller to raise; what the journal holds then stays there."""
        if self._file is None:
            return
        try:
            self._file.write(run_file.dumps(self._run))
        except RunFileError as error:
            self.failure = error
            self.close()
            return
        self.failure = None
        if self._journal is not None:
            self._journal.remove()
            self._journal = None

    def close(self) -> None:
        """Let go of the journal; what it holds stays."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _begin(self, file: atomic_write.OwnFile) -> None:
        before, text = file.path, run_file.dumps(self._run)
        file.write(text)
        if self._journal is None or file.path != before:
            self.close()
            self._journal = Journal(file.path)
        self._journal.begin(text)

    def _give_up(self, error: RunFileError) -> None:
        self.failure = error
        self._warn(f"{error} (measuring goes on)")
        self.close()
