"""What Python callers pass, checked and in the form that the command line has: a UsageError says what is wrong."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from collbench.machine.launchers import find_launch
from collbench.model.errors import MachineError, UsageError, did_you_mean
from collbench.model.run import Run, is_simulated

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Named = TypeVar("Named", bound=str)
_Passed = ParamSpec("_Passed")
_Answer = TypeVar("_Answer")
# Of trials, launches, layers, GPUs: with more, a call would end after years, or not fit in memory.
MAX_COUNT = 10**6


def path(value: object) -> Path:
    """Return a file's path, which the system can be asked for."""
    if isinstance(value, Run):
        raise UsageError("this is a run, not the path of its file, which collbench.runs() has of each saved run")
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(name, str):
        raise UsageError(f"{value!r} names no file: write its path")
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise UsageError(f"{value!r} names no file: it has a character that no file name has")
    return Path(name)


def flag(name: str, value: object) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is neither True nor False")
    return value


def whole(name: str, value: object, *, least: int = 0, most: int = MAX_COUNT) -> int:
    """Return a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{name}={value!r} is not a whole number from {least} to {most}")
    return value


def as_typed(text: str) -> str:
    """Return a word without what people may leave out of it or write in its place."""
    return "".join(letter for letter in text.lower() if letter not in "-_ ")


def named(name: str, value: object, choices: Iterable[Named]) -> Named:
    """Return the choice that a text names in one of the command line's spellings: "all-reduce" and "all_reduce"."""
    choices = tuple(choices)
    for choice in choices:
        if isinstance(value, str) and as_typed(value) == as_typed(choice):
            return choice
    near = did_you_mean(value, choices) if isinstance(value, str) else ""
    raise UsageError(f"{name}={value!r} is unknown: write one of {', '.join(choices)}{near}")


def several(value: object) -> list[Any]:
    """Return the values of an iterable, or the one value."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else [value]


def word(name: str, value: object) -> str:
    """Return numbers, words and paths, one or several, as people type them, with commas between them."""
    texts = []
    for item in several(value):
        if isinstance(item, bool) or not isinstance(item, int | float | str | os.PathLike):
            raise UsageError(f"{name} has {item!r}, which is neither a number nor a word")
        texts.append(f"{item:f}" if isinstance(item, float) else str(item))
    if not texts:
        raise UsageError(f"{name}={value!r} is empty: leave it out, or name one")
    return ",".join(texts)


def seconds(name: str, value: object) -> str:
    """Return a number of seconds as people type it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"{name}={value!r} is not a number of seconds above 0")
    return f"{word(name, value)}s"


# Options in what commands say, outside the command lines that are quoted; a word after this one is its value.
_COMMAND_LINE = re.compile(r"('collbench [^']*')")
_BACKEND, _OPTION = re.compile(r"--backend ([a-z]+)"), re.compile(r"(?<![\w-])--(no-)?([a-z][a-z-]*)")


def in_keywords(call: Callable[_Passed, _Answer]) -> Callable[_Passed, _Answer]:
    """Return a function of Python whose errors name its keywords where the command's name options."""

    @functools.wraps(call)
    def told(*args: _Passed.args, **options: _Passed.kwargs) -> _Answer:
        try:
            return call(*args, **options)
        except (UsageError, MachineError) as error:
            own = inspect.signature(call).parameters
            parts = _COMMAND_LINE.split(str(error))
            parts[::2] = [
                _OPTION.sub(partial(_keyword, own), _BACKEND.sub(r'--backend="\1"', one)) for one in parts[::2]
            ]
            raise error.reworded("".join(parts)) from error.__cause__

    return told


def _keyword(own: Container[str], option: re.Match[str]) -> str:
    """Return the keyword for an option, as it is if the call has none."""
    name = option[2].replace("-", "_")
    return option[0] if name not in own else f"{name}=False" if option[1] else name


def fields_of(kind: type[DataclassInstance], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, by name, that are fields of a kind of request; None leaves the field's default."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names and value is not None}


def check_run(value: object, what: str, call: str = "") -> None:
    """Raise UsageError if `value` is not a run, most often a file name. `call` is the function's name if not `what`."""
    if not isinstance(value, Run):
        advice = "collbench.load returns one"
        if isinstance(value, str | os.PathLike):
            advice = f"write collbench.{call or what}(collbench.load({os.fspath(value)!r}))"
        raise UsageError(f"cannot {what} a {type(value).__name__}: it is not a run; {advice}")


def check_only_process(call: str) -> None:
    """Raise UsageError in one of several processes: each would choose on its own, and load the GPUs of the others.

    CUDA_VISIBLE_DEVICES, set in one of them, would also be too late for the others.
    """
    launch = find_launch(os.environ)
    if launch is not None:
        raise UsageError(
            f"collbench.{call} was called in one of {launch.world_size} processes that {launch.launcher} started, and "
            "each would act for itself: do it before they start, with 'collbench train' or 'collbench select'"
        )


def check_fabric(backend: str, fabric: str | None) -> None:
    """Raise UsageError for a fabric without simulation; when simulating, for a wrong one and for several processes."""
    if not is_simulated(backend):
        if fabric is not None:
            raise UsageError(f"--fabric {fabric} is a machine to simulate: add --backend sim, or leave it out")
        return
    from collbench.measurement.backends import factory  # late: simulations are rare

    factory.simulated(fabric)
    if find_launch(os.environ) is not None:
        raise UsageError("--backend sim simulates all GPUs in one process: start it without torchrun, srun or mpirun")


def new_seed() -> int:
    """Return a random seed that fits on a line."""
    from random import SystemRandom  # late: most commands draw nothing

    return SystemRandom().randrange(10**6)
