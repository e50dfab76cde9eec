"""`collbench doctor`: what affects a run on this machine, before it. It loads nothing that measures or plans."""

from __future__ import annotations

import socket
from importlib.metadata import version

import click

from collbench.api import inspecting
from collbench.cli.terminal import echo, leave, show_page
from collbench.model.capabilities import BACKENDS, CUDA


@click.command()
@click.option(
    "--backend",
    metavar="NAME",
    type=click.Choice([name for name, row in BACKENDS.items() if not row.simulated]),
    default=CUDA.name,
    show_default=True,
    help="cuda: everything for GPUs; host: what CPU cores need.",
)
@click.option(
    "--nccl",
    metavar="PATH",
    type=click.Path(readable=False),
    envvar="COLLBENCH_NCCL",
    show_envvar=True,
    help="Examine this libnccl.so.2 instead of torch's or the system's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON (docs/doctor.md).")
def doctor(backend: str, nccl: str | None, as_json: bool) -> None:
    """Find what would disturb a run on this machine: driver, GPUs, links, NCCL, torch, limits, variables.

    Each line is ok, warn, fail or unknown, with the fix. Doctor takes a second, measures nothing and makes no CUDA
    context. Exit status: 0 nothing fails, 1 something does.

    \b
    Examples:
      collbench doctor
      collbench doctor --json
      collbench doctor --backend host
    """
    from collbench.machine.doctor.findings import status
    from collbench.report.text import doctor as report

    findings = inspecting.doctor(backend, nccl=nccl)
    left = status(findings)
    if as_json:
        head = {"collbench": version("collbench"), "hostname": socket.gethostname(), "backend": backend}
        echo(report.dumps(findings, head, left), end="")
    else:
        show_page(report.page(findings))
    leave(left)
