"""What a shell may write next: answers the shell functions that `collbench completion` prints.

click's own answers, with what it cannot know: that some texts are files, and where `train`'s script begins.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem, shell_complete

from collbench.launch.arguments import BACKENDS, SHORT, TORCHRUN_FLAGS, TORCHRUN_VALUES
from collbench.model.errors import CollbenchError

NAME, VARIABLE = "collbench", "_COLLBENCH_COMPLETE"
_FILES = re.compile(r"\b(FILE|PATH|JSON|RUN)\b")


def answer(program: click.Group, question: str) -> int:
    """Print what may follow, for a question such as "bash_complete"; return the exit status.

    A shell asks in the middle of a line: whatever is wrong there, nothing is said on stderr.
    """
    try:
        return shell_complete(_Program(program), {}, NAME, VARIABLE, question)
    except (CollbenchError, click.ClickException, click.exceptions.Exit, KeyError, ValueError, OSError):
        return 1


class _Program(click.Group):
    """The program as a shell sees it: the same commands, whose arguments are parsed but not run."""

    def __init__(self, program: click.Group) -> None:
        super().__init__(NAME, params=program.params, context_settings=program.context_settings)
        self._program = program

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._program.list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = self._program.get_command(ctx, cmd_name)
        return None if command is None else self._seen(ctx, command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take the spellings that the program takes."""
        name, command, rest = self._program.resolve_command(ctx, args)
        return name, None if command is None else self._seen(ctx, command), rest

    def _seen(self, ctx: click.Context, command: click.Command) -> click.Command:
        if type(command).parse_args is click.Command.parse_args:
            seen = copy.copy(command)
            seen.params = _typed(command.params)
            return seen
        # It splits its arguments itself, because a script follows: `train`, and what takes its options.
        train = self._program.get_command(ctx, "train")
        shared = train.params if train is not None and command.name != train.name else []
        return _BeforeScript(command, [*command.params, *shared])


class _BeforeScript(click.Command):
    """A command that starts a script: its options and torchrun's, then the script with its arguments."""

    def __init__(self, command: click.Command, params: Iterable[click.Parameter]) -> None:
        script = click.Argument(["script"], nargs=-1, type=click.Path())
        super().__init__(
            command.name,
            params=[*_typed(_unique(params)), *_torchrun(), script],
            context_settings={**command.context_settings, "allow_interspersed_args": False},
        )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return options before the script, and nothing of ours after it."""
        return [] if ctx.params.get("script") else super().shell_complete(ctx, incomplete)


def _torchrun() -> list[click.Parameter]:
    """Return torchrun's options, so that their values are not mistaken for the script."""
    short = {long: letter for letter, long in SHORT.items()}
    names = sorted(TORCHRUN_FLAGS | TORCHRUN_VALUES)
    return [
        click.Option([*([short[name]] if name in short else []), name], is_flag=name in TORCHRUN_FLAGS)
        for name in names
    ]


def _unique(params: Iterable[click.Parameter]) -> list[click.Parameter]:
    """Return the parameters without those whose option an earlier one has."""
    kept: dict[str, click.Parameter] = {}
    for param in params:
        kept.setdefault(param.opts[-1], param)
    return list(kept.values())


def _typed(params: Iterable[click.Parameter]) -> list[click.Parameter]:
    """Return the parameters with the type that a shell should know, for those that take any text."""
    return [_with_type(param) for param in params]


def _with_type(param: click.Parameter) -> click.Parameter:
    if not isinstance(param.type, type(click.STRING)) or getattr(param, "is_flag", False):
        return param
    kind: click.Path | click.Choice[str] | None = click.Path() if _FILES.search(param.metavar or "") else None
    if param.opts[-1] == "--backend":
        kind = click.Choice(BACKENDS)
    if kind is None:
        return param
    seen = copy.copy(param)
    seen.type = kind
    return seen
