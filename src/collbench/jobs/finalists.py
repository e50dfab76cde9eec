"""The finalists of a choice for a recorded job: its step replayed on each in turn, and the set that it suits best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.api.notices import Notices
from collbench.api.sessions import Measured
from collbench.jobs.job import Job
from collbench.jobs.replay import api as replaying
from collbench.jobs.replay.api import Replaying, ReplayOptions
from collbench.jobs.replay.measure import ReplayRequest
from collbench.model.capabilities import capabilities
from collbench.model.errors import CollbenchError, DataCorruption, Interrupted, NotTrusted, UsageError
from collbench.model.run import Run
from collbench.model.units import amount
from collbench.runfile import run_file, saved_runs

if TYPE_CHECKING:
    from collbench.choose.choice import Choice
    from collbench.choose.select import ForJob
    from collbench.jobs.choice import JobContest
    from collbench.overlaps.factors import Figure


def request_for(
    job: Job,
    name: str,
    count: int,
    backend: str,
    fabric: str | None,
    notices: Notices,
    command: Sequence[str] = ("select",),
) -> ReplayRequest:
    """Return a request to replay a job, called `name`, on some `count` devices that are not chosen yet.

    `command` are the command's, before the count.
    Raises UsageError for a job that has no meaning on so many, or cannot be replayed on this backend.
    """
    if count < 2:
        raise UsageError("--for replays what a job sends between devices, and one device sends nothing: leave it out")
    options = ReplayOptions(ranks=count, backend=backend, fabric=fabric)
    return replaying.request_of(job, name, options, (*command, str(count), "--for", name), notices)


@dataclass(frozen=True, slots=True)
class Settled:
    """The choice that the replays decide, what they showed (None: there was one set), and the file that keeps them."""

    choice: Choice
    shown: ForJob | None = None
    path: Path | None = None


def settle(choice: Choice, links: Run, request: ReplayRequest, notices: Notices) -> Settled:
    """Replay the job on the choice's finalists, among the devices of the run `links`, and return what that decides.

    A finalist that fails is named, and the others decide. Raises what replaying raises, NotTrusted if none is left,
    and Interrupted.
    """
    from collbench.jobs import choice as job_choice  # late: numpy

    sets = job_choice.contenders(choice, len(links.devices))
    if len(sets) < 2:
        notices.say(f"{request.job} is not replayed: there is no other candidate set of {len(choice.members)}")
        return Settled(choice)
    done, used = _replayed(request, links, sets, notices)
    run = run_file.again(done.run)
    contest = job_choice.contest(run, choice.members, used)
    if contest is None:
        raise NotTrusted(f"{request.job} failed on every finalist: no set was chosen")
    shown = _shown(request, choice, contest, run, links)
    for finalist in shown.sets:
        if finalist.failure:
            notices.say(
                f"{request.job} failed on {', '.join(finalist.devices)}: {finalist.failure}; choosing among the others"
            )
    path = done.path if done.failure is None else None
    return Settled(job_choice.settle(choice, contest, request.job, links), shown, path)


def _replayed(
    request: ReplayRequest, links: Run, sets: Sequence[Sequence[int]], notices: Notices
) -> tuple[Measured, list[int]]:
    """Return the run of the replays, and the position among all devices of each of its own."""
    path = None
    if not capabilities(request.backend).simulated:
        # Beside the folder of runs that choices go by: it holds no link.
        path = saved_runs.new_run("select", request.backend, notices.say, saved_runs.FINALISTS)
    notices.say(f"replaying {request.job} on {amount(len(sets), 'set')}, in turn")
    replay_request = replaying.on_sets(
        request, [[links.devices[position] for position in members] for members in sets], independent=True
    )
    used = list(dict.fromkeys(position for members in sets for position in members))
    try:
        return Replaying(replay_request, path, notices).finish(), used
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted while replaying the finalists: nothing was chosen") from error
    except DataCorruption:
        raise  # its text names the link
    except CollbenchError as error:
        raise error.reworded(
            f"cannot replay {request.job} on the finalists: {error}; without --for, bandwidth decides"
        ) from error


def _shown(request: ReplayRequest, choice: Choice, contest: JobContest, run: Run, links: Run) -> ForJob:
    """Return what the replays showed, with devices by name."""
    from collbench.choose.select import ForJob, JobSet
    from collbench.report import sentences

    default = next((some.members for some in choice.finalists if some.default), ())

    def tags(members: Sequence[int]) -> tuple[str, ...]:
        return tuple(links.devices[position].tag for position in members)

    sets = tuple(
        JobSet(
            tags(finalist.members),
            finalist.standing.value,
            _three(finalist.seconds),
            _three(finalist.ratio),
            "" if finalist.failure is None else sentences.failure(finalist.failure, run.devices),
            finalist.members == default,
        )
        for finalist in contest.finalists
    )
    return ForJob(
        request.job,
        len(choice.members),
        contest.trials,
        math.comb(len(links.devices) - len(choice.left_out), len(choice.members)),
        sets,
        tags(contest.by_bandwidth),
        _three(contest.saved(contest.sound[-1].members)),
        _three(contest.saved(contest.by_bandwidth)),
    )


def _three(figure: Figure | None) -> tuple[float, float, float] | None:
    """Return a figure as low end, middle, high end; the middle thrice without an interval."""
    if figure is None:
        return None
    low, high = figure.interval or (figure.value, figure.value)
    return low, figure.value, high
