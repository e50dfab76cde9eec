"""The program `collbench`: its commands, and the one place where errors are printed and become exit codes."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from collbench.cli.collectives import allreduce, broadcast
from collbench.cli.pairs import pairs, show
from collbench.cli.topo import topo
from collbench.cli.train import train
from collbench.errors import CollbenchError

_EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="collbench", message="%(prog)s %(version)s")
def cli() -> None:
    """Measure what the wires between GPUs really carry, and train on the best ones.

    \b
    collbench pairs                          every link and pair, ranked
    collbench allreduce --sizes 1M:1G        one collective over all GPUs
    collbench train --auto-select 2 train.py torchrun on the best two

    Without a GPU the same commands run on CPU cores (--backend host).
    """


for command in (pairs, allreduce, broadcast, topo, show, train):
    cli.add_command(command)


def main() -> int:
    """Run the program; return its exit status: 0 done, 1 failed, 2 bad input, 4 wrong data, 130 interrupted."""
    try:
        cli.main(prog_name="collbench", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except CollbenchError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        _leave_broken_pipe()
    return 0


def _fail(message: str, status: int) -> int:
    click.echo(f"collbench: {' '.join(message.split())}", err=True)
    return status


def _leave_broken_pipe() -> NoReturn:
    """Leave as `head` expects: quietly, and without Python flushing into the closed pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)
