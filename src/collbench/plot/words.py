"""The words around a picture: what is shown, on which machine, when and by which versions; `sim` where simulated."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collbench.machine.impossible import impossible
from collbench.model import Run
from collbench.operations import Work
from collbench.report.nvls import nvls

_LONGEST = 100  # characters of a text that came from a machine
_MOST_ORIGINS = 4


@dataclass(frozen=True, slots=True)
class Named:
    """A run, and what a picture of several calls it: its file's name."""

    name: str
    run: Run


def clean(text: str, most: int = _LONGEST) -> str:
    """Return a machine's words as a picture may hold them: no control characters, which no XML can, and not endless."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def subject(works: Iterable[Work], runs: Iterable[Named]) -> str:
    """Return what is shown: "allreduce, ce-write"; of simulated machines never without "sim"."""
    names = ", ".join(dict.fromkeys(map(str, works)))
    backends = {named.run.backend for named in runs}
    if backends == {"sim"}:
        return f"sim {names}"
    return f"{names} (some sim)" if "sim" in backends else names


def quantity(works: Iterable[Work]) -> str:
    """Return what the bandwidth axis shows, with its unit."""
    collectives = {work.operation.is_collective for work in works}
    if collectives == {True}:
        return "busbw, GB/s"
    return "GB/s (collectives: busbw)" if True in collectives else "GB/s"


def origins(runs: Sequence[Named]) -> str:
    """Return a line for each run: its machine, devices, versions and date."""
    lines = [f"{clean(named.name)}: {_origin(named.run)}" if len(runs) > 1 else _origin(named.run) for named in runs]
    more = len(lines) - _MOST_ORIGINS
    return "\n".join([*lines[:_MOST_ORIGINS], *([f"and {more} more runs"] if more > 0 else [])])


def small_print(runs: Sequence[Named], inches: float) -> str:
    """Return the origins in lines that fit below a picture of this width: 17 characters of 6.5 points an inch."""
    return "\n".join(textwrap.fill(line, int(inches * 17)) for line in origins(runs).split("\n"))


def _origin(run: Run) -> str:
    kinds = Counter(device.name for device in run.devices)
    devices = ", ".join(f"{count} × {clean(name, 40)}" for name, count in kinds.items())
    machine = run.machine
    if run.backend == "sim":
        return f"SIMULATED machine '{clean(machine.fabric, 40)}', {devices}; {_made(run)}"
    backend = {"host": ", CPU cores (host backend)"}.get(run.backend, "")
    versions = [f"driver {machine.driver}"] * bool(machine.driver) + [f"NCCL {machine.nccl}"] * bool(machine.nccl)
    told = [f"{clean(machine.hostname, 40)}, {devices}{backend}", *versions, *([nvls(run)] if nvls(run) else [])]
    return f"{clean('; '.join(told), 200)}; {_made(run)}"


def _made(run: Run) -> str:
    unfinished = "" if run.complete else ", interrupted"
    beaten = impossible(run)
    unfinished += f"; IMPOSSIBLE figures in {len(beaten)} cells" if beaten else ""
    return f"collbench {clean(run.version, 20)}, {clean(run.started[:10], 10)}{unfinished}"
