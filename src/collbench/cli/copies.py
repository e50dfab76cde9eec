"""`collbench pairs`, `collbench copies` and `collbench latency`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import click

from collbench.api import measuring
from collbench.api.measuring import PATTERNS
from collbench.cli import options
from collbench.cli.measuring import measuring_command, registration
from collbench.measurement.plan import Request
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant

Value = TypeVar("Value")


def _list_of(what: str, known: Mapping[str, Value]) -> Callable[[str], tuple[Value, ...]]:
    """Return what reads a list of known words, each once, as their values. Raises UsageError."""

    def parse(text: str) -> tuple[Value, ...]:
        names = dict.fromkeys(name.strip() for name in text.split(","))
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise UsageError(f"{what} '{unknown}' is unknown: choose from {','.join(known)}")
        return tuple(known[name] for name in names)

    return parse


_patterns = click.option(
    "--patterns",
    metavar="LIST",
    callback=options.parsed(_list_of("pattern", PATTERNS)),
    help=f"What to time: {', '.join(PATTERNS)}.  [default: all; host backend: one-way]",
)


@measuring_command(_patterns, sized=options.sizes_option("512M; host: 64M"))
def copies(request: Request, *, patterns: tuple[Variant, ...] | None) -> Request:
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
    return measuring.copies(request, patterns)


_collectives = click.option(
    "--collectives",
    is_flag=True,
    help="Time small all-reduces over all GPUs instead: 128 B to 1M in bfloat16, on each kind of memory.",
)
_layers = click.option(
    "--layers",
    metavar="L",
    type=options.COUNT,
    help=f"Layers of the model whose token --collectives counts.  [default: {measuring.DEFAULT_LAYERS}, as Llama-70B]",
)


@measuring_command(_collectives, _layers, sized=None)
def latency(request: Request, *, collectives: bool, layers: int | None) -> Request:
    """Time three latencies: one memory access, one copy of 8 bytes, one all-reduce of 8 bytes.

    The access is a pointer chase: a kernel reads another GPU's memory (or the host's), and each read gives the address
    of the next. The copy runs on each link, by copy engine and by kernel, written and read. The all-reduce runs on each
    pair, as device time and as an ungraphed launch loop.

    --collectives times what tensor-parallel inference sends: all-reduces over all GPUs, in CUDA graphs and launched one
    by one, on ordinary, registered and symmetric memory. The page says which memory is fastest, what the all-reduces of
    a token cost, and what vLLM's custom all-reduce takes on such a machine, where that is published.

    \b
    Examples:
      collbench latency
      collbench latency --devices 0,1 --precision 1%
      collbench latency --collectives --layers 32 --devices 0,1
    """
    if collectives:
        return measuring.small_allreduces(request, layers or measuring.DEFAULT_LAYERS)
    return measuring.latency(request)


_OPERATIONS = {"copy": None, **{operation.value: operation for operation in (Operation.ALLREDUCE, Operation.BROADCAST)}}
_operations = click.option(
    "--operations",
    default=",".join(_OPERATIONS),
    show_default=True,
    metavar="LIST",
    callback=options.parsed(_list_of("operation", _OPERATIONS)),
    help="What to time.",
)


@measuring_command(_operations, options.dtype, options.redop, registration, sized=options.survey_sizes)
def pairs(
    request: Request,
    *,
    operations: tuple[Operation | None, ...],
    registration: str,
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
    on_pairs = [operation for operation in operations if operation is not None]
    request = measuring.pairs(request, on_pairs, raw=None in operations)
    return measuring.with_memory(request, registration)
