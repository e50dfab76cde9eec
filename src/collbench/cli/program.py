"""The program `collbench`: its commands, and the one place where errors become a line on stderr and an exit status."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import select
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click

from collbench import __version__, annexes
from collbench.machine.launchers import find_launch
from collbench.model.errors import CollbenchError, ExitStatus, Interrupted, UsageError, did_you_mean, nearest
from collbench.model.operations import COLLECTIVES
from collbench.model.values import one_line

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


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
    },
    "Read": {
        "topo": ("cli.topo", "Print the labels of all paths, or explain one pair."),
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
    },
}
for _name, (_group, *_row) in annexes.COMMANDS.items():
    _GROUPS.setdefault(_group, {})[_name] = (_row[0], _row[1])
_COMMANDS = {name: row for group in _GROUPS.values() for name, row in group.items()}
_COLLECTIVES = [operation.value for operation in COLLECTIVES]


class _Commands(click.Group):
    """Commands in the order of a first session, each loaded when it is called: loading all of them takes 0.2 s."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        home = vars(annexes.load(_COMMANDS[cmd_name][0]))
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
            raise click.UsageError(f"No such command '{name}'{did_you_mean(name, _COMMANDS)}", ctx)
        return super().resolve_command(ctx, [name, *args[1:]])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(__version__, message="%(prog)s %(version)s", help="Print the version and exit.")
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


def launched() -> Any:
    """Return the annex's module for one of several processes: `run_together`, `open_ranks`, `serve_rank_0`.

    Raises UsageError without the annex.
    """
    if (module := annexes.hook("launch")) is None:
        raise UsageError("this is one of several processes, for which this collbench lacks the part: start only one")
    return module


# How it ends: with a signal, an error, or a stream that is closed or full.

# What writing to a full disk, quota or file-size limit gives.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAX_LETTERS = 2_000  # of a line: an error may name a value of a file, which may have any length
_NO_NUMBER = re.compile(r"is not a valid integer(?: range)?")  # click's words for 'two'
# What other tools call our options: spelled so differently that click's suggestion is another option, or none.
_OTHER_NAMES = {
    **dict.fromkeys(("--gpus", "--gpu", "--gpu-ids", "--gpu-id", "--device", "--cuda-devices"), "--devices"),
    "--size": "--sizes",
    "--datatype": "--dtype",
    "--out": "--output",
    # Flags of nccl-tests, whose values differ from ours (docs/nccl-tests.md).
    **dict.fromkeys(("-R", "--local_register"), "--registration"),
    "-T": "--budget",
    "-t": "-g",
}


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C's. It ends a measurement as Ctrl-C does, with another exit status."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


# SIGTERM comes from schedulers and service managers, SIGHUP from a terminal that closes, SIGQUIT from Ctrl-\.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def open_closed_streams() -> None:
    """Take /dev/null for stdin, stdout or stderr that was closed (`>&-`), for which Python has no stream at all."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number: the closed one's own, which no other file may get now.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def heed_signals() -> None:
    """Let SIGTERM, SIGHUP and SIGQUIT save what was measured. The job that `train` becomes does not inherit this.

    A signal that is ignored already stays ignored: SIGHUP under nohup.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        _forget_lost_streams()
        raise Terminated(number)

    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def _forget_lost_streams() -> None:
    """Send to /dev/null what a lost terminal would answer with an error, before anything is saved."""
    for descriptor in lost(1, 2):
        send_nowhere(descriptor)


def lost(*descriptors: int) -> list[int]:
    """Return the descriptors whose reader has exited."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, 0)
    return [descriptor for descriptor, _event in poll.poll(0)]


def send_nowhere(descriptor: int) -> None:
    """Send to /dev/null what is still buffered for a descriptor and all that will be written to it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def failed(error: CollbenchError | KeyboardInterrupt) -> int:
    """Print the error's line, and return its status."""
    ending = error if isinstance(error, CollbenchError | Interrupted) else Interrupted("interrupted before it was done")
    if isinstance(ending, Interrupted) and sys.stderr.isatty():
        click.echo(err=True)  # the terminal has just shown "^C"
    terminated = next((cause for cause in (error, error.__cause__) if isinstance(cause, Terminated)), None)
    return _say(str(ending), (terminated or ending).exit_code)


def misused(error: click.UsageError) -> int:
    """Print click's error, with its suggestion, as one line that names the help; return the status."""
    if isinstance(error, click.exceptions.NoSuchOption) and error.ctx:
        name, ours = error.option_name, {name for option in error.ctx.command.params for name in option.opts}
        meant = _OTHER_NAMES.get(name, name)
        # Without dashes, which all options share: --fabric is not --force, which replaces a file. One letter is none.
        words = {option.lstrip("-"): option for option in sorted(ours)} if name.startswith("--") else {}
        meant = meant if meant in ours else words.get(nearest(name.lstrip("-"), words), "")
        near = f"; did you mean '{meant}'?" if meant else ""
        error = click.UsageError(f"No such option '{name}'{near}", error.ctx)
    message = _NO_NUMBER.sub("is not a whole number", error.format_message())
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(message, err=True)  # it is the whole help: no word was wrong, there was none
        return error.exit_code
    command = error.ctx.command_path if error.ctx else "collbench"
    separator = " See" if "?" in message else "; see"
    return _say(f"{message[:1].lower()}{message[1:].rstrip('.')}{separator} '{command} --help'", error.exit_code)


def unwritten(error: OSError) -> int:
    """Return the status after stdout failed: quiet for a closed pipe, a line for a full disk. Raises any other error.

    But one line says that the working directory was deleted: whatever needs its path fails then.

    What is still buffered goes nowhere, else Python would fail on it again at exit. Only help and
    similar output raise for a closed pipe: `terminal` prints the pages, and a reader that ends does not change their
    exit status.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        return _say("the working directory was deleted: change to another one, with 'cd'", ExitStatus.FAILED)
    closed = isinstance(error, BrokenPipeError) and bool(lost(sys.stdout.fileno()))
    if not closed and error.errno not in _FULL:
        raise error
    send_nowhere(sys.stdout.fileno())
    if closed:
        return ExitStatus.DONE  # `head` has read enough
    advice = next(iter(getattr(error, "__notes__", ())), "send it to another place")
    return _say(f"cannot write the output: {error.strerror}: {advice}", ExitStatus.FAILED)


def _say(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # stderr may be on a full disk, too: the status says it
        click.echo(f"collbench: {one_line(' '.join(message.split())[:_MAX_LETTERS])}", err=True)
    return status


def run() -> int:
    """Run the program on sys.argv; return its exit status."""
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without "×" or "→" shows "?"
    heed_signals()
    try:
        if question := os.environ.get(VARIABLE):
            _complete(question)
        launch = find_launch(os.environ)
        if launch is not None:
            return int(launched().run_together(launch, sys.argv[1:], _invoke))
        _invoke()
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.UsageError as error:
        return misused(error)
    except (CollbenchError, KeyboardInterrupt) as error:
        return failed(error)
    except OSError as error:
        return unwritten(error)
    return 0
