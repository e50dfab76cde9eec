"""`collbench doctor`: what would disturb a run on this machine. Nothing is measured."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from itertools import groupby

import click
from rich.text import Text

from collbench import __version__
from collbench.api import keywords
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import json_option, leaving, show_answer
from collbench.model.run import BACKENDS, CUDA
from collbench.model.values import one_line
from collbench.preflight.findings import Finding, Level, status
from collbench.report.layout import Page, Prose, prose
from collbench.runfile.codec import document, plain

_OF_A_MACHINE = [name for name, row in BACKENDS.items() if not row.simulated]


@click.command("doctor")
@option(
    "--backend NAME",
    "cuda: everything for GPUs; host: what CPU cores need.",
    click.Choice(_OF_A_MACHINE),
    default=CUDA.name,
)
@options.nccl_option("Examine this libnccl.so.2 instead of torch's or the system's.")
@json_option("Print the findings as JSON (docs/doctor.md).")
def command(backend: str, nccl: str | None) -> None:
    """Find what would disturb a run on this machine: driver, GPUs, links, NCCL, torch, limits, variables.

    Each line is ok, warn, fail or unknown, with the fix. Doctor takes a second, measures nothing and makes no CUDA
    context. Exit status: 0 nothing fails, 1 something does.

    \b
    Examples:
      collbench doctor
      collbench doctor --json
      collbench doctor --backend host
    """
    findings = doctor(backend, nccl=nccl)
    left = status(findings)

    def as_json() -> str:
        head = {"collbench": __version__, "hostname": socket.gethostname(), "backend": backend}
        return dumps(findings, head, left)

    with leaving(left):
        show_answer(page(findings), as_json)


COMMANDS = {"doctor": command}  # the Python call has its name


def doctor(backend: str = CUDA.name, *, nccl: str | os.PathLike[str] | None = None) -> tuple[Finding, ...]:
    """Return what affects a run on this machine, as `collbench doctor` prints it. Raises Error.

    No CUDA context is made.
    """
    from collbench.preflight import collect  # late: pynvml, the extension
    from collbench.preflight.judge import judge

    backend = keywords.named("backend", backend, _OF_A_MACHINE)
    library = None if nccl is None else str(keywords.path(nccl))
    return tuple(judge(collect.examine(backend, os.environ, library)))


# The page and its JSON; text from the machine is never obeyed by a terminal.

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.UNKNOWN: "dim"}
_LEVEL_WIDTH = max(map(len, Level))
_WIDEST_NAME = 21  # a longer name (NCCL has some of 40 letters) gets its own line


def page(findings: Sequence[Finding]) -> Page:
    """Yield the summary, then the findings by group, a line each with its fix below."""
    yield Text(summary(findings))
    for group, grouped in groupby(findings, key=lambda finding: finding.group):
        lines = list(grouped)
        yield Text("")
        column = max((len(finding.name) for finding in lines if len(finding.name) <= _WIDEST_NAME), default=0)
        yield Text(f"{group}", style="bold")
        yield from (_line(finding, column) for finding in lines)


def summary(findings: Sequence[Finding]) -> str:
    """Return one sentence: what fails and warns, and how many findings are unknown and ok."""
    names = {level: [one_line(finding.name) for finding in findings if finding.level is level] for level in Level}
    if len(names[Level.OK]) == len(findings):
        return f"All {len(findings)} are ok."
    parts = [
        f"{len(names[level])} {level}: {', '.join(names[level])}" for level in (Level.FAIL, Level.WARN) if names[level]
    ]
    unknown = f"{len(names[Level.UNKNOWN])} {Level.UNKNOWN}, " if names[Level.UNKNOWN] else ""
    return f"{'; '.join([*parts, f'{unknown}{len(names[Level.OK])} {Level.OK}'])}."


def dumps(findings: Sequence[Finding], head: Mapping[str, str], exit_status: int) -> str:
    """Return the findings as JSON (docs/doctor.md); `head` has the machine and the version of collbench."""
    return document("doctor", {**head, "exit_status": exit_status, "findings": plain(tuple(findings))})


def _line(finding: Finding, column: int) -> Prose:
    """Return "level  name  text", wrapped below the text, and the fix on its own line."""
    indent = 2 + _LEVEL_WIDTH + 2 + column + 2
    line = prose("  ", hang=indent)
    line.append(f"{finding.level:<{_LEVEL_WIDTH}}", style=_STYLES[finding.level])
    line.append(f"  {one_line(finding.name):<{column}}  ")
    if len(finding.name) > column:
        line.append(f"\n{' ' * indent}")
    line.append(one_line(finding.text))
    if finding.fix:
        line.append(f"\n{' ' * indent}{one_line(f'fix: {finding.fix}')}")
    return line
