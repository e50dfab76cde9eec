"""The program `collbench`: its commands, and the one place where errors become a line and an exit status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

import click

from collbench.cli import exit_codes
from collbench.machine.launchers import LaunchEnvironment, find_launch
from collbench.model.errors import CollbenchError
from collbench.model.operations import COLLECTIVES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from collbench.api import Notices
    from collbench.measurement.plan import Request
    from collbench.measurement.session import Ranks


# The program's name, and the variable in which shells ask for their completion script and what may follow.
NAME, VARIABLE = "collbench", "_COLLBENCH_COMPLETE"
# By group: each command, the module of collbench that holds it under its name or in a dictionary COMMANDS, and what
# `collbench --help` says of it, without loading it.
_GROUPS = {
    "Measure": {
        "pairs": ("cli.timing", "Measure every link and pair of GPUs, and rank the pairs."),
        "check": ("cli.check", "Find where labels and measurement disagree, and what is slow."),
        "copies": ("cli.timing", "Time raw copies in every pattern, host memory included."),
        "latency": ("cli.timing", "Time one memory access, one small copy, one small all-reduce."),
        **{
            operation.value: ("cli.timing", f"Time {operation.collective.title}: {operation.collective.does}.")
            for operation in COLLECTIVES
        },
        "overlap": ("overlaps.command", "Time a collective while the GPUs compute, as in training."),
    },
    "Read": {
        "topo": ("cli.inspecting", "Print the labels of all paths, or explain one pair."),
        "doctor": ("cli.inspecting", "Find what would disturb a run on this machine."),
        "runs": ("cli.runs", "List the saved runs, newest first."),
        "show": ("cli.runs", "Print a saved run again, its ranking, or maps of one operation."),
        "report": ("cli.runs", "Make one HTML page of saved runs."),
        "compare": ("cli.compare", "Show what became faster or slower between runs."),
        "reference": ("cli.compare", "List the published figures by which runs are judged."),
        "export": ("cli.runs", "Write a saved run in other tools' formats."),
    },
    "Choose and train": {
        "select": ("cli.select", "Choose the best K GPUs, for a shell, a container or Slurm."),
        "train": ("cli.train", "Start a training script with torchrun on the best GPUs."),
        "ablate": ("cli.train", "Measure what P2P or other GPUs change in your training job."),
    },
    "Jobs": {
        "record": ("jobs.command", "Record every NCCL call of a job."),
        "import": ("jobs.command", "Import a job that another tool traced."),
        "replay": ("jobs.replay.command", "Time the communication of a recorded job's step."),
        "predict": ("jobs.predict.command", "Predict what communication costs a training step."),
    },
    "Cluster": {
        "nodes": ("cluster.command", "Find slow nodes and uplinks of a cluster, and choose nodes."),
    },
}
_COMMANDS = {name: row for group in _GROUPS.values() for name, row in group.items()}
_COLLECTIVES = [operation.value for operation in COLLECTIVES]


class _Commands(click.Group):
    """Commands in the order of a first session, each loaded when it is called: loading all of them takes 0.2 s."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        home = vars(import_module(f"collbench.{_COMMANDS[cmd_name][0]}"))
        return cast("click.Command", {**home, **home.get("COMMANDS", {})}[cmd_name])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in _COMMANDS if name not in _COLLECTIVES)
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(width), short_help)
                        for name, (_module, short_help) in commands.items()
                        if name not in _COLLECTIVES
                    ]
                )
                if not commands.keys().isdisjoint(_COLLECTIVES):
                    formatter.write_text(f"One collective over all GPUs, or pairs: {', '.join(_COLLECTIVES)}.")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=short_help)
            for name, (_module, short_help) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take "all-reduce" and "all_reduce" for "allreduce"; for an unknown word, suggest the nearest command."""
        plain = args[0].replace("-", "").replace("_", "")
        name = plain if plain in _COMMANDS and not args[0].startswith("-") else args[0]
        if name not in _COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            advice = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"No such command '{name}'.{advice}", ctx)
        return super().resolve_command(ctx, [name, *args[1:]])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(package_name="collbench", message="%(prog)s %(version)s", help="Print the version and exit.")
def cli() -> None:
    """Measure the bandwidth and latency between GPUs, and train on the best GPUs.

    \b
    Examples:
      collbench pairs                           # every link and pair, ranked
      collbench copies                          # raw copies in every pattern
      collbench allreduce --sizes 1M:1G         # one collective over all GPUs
      collbench select 2                        # the best two, and why
      collbench train --auto-select 2 train.py  # torchrun on the best two

    Without a GPU the same commands run on CPU cores: --backend host.
    """


def _invoke() -> None:
    # Not cli.main(): it would end a closed pipe with status 1 and Ctrl-C with an empty line.
    with cli.make_context(NAME, sys.argv[1:]) as context:
        try:
            cli.invoke(context)
        except click.UsageError as error:
            error.ctx = error.ctx or _called_command(context)
            raise
    sys.stdout.flush()


def _called_command(context: click.Context) -> click.Context:
    """Return the command that was called: click does not name it where an option lacks its value."""
    command = cli.get_command(context, context.invoked_subcommand or "")
    return click.Context(command, info_name=context.invoked_subcommand, parent=context) if command else context


def _complete(question: str) -> NoReturn:
    """Print what a shell may complete a line with ("bash_complete"), or its script ("bash_source"), and leave.

    It asks in the middle of a line: whatever is wrong there, nothing is said on stderr.
    """
    from click.shell_completion import shell_complete

    try:
        status = shell_complete(cli, {}, NAME, VARIABLE, question)
    except (CollbenchError, click.ClickException, click.exceptions.Exit, KeyError, ValueError, OSError):
        status = 1
    raise click.exceptions.Exit(status)


# In a launch this is one of several processes, and an annex, loaded then, does what differs.


class Launched(Protocol):
    """The functions of the annex's module, whose docstrings say what each does."""

    def run_together(self, launch: LaunchEnvironment, arguments: list[str], invoke: Callable[[], object]) -> int:
        """Run the command line in a launch; return the exit status."""

    def open_ranks(
        self, launch: LaunchEnvironment, request: Request, notices: Notices
    ) -> AbstractContextManager[Ranks]:
        """Return the launch's processes for rank 0, which is this one."""

    def serve_rank_0(self, launch: LaunchEnvironment, request: Request) -> NoReturn:
        """Measure this rank's part for rank 0."""


def launched() -> Launched:
    """Return the annex's functions."""
    return cast("Launched", import_module("collbench.ranks.nonzero"))


def run() -> int:
    """Run the program on sys.argv; return its exit status."""
    exit_codes.open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without "×" or "→" shows "?"
    exit_codes.heed_signals()
    try:
        if question := os.environ.get(VARIABLE):
            _complete(question)
        launch = find_launch(os.environ)
        if launch is not None:
            return launched().run_together(launch, sys.argv[1:], _invoke)
        _invoke()
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.UsageError as error:
        return exit_codes.misused(error)
    except (CollbenchError, KeyboardInterrupt) as error:
        return exit_codes.failed(error)
    except OSError as error:
        return exit_codes.unwritten(error)
    return 0
