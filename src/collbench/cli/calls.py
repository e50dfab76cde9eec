"""`collbench.measure`: a Python call that makes the request that a command makes of the same options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import cast

import click

from collbench.api import keywords, sessions
from collbench.api.measured_run import MeasuredRun
from collbench.api.measuring import request_of
from collbench.api.notices import SILENT
from collbench.cli.measuring import MeasuringCommand, divided
from collbench.cli.program import cli
from collbench.measurement.plan import Request
from collbench.model.errors import UsageError
from collbench.model.operations import COLLECTIVES
from collbench.runfile import run_file

_COMMANDS = ("pairs", "copies", "latency", "check", *COLLECTIVES)


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
    nccl_config: Mapping[str, int] | None = None,
    skew: str | None = None,
    output: str | os.PathLike[str] | None = None,
    save: bool = True,
) -> MeasuredRun:
    """Measure what `collbench COMMAND` measures (pairs, latency, check, allreduce, …), and return the run.

    `devices` are indices or UUIDs, `sizes` bytes or texts such as "1M:1G", `precision` a ratio, `budget` seconds, and
    `latency` a number of single launches, as the options of these names; None is the command's default. `registration`
    ("none", "buffer", "window", "all") and `nccl_config`, fields of ncclConfig_t, apply to collectives and pairs;
    `skew` ("uniform", "zipf:1.2" or a matrix file) to alltoallv. With a model's `layers`, "latency" measures what
    `--collectives` does. A worker process uses the GPUs; this process does not
    start CUDA. The run is saved as `output`, or as a new file that `runs` lists, unless `save` is False. Raises Error;
    partial failures are in the run (docs/run-file.md).
    """
    keywords.check_only_process("measure")
    command = keywords.named("command", command, _COMMANDS)
    config = keywords.mapping("nccl_config", nccl_config or {})
    request = _request(
        command,
        {
            "devices": keywords.optional(keywords.listed, "devices", devices),
            "sizes": keywords.optional(keywords.listed, "sizes", sizes),
            "backend": keywords.optional(keywords.text, "backend", backend),
            "fabric": keywords.optional(keywords.file_name, fabric),
            "dtype": keywords.optional(keywords.text, "dtype", dtype),
            "redop": keywords.optional(keywords.text, "redop", redop),
            "precision": None if precision is None else f"{keywords.number('precision', precision, below=1):f}",
            "budget": None if budget is None else f"{keywords.number('budget', budget):f}s",
            "quick": keywords.flag("quick", quick),
            "latency": keywords.optional(keywords.listed, "latency", latency),
            "layers": keywords.optional(keywords.listed, "layers", layers),
            "collectives": layers is not None,
            "nccl": keywords.optional(keywords.file_name, nccl),
            "seed": keywords.optional(keywords.listed, "seed", seed),
            "registration": keywords.optional(keywords.text, "registration", registration),
            "nccl_config": ",".join(f"{name}={value}" for name, value in config.items()) or None,
            "skew": keywords.optional(keywords.text, "skew", skew),
        },
    )
    path = keywords.run_path(command, request.backend, output, save)
    done = sessions.measure(request, path, SILENT, f"measuring {command}")
    if done.failure is not None:
        raise done.failure
    return MeasuredRun.of(run_file.again(done.run))


def _request(name: str, given: Mapping[str, str | bool | None]) -> Request:
    """Return the request that a command makes of its options by name, those of None and False left out.

    Raises UsageError for an option that the command does not have, or a value that it does not take.
    """
    parent = click.Context(cli, **cli.context_settings)
    command = cast("MeasuringCommand", cli.get_command(parent, name))
    params = {param.name: param for param in command.params}
    words = [name]
    for option, value in given.items():
        if value is None or value is False:
            continue
        if option not in params:
            raise UsageError(f"{name} takes no {option}: leave it out")
        words.append(next(word for word in params[option].opts if word.startswith("--")))
        words += [value] if isinstance(value, str) else []
    try:
        options, own = divided(command.make_context(name, words[1:], parent).params)
    except click.UsageError as error:
        raise UsageError(error.format_message().rstrip(".")) from None
    del own["as_json"]  # how a page is printed
    return command.plan(request_of(name, options, words), **own)
