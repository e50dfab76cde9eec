"""The finalists of a choice for a recorded job: its step replayed on each in turn, and the set that it suits best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collbench.api import Notices
from collbench.api.selecting import Settled
from collbench.jobs.job import Job
from collbench.jobs.replay import api as replaying
from collbench.jobs.replay.api import Replaying
from collbench.jobs.replay.measure import ReplayRequest
from collbench.model.capabilities import capabilities
from collbench.model.errors import CollbenchError, DataCorruption, Interrupted, NotTrusted, UsageError
from collbench.model.run import Run
from collbench.model.units import amount
from collbench.runfile import run_file, saved_runs

if TYPE_CHECKING:
    from collbench.choose.choice import Choice


@dataclass(frozen=True, slots=True)
class JobScorer:
    """Measures finalists by replays of a job, called `name`."""

    job: Job
    name: str

    def prepared(
        self, count: int, backend: str, fabric: str | None, notices: Notices, command: Sequence[str]
    ) -> Callable[[Choice, Run], Settled]:
        """Return what settles a choice of so many devices, made from a run; `command` are the words before the count.

        Raises UsageError for a job that has no meaning on so many, or cannot be replayed on this backend.
        """
        if count < 2:
            raise UsageError(
                "--job replays what a job sends between devices, and one device sends nothing: leave it out"
            )
        values, command = {"backend": backend, "fabric": fabric}, (*command, str(count), "--job", self.name)
        request = replaying.request_of(self.job, self.name, values, command, notices, ranks=count)
        return lambda choice, links: _settled(choice, links, request, notices)


def _settled(choice: Choice, links: Run, request: ReplayRequest, notices: Notices) -> Settled:
    """Replay the job on the choice's finalists, among the devices of the run `links`, and return what that decides.

    A finalist that fails is named, and the others decide. Raises what replaying raises, NotTrusted if none is left,
    and Interrupted.
    """
    from collbench.jobs import choice as job_choice  # late: numpy

    sets = job_choice.contenders(choice, links)
    if len(sets) < 2:
        notices.say(f"{request.job} is not replayed: there is no other candidate set of {len(choice.members)}")
        return Settled(choice, files=())
    done, used = _replayed(request, links, sets, notices)
    run = run_file.again(done.run)
    found = job_choice.contest(request.job, run, choice, links, used)
    if found is None:
        raise NotTrusted(f"{request.job} failed on every finalist: no set was chosen")
    for finalist in found.sets:
        if finalist.failure:
            notices.say(
                f"{request.job} failed on {', '.join(finalist.devices)}: {finalist.failure}; choosing among the others"
            )
    files = (done.path,) if done.path and done.failure is None else ()
    return Settled(job_choice.settle(choice, found, links), found, files)


def _replayed(
    request: ReplayRequest, links: Run, sets: Sequence[Sequence[int]], notices: Notices
) -> tuple[Replaying, list[int]]:
    """Return the run of the replays, and the position among all devices of each of its own."""
    path = None
    if not capabilities(request.backend).simulated:
        # Beside the folder of runs that choices go by: it holds no link.
        path = saved_runs.new_run("select", request.backend, notices.say, saved_runs.FINALISTS)
    notices.say(f"replaying {request.job} on {amount(len(sets), 'set')}, in turn")
    replay_request = replaying.on_sets(request, [[links.devices[position] for position in members] for members in sets])
    used = list(dict.fromkeys(position for members in sets for position in members))
    try:
        return Replaying(replay_request, path, notices).finish(), used
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted while replaying the finalists: nothing was chosen") from error
    except DataCorruption:
        raise  # its text names the link
    except CollbenchError as error:
        raise error.reworded(
            f"cannot replay {request.job} on the finalists: {error}; without --job, bandwidth decides"
        ) from error
