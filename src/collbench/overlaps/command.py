"""`collbench overlap`: what a collective and compute cost each other when they run at the same time on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from collbench.api import SILENT, Notices, keywords
from collbench.api.measuring import resolved_backend
from collbench.cli import options
from collbench.cli.measuring import measure_with_workers, new_file
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import capabilities
from collbench.overlaps.results import OPERATIONS, Compute, ComputeKind, Priority, parse_compute

if TYPE_CHECKING:
    from collbench.api.runs import MeasuredRun
    from collbench.overlaps.measure import OverlapRequest

PRIORITIES = {"normal": (Priority.NORMAL,), "high": (Priority.HIGH,), "both": (Priority.NORMAL, Priority.HIGH)}
# From where links rather than launches take the time, to the largest buckets of a large model.
_GPU_SIZES = tuple(size * 2**20 for size in (16, 64, 256, 1024))
_CORE_SIZES = tuple(size * 2**20 for size in (1, 4, 16))
_GPU_COMPUTE, _CORE_COMPUTE = Compute(ComputeKind.GEMM, 8192), Compute(ComputeKind.GEMM, 512)
# Six trials have up to 120 calls during compute, at moments spread over all trials (method/collectives.md 8).
_GPU_TRIALS, _CORE_TRIALS = 6, 5
_MAX_CTAS = 64  # MAXCHANNELS [NCCL 2.28 src/include/device.h]


def parse_computes(text: str) -> tuple[Compute, ...]:
    """Return the computes that a list names, each once. Raises UsageError."""
    return tuple(dict.fromkeys(map(parse_compute, text.split(","))))


def parse_ctas(text: str) -> tuple[int, ...]:
    """Return numbers of thread blocks, each once: "1,2,4". Raises UsageError."""
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isascii() and number.isdigit() and 1 <= int(number[:4]) <= _MAX_CTAS for number in numbers):
        raise UsageError(f"--ctas '{text}' is not a list of numbers from 1 to {_MAX_CTAS}: write 1,2,4")
    return tuple(dict.fromkeys(map(int, numbers)))


def parse_operation(text: str) -> Operation:
    """Return the collective that "allreduce" or "all-reduce" names. Raises UsageError for what overlap cannot run."""
    plain = keywords.as_typed(text)
    matched = next((operation for operation in OPERATIONS if operation == plain), None)
    if matched is None:
        raise UsageError(f"overlap cannot run '{text}': choose from {', '.join(OPERATIONS)}")
    return matched


def request_of(values: Mapping[str, Any], command: Sequence[str], notices: Notices = SILENT) -> OverlapRequest:
    """Return what the options of `collbench overlap` ask for, by name; the command line is `command`, for people.

    None leaves the choice to the backend's defaults. Raises UsageError.
    """
    from collbench.overlaps.measure import OverlapRequest  # late: numpy

    name = resolved_backend(values["backend"], values["fabric"], notices)
    cores, priorities = capabilities(name).cores, PRIORITIES[values["priority"]]
    if cores and (values["ctas"] is not None or Priority.HIGH in priorities):
        raise UsageError(f"the {name} backend has no streams and no channels: leave out --priority and --ctas")
    sizes, computes, trials = (
        (_CORE_SIZES, _CORE_COMPUTE, _CORE_TRIALS) if cores else (_GPU_SIZES, _GPU_COMPUTE, _GPU_TRIALS)
    )
    return OverlapRequest(
        backend=name,
        sizes=values["sizes"] or sizes,
        computes=values["computes"] or (computes,),
        priorities=priorities,
        ctas=values["ctas"] or (None,),
        trials=values["trials"] or trials,
        command=tuple(command),
        requested_sizes=values["sizes"],
        **{option: values[option] for option in ("operation", "devices", "fabric", "force", "seed")},
    )


@click.command("overlap")
@click.argument("operation", metavar="[OPERATION]", default="allreduce", callback=options.parsed(parse_operation))
@options.apply(
    options.devices,
    options.sizes_option("16M,64M,256M,1G; host: 1M,4M,16M"),
    option(
        "--compute LIST",
        "What to compute at the same time: gemm:N (N x N matrix product), memory:N (sum of two vectors of N MiB), "
        "or a list.  [default: gemm:8192; host: gemm:512]",
        parse_computes,
        name="computes",
    ),
    option("--priority", "Priority of the collective's stream.", click.Choice(tuple(PRIORITIES)), default="normal"),
    option(
        "--ctas LIST",
        "Numbers of thread blocks (channels) for NCCL, each in its own row: 1,2,4.  [default: NCCL's choice]",
        parse_ctas,
    ),
    option("--trials N", "Trials of each data point.  [default: 6; host: 5]", options.COUNT),
    *options.of_workers,
)
def command(**values: Any) -> None:
    """Time a collective and compute on the same GPUs, each alone and both together.

    One process for each GPU runs torch's NCCL on one stream and the compute on another. The page has the time of each
    alone and while the other runs, and the time of both together over the longer of the two (1.0: perfect overlap) and
    over their sum. OPERATION is allreduce, allgather, reducescatter, broadcast or alltoall. All data and all results
    are verified.

    \b
    Examples:
      collbench overlap
      collbench overlap --sizes 64M --priority both
      collbench overlap allgather --compute gemm:4096,memory
      collbench overlap --sizes 256M --ctas 4,8,16
    """
    request = request_of(values, options.command_line("overlap"), NOTICES)
    path = values["output"] or new_file("overlap", request.backend)
    from collbench.overlaps.workers import WorkerSession  # late: numpy

    measure_with_workers(partial(WorkerSession, request, path, NOTICES))


COMMANDS = {"overlap": command}  # the Python call has its name


# The Python call.


def overlap(  # noqa: PLR0913 - keywords, each an option of the command line
    operation: str = "allreduce",
    *,
    devices: Iterable[int | str] | None = None,
    sizes: Iterable[int | str] | None = None,
    compute: str | Iterable[str] | None = None,
    priority: str = "normal",
    ctas: int | Iterable[int] | None = None,
    trials: int | None = None,
    backend: str = "auto",
    fabric: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    output: str | os.PathLike[str] | None = None,
    save: bool = True,
) -> MeasuredRun:
    """Measure what `collbench overlap` measures, a collective that overlaps compute, and return the run.

    The keywords are its options: `sizes` in bytes or texts such as "64M", `compute` texts such as "gemm:8192". Worker
    processes use the GPUs and torch; this process does not start CUDA. The run is saved as `output`, or as a new file
    that `runs` lists, unless `save` is False. Raises Error; partial failures are in the run (docs/run-file.md).
    """
    given = dict(locals())
    from collbench.cli.calls import called, measured_run  # late: the command needs no other command

    keywords.check_only_process("overlap")
    arguments = [keywords.word("operation", operation)]
    context, words = called("overlap", given, arguments, besides=("operation", "output", "save"))
    request = request_of(context.params, words)
    from collbench.overlaps.workers import WorkerSession  # late: numpy

    return measured_run("overlap", request.backend, partial(WorkerSession, request), output, save=save)
