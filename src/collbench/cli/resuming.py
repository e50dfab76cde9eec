"""--resume FILE: go on with a run under the options that it was started with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from collbench import runfile
from collbench.errors import UsageError
from collbench.model import Run, StopReason

OPTION = click.option(
    "--resume",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Finish this interrupted run: its options and its file, and nothing is measured twice.",
)


def resumable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command's function that with --resume is given the options recorded in the file.

    Beside them it gets "command", the recorded words. Raises UsageError, RunFileError.
    """

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        file = given["resume"]
        return function(**(given if file is None else _recorded(click.get_current_context(), file)))

    return command


def nothing_left(run: Run) -> bool:
    """Return whether every cell of a run was measured: it came to its end, and none failed on the way."""
    return run.complete and not any(found.stop is StopReason.FAILED for found in run.measurements)


def _recorded(context: click.Context, file: Path) -> dict[str, Any]:
    others = [
        param.opts[-1]
        for param in context.command.params
        if param.name != "resume" and context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    ]
    if others:
        raise UsageError(f"--resume takes all options from {file}: leave out {', '.join(others)}")
    run = runfile.load(file)
    name, *words = run.settings.command or ("",)
    if name != context.info_name:
        raise UsageError(f"{file} was measured by 'collbench {name}': write 'collbench {name} --resume {file}'")
    recorded = context.command.make_context(name, words, parent=context.parent)
    # What "auto" and a random seed stood for then.
    then = {"backend": run.backend, "seed": run.settings.seed}
    return {**recorded.params, **then, "resume": file, "command": run.settings.command}
