"""Measure a request in this process, whose worker process alone starts CUDA, and return what there is of the run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from collbench.analysis.outcome import outcome
from collbench.api.notices import Notices
from collbench.backends import factory
from collbench.bench.plan import Request
from collbench.model.errors import BackendError
from collbench.model.run import Run
from collbench.runfile import run_file


@dataclass(frozen=True, slots=True)
class Measured:
    """A run as whoever loads its file sees it, and the file; None where it could not be saved."""

    run: Run
    path: Path | None


def measure(request: Request, path: Path | None, notices: Notices, what: str) -> Measured:
    """Measure the request to its end; the worker is gone when this returns. `what` is the progress bar's title.

    The run is saved as `path`, also where this raises: KeyboardInterrupt, DataCorruption, BackendError, MachineError.
    """
    begun = factory.begin(request.backend)
    from collbench.bench.session import Session  # late: numpy, while the driver starts

    with Session(request, path, notices.say, begun=begun) as session:
        try:
            with notices.progress(what) as progress:
                session.measure(progress)
        except BackendError as error:
            error.exit_code = max(error.exit_code, outcome(session.run).status)
            raise
    return Measured(run_file.again(session.run), session.path)


def new_seed() -> int:
    """Return a random seed that fits on a line."""
    return random.SystemRandom().randrange(10**6)
