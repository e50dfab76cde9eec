"""Python's `measure`, `select` and `train_command` make the request that the command makes of the same options."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from collbench.api import SILENT, keywords, selecting
from collbench.api.measuring import OpenSession, RequestSession
from collbench.api.runs import MeasuredRun
from collbench.choose.choice import Selection
from collbench.cli.measuring import MeasuringCommand
from collbench.cli.program import cli
from collbench.cli.select import select_request
from collbench.machine import device_names
from collbench.model.errors import UsageError
from collbench.model.operations import COLLECTIVES
from collbench.model.run import BACKENDS, CUDA
from collbench.runfile import run_file

if TYPE_CHECKING:
    from collbench.api.training import Launch

_COMMANDS = ("pairs", "copies", "latency", "check", *COLLECTIVES)


@keywords.in_keywords
def measure(  # noqa: PLR0913 - keywords, each an option of the command line
    command: str = "pairs",
    *,
    devices: Iterable[int | str] | None = None,
    sizes: Iterable[int | str] | None = None,
    backend: str | None = None,
    fabric: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    redop: str | None = None,
    precision: float | None = None,
    budget: float | None = None,
    quick: bool = False,
    latency: int | None = None,
    layers: int | None = None,
    nccl: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    registration: str | None = None,
    skew: str | None = None,
    output: str | os.PathLike[str] | None = None,
    save: bool = True,
) -> MeasuredRun:
    """Measure what `collbench COMMAND` measures (pairs, latency, check, allreduce, …), and return the run.

    `devices` are indices or UUIDs, `sizes` bytes or texts such as "1M:1G", `precision` a ratio, `budget` seconds, and
    `latency` a number of single launches, as the options of these names; None is the command's default. `registration`
    ("none", "buffer", "window", "all") applies to collectives and pairs; `skew` ("uniform", "zipf:1.2" or a matrix
    file) to alltoallv. With a model's `layers`, "latency" measures what `--collectives` does. A worker process uses the
    GPUs; this process does not start CUDA. The run is saved as `output`, or as a new file that `runs` lists, unless
    `save` is False. Raises Error; partial failures are in the run (docs/run-file.md).
    """
    given = dict(locals())
    keywords.check_only_process("measure")
    command = keywords.named("command", command, _COMMANDS)
    given["collectives"] = layers is not None
    context, words = called(command, given, besides=("command", "output", "save"))
    request = cast("MeasuringCommand", context.command).request(context.params, words)
    open_session = partial(RequestSession, request, notices=SILENT, title=f"measuring {command}")
    return measured_run(command, request.backend, open_session, output, save=save)


def measured_run(
    command: str, backend: str, open_session: Callable[[Path | None], OpenSession], output: object, *, save: object
) -> MeasuredRun:
    """Measure a session to its end, and return its run: saved as `output`, else in a new file unless not `save`."""
    path = None if output is None else keywords.path(output)
    if path is None and keywords.flag("save", save):
        path = run_file.new_run(command, backend, SILENT.say)
    return MeasuredRun.of(open_session(path).finish().saved_run())


def called(
    name: str, given: Mapping[str, object], arguments: Sequence[str] = (), *, besides: Collection[str] = ()
) -> tuple[click.Context, list[str]]:
    """Return a command's options, read as it reads them, and its words.

    `given` are a call's keywords, which are long options or their parameters' names, except those `besides`; None
    leaves an option out. Raises UsageError for one that the command does not have, or a value that it does not take.
    """
    params: dict[str, click.Option] = {}
    for param in _command(name).params:
        if isinstance(param, click.Option):
            params |= {word.removeprefix("--").replace("-", "_"): param for word in (param.name or "", *param.opts)}
    words = []
    for keyword, value in given.items():
        if keyword in besides:
            continue
        if keyword in params:
            words += _words(params[keyword], keyword, value)
        elif value is not None and value is not False:
            raise UsageError(f"{name} takes no {keyword}: leave it out")
    words += ["--", *arguments] if arguments else []
    return context_of(name, words), [name, *words]


def _words(option: click.Option, name: str, value: object) -> list[str]:
    """Return the words that give an option a value; reading them checks the value."""
    if value is None:
        return []
    if option.is_flag:
        return (option.opts if keywords.flag(name, value) else option.secondary_opts)[:1]
    long = next(word for word in option.opts if word.startswith("--"))
    if isinstance(option.type, click.Path):
        return [long, str(keywords.path(value))]
    return [long, (keywords.seconds if option.metavar == "TIME" else keywords.word)(name, value)]


def context_of(name: str, words: Sequence[str]) -> click.Context:
    """Return a command's context, with its options as it reads them. Raises UsageError."""
    try:
        # Without --help, which would print a page and end the program.
        return _command(name).make_context(name, [*words], click.Context(cli, help_option_names=[]))
    except click.UsageError as error:
        raise UsageError(error.format_message().rstrip(".")) from None


def _command(name: str) -> click.Command:
    return cast("click.Command", cli.get_command(click.Context(cli), name))


@keywords.in_keywords
def select(  # noqa: PLR0913 - keywords, each an option of the command line
    k: int,
    *,
    run: str | os.PathLike[str] | None = None,
    exclude: Iterable[int | str] = (),
    allow_busy: bool = False,
    verify: bool | None = None,
    size: int | str | None = None,
    fresh: bool = False,
    backend: str = CUDA.name,
    fabric: str | os.PathLike[str] | None = None,
) -> Selection:
    """Choose this machine's best `k` GPUs, set CUDA_VISIBLE_DEVICES to them, and return them with the reasons.

    The options are those of `collbench select`: `run` is a run file to choose from, `exclude` indices or UUIDs, `size`
    bytes or a text such as "64M". With `verify` None, the finalists are measured if the choice matters. Call it before
    CUDA starts in this process. Worker processes take all measurements and end before it returns. With `backend` "sim"
    it chooses among the GPUs of the simulated machine `fabric`, with "host" among CPU cores; both leave the environment
    as it is. Raises Error; the environment is then unchanged, too.
    """
    given = dict(locals()) | {"exclude": keywords.several(exclude) or None}
    keywords.check_only_process("select")
    arguments = [str(keywords.whole("k", k, least=1)), *([] if run is None else [str(keywords.path(run))])]
    context, _ = called("select", given, arguments, besides=("k", "run"))
    row = BACKENDS.get(context.params["backend"])  # None for "auto", which takes only GPUs
    if row is None or row.nvml:
        device_names.check_cuda_is_down()
    selection = selecting.select_devices(select_request(context.params)).check()
    os.environ.update(selection.environment)
    return selection


def train_command(words: Iterable[str]) -> Launch:
    """Choose GPUs as `collbench train` does with these arguments, and return what it would start, without starting it.

    `command` are the arguments of the command, `changes` the variables to set for it. Raises Error.
    """
    argument_list = keywords.several(words)
    if isinstance(words, str) or not argument_list or not all(isinstance(word, str) for word in argument_list):
        raise UsageError(f"{words!r} is not a list of words: write ['--auto-select', '2', 'train.py']")
    keywords.check_only_process("train_command")
    from collbench.api.training import prepare  # late: few programs start training
    from collbench.cli.train import train_request

    return prepare(train_request(context_of("train", argument_list).params))
