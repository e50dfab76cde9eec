"""--resume FILE: go on with a run under the options that it was started with.

The file may be a stranger's, so it names no file to be loaded, read or written: who resumes says those again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from collbench import runfile
from collbench.cli.terminal import say
from collbench.errors import UsageError
from collbench.model import Run, StopReason

OPTION = click.option(
    "--resume",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Finish this interrupted run: its options and its file, and nothing is measured twice.",
)

_COMMAND = re.compile(r"[a-z]+")
# Options that name files. What is recorded of them is not obeyed: of "nccl" our own search decides, and a fabric's file
# is refused by name; of the others one line says that they were left out.
_NAMING_FILES = ("nccl", "fabric", "json", "topology", "p2p")
_LEFT_OUT = ("json", "topology", "p2p")


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
        if param.name not in ("resume", *_NAMING_FILES) and _typed(context, param.name)
    ]
    if others:
        raise UsageError(f"--resume takes all options from {file}: leave out {', '.join(others)}")
    run = runfile.load(file)
    name, *words = run.settings.command or ("",)
    if name != context.info_name:
        raise UsageError(f"{file} was measured by {_named(name, file)}")
    recorded = context.command.make_context(name, words, parent=context.parent)
    again = {option: context.params[option] for option in _NAMING_FILES if option in context.params}
    if "fabric" in again and again["fabric"] is None:
        again["fabric"] = _shipped(recorded.params["fabric"], file)
    for option in _LEFT_OUT:
        if _typed(recorded, option) and not again[option]:
            say(f"--{option} {recorded.params[option]} of {file} is left out: write it again if you want it")
    # What "auto" and a random seed stood for then.
    then = {"backend": run.backend, "seed": run.settings.seed, "force": False}
    return {**recorded.params, **again, **then, "resume": file, "command": run.settings.command}


def _typed(context: click.Context, name: str | None) -> bool:
    return context.get_parameter_source(name or "") is ParameterSource.COMMANDLINE


def _named(name: str, file: Path) -> str:
    """Return which command measured a run, in words to be copied only if it is one of ours."""
    if not _COMMAND.fullmatch(name):
        return "no command of collbench: its options cannot be taken from it"
    return f"'collbench {name}': write 'collbench {name} --resume {file}'"


def _shipped(fabric: str | None, file: Path) -> str | None:
    """Return the recorded fabric if it is a shipped one. Raises UsageError for a file."""
    from collbench.fabric.file import names  # late: other backends need none

    if fabric is not None and fabric not in names():
        raise UsageError(f"{file} was measured on the machine in {fabric}: add --fabric {fabric} to have it read")
    return fabric
