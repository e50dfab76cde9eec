"""`collbench doctor`: what would disturb a run on this machine. Nothing is measured."""

from __future__ import annotations

import os
import socket

import click

from collbench.api import keywords
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import json_option, leaving, show_answer
from collbench.model.capabilities import BACKENDS, CUDA
from collbench.preflight import page
from collbench.preflight.findings import Finding, status

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
        from importlib.metadata import version  # late: 10 ms

        head = {"collbench": version("collbench"), "hostname": socket.gethostname(), "backend": backend}
        return page.dumps(findings, head, left)

    with leaving(left):
        show_answer(page.page(findings), as_json)


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
