"""One simulated measurement in memory, from a fabric to the finished run: the same plan and sweep, and no file."""

from __future__ import annotations

import random

from collbench import session
from collbench.backends.opening import open_simulated
from collbench.errors import DataCorruption
from collbench.fabric.model import Fabric
from collbench.measure.sweep import sweep
from collbench.measure.visits import Watcher
from collbench.model import Run
from collbench.planning import Request, make_plan


def simulate(fabric: Fabric, request: Request, seed: int) -> Run:
    """Return the run that the request would give on the fabric; of its settings only `devices` names GPUs of it.

    The same seed gives the same run. Wrong data ends it, and is told in `skipped`, as a session does it. Raises
    UsageError, and BackendError where nothing works any more.
    """
    opened = open_simulated(fabric, request.devices, seed)
    plan, skipped = make_plan(request, opened.backend)
    run = session.empty_run(request, opened, plan, skipped)
    watcher = Watcher(lambda _done, _total: None, lambda _found: None, opened.watch.flags, opened.clock)
    order = random.Random(seed)  # noqa: S311  # no secret
    try:
        sweep(opened.backend, plan, run, request.effort(), order, watcher)
    except DataCorruption as error:
        run.skipped.append(session.wrong_data(error))
    run.health_after = opened.health()
    return run
