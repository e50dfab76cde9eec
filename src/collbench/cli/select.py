"""`collbench select`: the best K devices, in the words of what will use them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import click

from collbench.api.keywords import fields_of
from collbench.api.selecting import DEFAULT_SIZE, Selected, SelectRequest, select_devices
from collbench.choose.choice import Selection
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import (
    NOTICES,
    columns,
    echo,
    is_json,
    is_verbose,
    json_option,
    leaving,
    prose_width,
    verbose_option,
)
from collbench.machine.device_names import ACTING, LIST, device_line
from collbench.model.errors import UsageError
from collbench.model.run import BACKENDS
from collbench.model.units import parse_size

_TEXT, _JSON = "text", "json"
_FORMATS = (_TEXT, _JSON, LIST, *ACTING)


class _Select(options.CheckedCommand):
    """A command that with --format env also fails in a shell's words, whatever goes wrong.

    `eval "$(collbench select …)"` does not see our exit status, and training would go on on all GPUs.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the words."""
        with _failing(in_shell="--format=env" in args or ("--format", "env") in pairwise(args)):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _failing(in_shell=ctx.params["output_format"] == "env"):
            return super().invoke(ctx)


@contextmanager
def _failing(*, in_shell: bool) -> Iterator[None]:
    try:
        yield
    except click.exceptions.Exit:  # --help
        raise
    except BaseException:
        if in_shell:
            with suppress(OSError):  # nobody reads it
                click.echo("false")
        raise


@click.command(cls=_Select)
@click.argument("count", metavar="K", type=options.COUNT)
@options.run_file
@options.apply(
    option("--any-machine", "With RUN.JSON: accept a run of another or a simulated machine."),
    option("--topology FILE", "Choose by the labels in saved 'nvidia-smi topo -m' text.", options.FILE_NAME),
    option(
        "--p2p FILE",
        "With --topology: avoid pairs without P2P in saved 'nvidia-smi topo -p2p r' text.",
        options.FILE_NAME,
    ),
    option("--gpu NAME", "With --topology: which GPUs, as H100, to show reference figures."),
    options.exclude,
    options.allow_busy,
    option(
        "--verify/--no-verify",
        "Measure the best sets and the first K devices before choosing.  [default: if the choice matters]",
        default=None,
    ),
    option(
        "--size SIZE",
        "All-reduce size for this measurement; use your job's size.",
        parse_size,
        name="size_bytes",
        default=DEFAULT_SIZE,
    ),
    option(
        "--format FORMAT",
        f"What to print: {', '.join(_FORMATS)}.",
        click.Choice(_FORMATS),
        name="output_format",
        default=_TEXT,
    ),
    json_option("The same as --format json."),
    options.max_age,
    options.fresh,
    options.backend_of_a_machine,
    options.fabric,
    options.nccl,
    verbose_option,
)
def select(*, output_format: str, **values: Any) -> None:
    """Choose the best K devices of this machine, or of a simulated one, and print the reason.

    Chooses from RUN.JSON, else from the newest saved run that fits this machine, else from a probe of a few seconds.
    GPUs that are busy, throttled or faulty now are left out. If the choice matters, it measures all-reduce on the best
    sets and chooses the fastest. Format text prints the reasons; any other prints only the answer on stdout, and the
    reasons on stderr.

    \b
    Examples:
      collbench select 2
      eval "$(collbench select 2 --format env)" && python train.py
      gpus=$(collbench select 2 --format docker) && eval "docker run $gpus IMAGE"
      gpus=$(collbench select 2 --format slurm) && srun $gpus python train.py
      collbench select 4 --topology topo.txt --gpu H100
      collbench select 4 --backend sim --fabric dgx-1v
    """
    output_format = _JSON if is_json() else output_format
    request = select_request(values)
    _check_format(request, output_format)
    selected = select_devices(request, NOTICES)
    with leaving(selected.status):
        _print(
            selected.selection if output_format in (_TEXT, _JSON) else _usable(selected, request, output_format),
            output_format,
            selected.status,
        )


def select_request(values: Mapping[str, Any]) -> SelectRequest:
    """Return what the options of `select` ask for, by name."""
    return SelectRequest(run=values["file"] and str(values["file"]), **fields_of(SelectRequest, values))


def _check_format(request: SelectRequest, output_format: str) -> None:
    """Raise UsageError for an answer that could not be acted on, before anything is measured."""
    backend = BACKENDS.get(request.backend)  # None for "auto", which takes only GPUs
    if backend is not None and not backend.nvml and output_format in ACTING:
        what = "CPU cores" if backend.cores else "simulated GPUs"
        raise UsageError(
            f"--format {output_format} is for GPUs, and --backend {request.backend} chooses {what}: write --format list"
        )
    if request.topology is not None and output_format in ACTING and "CUDA_VISIBLE_DEVICES" in os.environ:
        raise UsageError(
            f"--topology has all GPUs, and CUDA_VISIBLE_DEVICES may hide some: unset it for --format {output_format}"
        )


def _usable(selected: Selected, request: SelectRequest, output_format: str) -> Selection:
    """Return the selection for a program that acts on it and sees nothing else. Raises UsageError, NotTrusted."""
    backend = selected.selection.origin.backend
    if request.any_machine and not selected.selection.origin.acts and output_format in ACTING:
        raise UsageError(
            f"{request.run} was measured on the {backend} backend, which has no GPUs to use: "
            "write --format text, list or json"
        )
    return selected.check()


def _print(answer: Selection, output_format: str, status: int) -> None:
    """Print the answer on stdout; the reasons there, too, or on stderr where the answer is not for people."""
    from collbench.report.selection import explanation

    if output_format == _TEXT:
        echo(explanation(answer, prose_width() if columns() else None, verbose=is_verbose()))
        return
    if output_format == _JSON:
        from collbench.runfile.codec import document, plain

        line = document("selection", {"exit_status": status, **plain(answer)}, answer.origin.backend).rstrip()
    else:
        line = device_line(output_format, answer.devices)
    echo(explanation(answer, verbose=is_verbose()), err=True)
    echo(line)
