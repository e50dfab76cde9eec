"""Measure the finalists of a choice with real all-reduces, each alone and in turn, before one of them is taken."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collbench.backends import opening
from collbench.cli import places
from collbench.cli.leaving import Interrupted
from collbench.cli.terminal import progress_bar, say
from collbench.errors import CollbenchError, DataCorruption, NotTrusted
from collbench.model import Device, Run
from collbench.operations import Operation, Work
from collbench.outcome import outcome
from collbench.planning import Request
from collbench.units import format_size

# What a large gradient bucket of DDP comes to after a few of its 25 MiB ones; large enough that bandwidth decides.
DEFAULT_SIZE = "64M"


@dataclass(frozen=True, slots=True)
class Sitting:
    """What one measuring of finalists needs: the devices that a choice's positions mean, sets, a size, an NCCL."""

    backend: str
    devices: Sequence[Device]
    sets: tuple[tuple[int, ...], ...]
    size_bytes: int
    nccl: str | None


def measure(sitting: Sitting) -> tuple[Run, Path | None]:
    """Return the sets' all-reduces as a run over all of the devices, and the file that keeps it, if one can.

    Only devices in a set are opened. Raises what measuring raises, with advice, NotTrusted for a set that failed, and
    Interrupted.
    """
    used = sorted({member for members in sitting.sets for member in members})
    # Beside the folder that `train` searches, for a few sets say little about all pairs.
    path = places.new_run("select", sitting.backend, places.FINALISTS)
    say(f"measuring {len(sitting.sets)} sets at {format_size(sitting.size_bytes)}")
    begun = opening.begin(sitting.backend)
    from collbench.session import Session  # late: numpy

    try:
        with (
            Session(_request(sitting, used), path, say, begun=begun) as session,
            progress_bar("measuring the finalists") as progress,
        ):
            session.measure(progress)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted while measuring the finalists: nothing was chosen") from error
    except DataCorruption:
        raise  # its line says whom not to trust
    except CollbenchError as error:
        raise error.retold(f"cannot measure the finalists: {error}; --no-verify answers by prediction alone") from error
    if status := outcome(session.run).status:
        from collbench.report.outcome import headline

        advice = "nothing was chosen; leave these devices out with --exclude"
        saved = f"; the run is {session.path}" if session.path else ""
        raise NotTrusted(f"the finalists: {headline(session.run)}; {advice}{saved}", status)
    return _over_all(session.run, sitting.devices, used), session.path


def _request(sitting: Sitting, used: Sequence[int]) -> Request:
    place = {member: number for number, member in enumerate(used)}
    return Request(
        backend=sitting.backend,
        devices=",".join(sitting.devices[member].uuid for member in used),
        sizes=(sitting.size_bytes,),
        copies=(),
        collectives=(Work(Operation.ALLREDUCE),),
        pairs=False,
        dtype="float32",
        redop="sum",
        nccl=sitting.nccl,
        seed=random.SystemRandom().randrange(10**6),
        command=("select", str(len(sitting.sets[0]))),
        sets=tuple(tuple(place[member] for member in members) for members in sitting.sets),
    )


def _over_all(run: Run, devices: Sequence[Device], used: Sequence[int]) -> Run:
    """Return the run with its members as positions in `devices`."""
    measurements = [
        replace(found, cell=replace(found.cell, members=tuple(used[member] for member in found.cell.members)))
        for found in run.measurements
    ]
    return replace(run, devices=tuple(devices), paths=(), measurements=measurements)
