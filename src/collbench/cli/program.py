"""The program `collbench`: its commands, and the one place where errors become a line and an exit status."""

from __future__ import annotations

import io
import os
import sys

import click

from collbench.cli import leaving
from collbench.cli.check import check
from collbench.cli.collectives import COMMANDS
from collbench.cli.copies import copies, latency
from collbench.cli.following import check_command, follow
from collbench.cli.nodes import nodes
from collbench.cli.pairs import pairs, show
from collbench.cli.rank import rank
from collbench.cli.select import select
from collbench.cli.topo import topo
from collbench.cli.train import train
from collbench.errors import CollbenchError
from collbench.world.environment import find_place


class _Commands(click.Group):
    """Commands in the order of a first session."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take "all-reduce" and "all_reduce" for "allreduce"."""
        plain = args[0].replace("-", "").replace("_", "")
        return super().resolve_command(ctx, [plain if plain in self.commands else args[0], *args[1:]])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(package_name="collbench", message="%(prog)s %(version)s", help="Print the version and exit.")
def cli() -> None:
    """Measure what the wires between GPUs really carry, and train on the best ones.

    \b
    Examples:
      collbench pairs                           # every link and pair, ranked
      collbench copies                          # raw copies in every pattern
      collbench allreduce --sizes 1M:1G         # one collective over all GPUs
      collbench select 2                        # the best two, and why
      collbench train --auto-select 2 train.py  # torchrun on the best two

    Without a GPU the same commands run on CPU cores: --backend host.
    """


for command in (pairs, copies, latency, *COMMANDS, topo, show, rank, check, select, nodes, train):
    cli.add_command(command)


def _invoke() -> None:
    # Not cli.main(): it would end a closed pipe with status 1 and Ctrl-C with an empty line.
    with cli.make_context("collbench", sys.argv[1:]) as context:
        cli.invoke(context)


def _invoke_together() -> None:
    check_command(sys.argv[1:])
    _invoke()


def run() -> int:
    """Run the program on sys.argv; return its exit status."""
    leaving.open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without "×" or "→" shows "?"
    leaving.heed_sigterm()
    try:
        place = find_place(os.environ)
        if place is not None and place.rank > 0:
            return follow(_invoke_together)
        (_invoke if place is None else _invoke_together)()
        sys.stdout.flush()
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.UsageError as error:
        return leaving.misused(error)
    except (CollbenchError, KeyboardInterrupt) as error:
        return leaving.failed(error)
    except OSError as error:
        return leaving.unwritten(error)
    return 0
