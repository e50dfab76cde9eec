"""The commands that time links and collectives: pairs, copies, latency, and one for each of NCCL's collectives."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from collbench import untrusted
from collbench.api.keywords import MAX_COUNT, named
from collbench.cli import options
from collbench.cli.measuring import MeasuringCommand, measuring_command
from collbench.cli.options import option
from collbench.machine.launchers import find_launch
from collbench.measurement.backends import factory
from collbench.measurement.plan import Request, default_sizes
from collbench.model.errors import UsageError
from collbench.model.operations import (
    BLOCK_UNIT,
    COLLECTIVES,
    LARGEST_EXPONENT,
    Blocks,
    Operation,
    Registration,
    Skew,
    SkewKind,
    Variant,
    Work,
)
from collbench.model.run import capabilities
from collbench.model.units import (
    DTYPE_BYTES,
    REDOPS,
    amount,
    format_size,
    multiplied,
    parse_dtype,
    parse_size,
    parse_sizes,
)

Value = TypeVar("Value")


def _list_of(option: str, known: Mapping[str, Value]) -> Callable[[str], tuple[Value, ...]]:
    """Return what reads a list of known words, each once, as their values. Raises UsageError."""

    def parse(text: str) -> tuple[Value, ...]:
        return tuple(known[name] for name in dict.fromkeys(named(option, word, known) for word in text.split(",")))

    return parse


# Each kind of registered memory in one run.
_EVERY_REGISTRATION = "all"
# The option of collectives on pairs and on all devices.
_registration = option(
    "--registration KIND",
    "Registered memory: none, buffer, window, or all (each in turn).",
    click.Choice([*(registration.value for registration in Registration), _EVERY_REGISTRATION]),
    default=Registration.NONE.value,
)
_OPERATIONS = {"copy": None, **{operation.value: operation for operation in (Operation.ALLREDUCE, Operation.BROADCAST)}}
_operations = option(
    "--operations LIST", "What to time.", _list_of("--operations", _OPERATIONS), default=",".join(_OPERATIONS)
)


@measuring_command(_operations, options.dtype, options.redop, _registration, sized=options.survey_sizes)
def pairs(
    request: Request,
    *,
    operations: tuple[Operation | None, ...],
    registration: str,
    **_shared: Any,
) -> Request:
    """Measure every link and pair of GPUs, rank the pairs, and recommend devices.

    It times raw copies on every directed link (by copy engine and by SM kernel, written and read), and NCCL all-reduce
    and broadcast on every pair, at every size. The page has the labels, the measured matrix, the pairs in order and
    whether they tie, the best 2, 4, … devices, and where the run was saved. All data is verified.

    \b
    Examples:
      collbench pairs
      collbench pairs --devices 0,2,3 --sizes 1M:1G -o run.json
      collbench pairs --operations allreduce --backend host
    """
    copies = (Variant.PLAIN,) if None in operations else ()
    works = tuple(Work(operation) for operation in operations if operation is not None)
    return _with_memory(replace(request, copies=copies, collectives=works, pairs=True), registration)


def _with_memory(request: Request, registration: str, skew: Skew | None = None) -> Request:
    """Return the request with its collectives on registered memory, and blocks so cut.

    With "all" they run on each kind of registered memory side by side.
    """
    kinds = tuple(Registration) if registration == _EVERY_REGISTRATION else (Registration(registration),)
    works = tuple(
        replace(work, registration=kind, skew=skew if work.operation.irregular else None)
        for kind in kinds
        for work in request.collectives
    )
    return replace(request, collectives=works)


_BY_ITS_NAME = (kind for kind in Variant if kind not in (Variant.PLAIN, Variant.IN_PLACE, Variant.STAGED))
PATTERNS = {
    "one-way": Variant.PLAIN,
    **{kind.value: kind for kind in _BY_ITS_NAME},
    "staged": Variant.STAGED,
}
_patterns = option(
    "--patterns LIST",
    f"What to time: {', '.join(PATTERNS)}.  [default: all; host backend: one-way]",
    _list_of("--patterns", PATTERNS),
)


@measuring_command(_patterns, sized=options.sizes_option("512M; host: 64M"))
def copies(request: Request, *, patterns: tuple[Variant, ...] | None, **_shared: Any) -> Request:
    """Time raw copies by copy engine (ce) and by kernel (sm), written and read, in every pattern.

    Patterns: one-way on each link; both-ways, two messages at once; one-to-all and all-to-one, a device and all others
    at once; host, to and from pinned host memory; local, within a device's memory; staged, through host memory as
    without peer access. Host copies are also timed under load: host-both-ways, with the opposite direction; host-all,
    with all other devices; host-all-both-ways, with both. The page has a matrix or table for each at the largest size,
    in GB/s. All data is verified.

    \b
    Examples:
      collbench copies
      collbench copies --patterns both-ways,host --sizes 1M,1G
      collbench copies --patterns host,host-all,host-all-both-ways
      collbench copies --patterns one-way --devices 0,1 -o run.json
    """
    row = capabilities(request.backend)
    elsewhere = [variant for variant in patterns or () if variant is not Variant.PLAIN]
    if row.cores and elsewhere:
        raise UsageError(f"the {row.name} backend copies one-way only: leave out {', '.join(elsewhere)}")
    variants = patterns or tuple(PATTERNS.values())
    return replace(request, copies=variants, sizes=request.sizes or (row.largest_pattern_bytes,))


# All that a latency needs: the smallest message of the reference tools.
_SMALLEST = 8
# Those of Llama-70B.
_DEFAULT_LAYERS = 80
_collectives = option(
    "--collectives",
    "Time small all-reduces instead: 128 B to 1M in bfloat16, 2, 4, 8, … ranks, on each kind of memory.",
    name="of_inference",
)
_layers = option(
    "--layers L",
    f"Layers of the model whose token --collectives counts.  [default: {_DEFAULT_LAYERS}, as Llama-70B]",
    options.COUNT,
)


@measuring_command(_collectives, _layers, sized=None)
def latency(request: Request, *, of_inference: bool, **_shared: Any) -> Request:
    """Time three latencies: one memory access, one copy of 8 bytes, one all-reduce of 8 bytes.

    The access is a pointer chase: a kernel reads another GPU's memory (or the host's), and each read gives the address
    of the next. The copy runs on each link, by copy engine and by kernel, written and read. The all-reduce runs on each
    pair, as device time and as an ungraphed launch loop.

    --collectives times what tensor-parallel inference sends: all-reduces over the first 2, 4, 8, … GPUs and over all,
    in CUDA graphs and launched one by one, on ordinary, registered and symmetric memory. The page says for each number
    of ranks which memory is fastest, what the all-reduces of a token cost, and what vLLM's custom all-reduce takes on
    such a machine, where that is published. Which GPUs come first: --devices 0,3.

    \b
    Examples:
      collbench latency
      collbench latency --devices 0,1 --precision 1%
      collbench latency --collectives --layers 32 --devices 0,1
    """
    if of_inference:
        return _small_allreduces(request)
    return replace(
        request,
        sizes=(_SMALLEST,),
        copies=(Variant.PLAIN,),
        chase=True,
        collectives=(Work(Operation.ALLREDUCE),),
        pairs=True,
        launches=True,
    )


# What inference sends: from a message of one barrier to a batch of tokens; 400 launches suffice for a 99th percentile.
_SMALL, _SMALL_DTYPE, _SMALL_LAUNCHES = "128:1M", "bfloat16", 400


def _small_allreduces(request: Request) -> Request:
    """Return the request for small all-reduces on each kind of memory, in graphs and one by one.

    Raises UsageError for a backend without such memory.
    """
    row = capabilities(request.backend)
    if not (row.nccl or row.simulated):
        raise UsageError(f"the {row.name} backend has no NCCL: leave out --collectives")
    works = tuple(Work(Operation.ALLREDUCE, registration=kind) for kind in Registration)
    return replace(
        request,
        sizes=parse_sizes(_SMALL),
        dtype=_SMALL_DTYPE,
        collectives=works,
        latency=_SMALL_LAUNCHES,
        layers=request.layers or _DEFAULT_LAYERS,
    )


# One command for each of NCCL's collectives, with nccl-tests' flags as people type them.

# nccl-tests' default step without -f [2.19.6, src/common.cu, stepBytes].
_STEP = 2**20
# Above this an additive range is a forgotten -f: -b 8 -e 1G would be 1024 sizes, most of them alike.
_MAX_SIZES = 256


def _sizes(
    request: Request, minbytes: int | None, maxbytes: int | None, stepfactor: int | None
) -> tuple[int, ...] | None:
    """Return the sizes of -b, -e and -f: with both ends nccl-tests' steps, with one our range, doubling."""
    if minbytes is maxbytes is stepfactor is None:
        return request.sizes
    both = minbytes is not None and maxbytes is not None
    if minbytes is not None and maxbytes is not None and minbytes > maxbytes:
        raise UsageError(
            f"-b {format_size(minbytes)} is larger than -e {format_size(maxbytes)}: write the smaller one as -b"
        )
    default = default_sizes(request.backend)
    first = minbytes or min(default[0], maxbytes or default[0])
    last = maxbytes or max(default[-1], first)
    factor = stepfactor or (1 if both else 2)
    steps = (last - first) // _STEP
    if factor == 1 and steps >= _MAX_SIZES:
        raise UsageError(
            f"from {format_size(first)} to {format_size(last)} in steps of {format_size(_STEP)} are {steps + 1} sizes: "
            "double them with -f 2"
        )
    return tuple(range(first, last + 1, _STEP)) if factor == 1 else multiplied(first, last, factor)


def _devices(request: Request, count: int | None) -> str | None:
    """Return the first -g devices as --devices writes them; without it, the value of --devices."""
    if count is None:
        return request.devices
    launch = find_launch(os.environ)
    if launch is not None and launch.world_size > 1:
        if count > 1:
            raise UsageError(
                f"-g {count}: each of the {launch.world_size} processes has one device; start more processes instead"
            )
        return None
    if count < 2:
        raise UsageError(
            f"-g {count} is one device, and a collective needs two: write -g 2, or start one process per device"
        )
    present = factory.present_devices(request.backend, request.fabric)
    if count > len(present):
        raise UsageError(f"-g {count} asks for {count} of {amount(len(present), 'device')}: write fewer")
    return ",".join(str(device.index) for device in present[:count])


# -o is the only letter of nccl-tests that means something else in collbench.
_REDUCTION, _REDUCTIONS = "--op", (*REDOPS, "all", "mulsum")
_NCCL_FLAGS = (
    option("-b, --minbytes BYTES", "Smallest size.  [default: 8]", parse_size),
    option("-e, --maxbytes BYTES", "Largest size.  [default: 1G; host: 64M; -b if larger]", parse_size),
    option(
        "-f, --stepfactor N",
        "Multiply each size by this; 1: add 1M.  [default: 1 with both -b and -e, as nccl-tests, else 2]",
        options.COUNT,
    ),
    option(
        "-n, --iters N", "Calls in a batch, and in the launch loop.  [default: 20]", options.COUNT, name="iterations"
    ),
    option("-w, --warmup_iters N", "Untimed batches before a data point.", click.IntRange(0, MAX_COUNT), name="warmup"),
    option(
        "-d, --dtype, --datatype TYPE",
        f"Element type: {', '.join(DTYPE_BYTES)}, or nccl-tests' names.",
        parse_dtype,
        name="dtype",
        default="float32",
    ),
    options.redop,
    option("-r, --root RANK", "Rank of the root.", click.IntRange(min=0), default=0),
    option("-c, --check 0|1", "Verify the data.  [default: 1]", bool, type=click.IntRange(min=0), name="verify"),
    option(
        "-G, --cudagraph N",
        "With 1 or more, --format nccl-tests shows the graph replay's time, not the launch loop's.",
        click.IntRange(min=0),
        name="graph",
    ),
    option("-g, --ngpus N", "Measure the first N devices.  [default: all]", options.COUNT),
)


_OWN_OPTIONS = (
    option("--pairs", "Time each pair instead of all devices together."),
    option("--split N", "Time N disjoint communicators concurrently.", options.COUNT, default=1, show_default=False),
    option("--in-place", "Also time it in place, in separate rows."),
    option("--latency N", "Also time N single launches.", options.COUNT),
    _registration,
    options.output_format,
)


# How uneven the blocks of an all-to-all are: "zipf:1.2", or a file with a matrix.

_MAX_MATRIX_BYTES = 2**26  # two thousand ranks, each block in 16 digits
_SEED = re.compile(r"\d{1,9}", re.ASCII)


def parse_skew(text: str) -> Skew | None:
    """Return the skew that `text` names: "uniform" (None), "zipf:EXPONENT[:SEED]" or a matrix file. Raises UsageError.

    The seed says which ranks are popular. It defaults to 0, not to the run's seed, so that runs compare. The file is as
    NCCL_TESTS_ALLTOALLV_MATRIX_FILE names one for nccl-tests: a row of the matrix on each line, in bytes, separated by
    blanks; each is cut to whole units of 16 bytes.
    """
    kind, colon, parameters = text.strip().partition(":")
    if kind.lower() == "uniform" and not colon:
        return None
    if kind.lower() == SkewKind.ZIPF:
        number, colon, seed = parameters.partition(":")
        try:
            exponent = float(number)
        except ValueError:
            exponent = math.nan
        if not 0 <= exponent <= LARGEST_EXPONENT:
            raise UsageError(f"--skew {text}: write an exponent from 0 to {LARGEST_EXPONENT}, as zipf:1.2")
        if colon and _SEED.fullmatch(seed) is None:
            raise UsageError(f"--skew {text}: '{seed}' is not a seed: write a whole number, as in zipf:1.2:7")
        return Skew(SkewKind.ZIPF, exponent, int(seed or 0)) if exponent else None
    return Skew(SkewKind.MATRIX, matrix=_read_matrix(text))


def _read_matrix(name: str) -> Blocks:
    try:
        lines = untrusted.read_text(Path(name), _MAX_MATRIX_BYTES).splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"--skew {name} is not uniform or zipf:EXPONENT, and no matrix can be read from it: {reason}"
        ) from error
    rows = [tuple(_block_bytes(name, value) for value in line.split()) for line in lines if line.strip()]
    if not rows:
        raise UsageError(f"--skew {name}: the file holds no matrix: write a row of bytes for each rank")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows):
            raise UsageError(f"--skew {name}: row {number} of {len(rows)} has {len(row)} values: write a square matrix")
    if not any(map(any, rows)):
        raise UsageError(f"--skew {name}: no value reaches 16 bytes, the smallest block: nothing would be sent")
    return tuple(rows)


def _block_bytes(name: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 2**62:  # not a number is none of these
        raise UsageError(f"--skew {name}: '{text}' is not a number of bytes: write 0 or more")
    return int(value) // BLOCK_UNIT * BLOCK_UNIT


_skew = option("--skew KIND", "Block sizes: zipf:1.2, or FILE.", parse_skew, default="uniform")


_HELP = """Time {name} over all chosen GPUs as one communicator: {does}.

    Sizes are as in nccl-tests: bytes {size}. Columns: size, time, algbw, busbw and its 95% interval. "time" is device
    time (graph replay, slowest rank). --verbose adds "launch", one call of an ungraphed loop (mean), and others.

    \b
    Examples:
      collbench {command} --sizes 1M:1G
      collbench {command} --sizes 64M {example}
    """


class CollectiveCommand(MeasuringCommand):
    """A command that takes nccl-tests' flags, and shows them, which have one letter, in a section of their own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options. Raises UsageError, too, where -o, the run's file, is followed by a reduction."""
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:
            return rest
        if ctx.params["pairs"] and ctx.params["root"] > 1:
            raise UsageError(f"--root {ctx.params['root']} is not a rank of a pair: write 0 or 1")
        if (file := ctx.params.get("output")) is not None and str(file) in _REDUCTIONS:
            raise UsageError(f"-o {file}: -o is the run's file, as in every command: write --op {file}")
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write our options first, then nccl-tests'."""
        ours: list[tuple[str, str]] = []
        nccl_tests: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                letter = not param.opts[0].startswith("--") and not {"--help", "--output"} & set(param.opts)
                (nccl_tests if letter or param.opts[0] == _REDUCTION else ours).append(record)
        for title, records in (("Options", ours), ("Options with nccl-tests' names", nccl_tests)):
            with formatter.section(title):
                formatter.write_dl(records)


def _command(operation: Operation) -> MeasuringCommand:
    row = operation.collective
    size = "of all ranks' blocks together" if row.shares else "of one rank's buffer"
    size = "of the busiest rank" if row.irregular else size
    text = _HELP.format(command=operation, name=row.title, does=row.does, size=size, example=row.example)

    @measuring_command(
        *((_skew,) if row.irregular else ()),
        *_OWN_OPTIONS,
        *_NCCL_FLAGS,
        name=operation.value,
        text=text,
        cls=CollectiveCommand,
    )
    def command(  # noqa: PLR0913 - options
        request: Request,
        *,
        in_place: bool,
        registration: str,
        output_format: str,
        minbytes: int | None,
        maxbytes: int | None,
        stepfactor: int | None,
        ngpus: int | None,
        skew: Skew | None = None,
        **_shared: Any,
    ) -> Request:
        # nccl-tests' readers expect numbers in both halves: N/A is left where gloo cannot do it in place.
        works, inside = [Work(operation)], Work(operation, Variant.IN_PLACE)
        possible = not capabilities(request.backend).cores or inside.verifiable
        if in_place or (output_format == options.NCCL_TESTS and possible):
            works.append(inside)
        request = replace(
            request,
            sizes=_sizes(request, minbytes, maxbytes, stepfactor),
            devices=_devices(request, ngpus),
            collectives=tuple(works),
            launches=True,
        )
        return _with_memory(request, registration, skew)

    idle = {name for name, has_a_use in (("redop", row.reduces), ("root", row.rooted)) if not has_a_use}
    for param in command.params:
        if isinstance(param, click.Option) and param.name in idle:
            param.hidden = True  # taken and ignored, as nccl-tests does
    return command


COMMANDS = {operation.value: _command(operation) for operation in COLLECTIVES}
