"""`collbench pairs`, `collbench copies` and `collbench latency`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from collbench.api import requests
from collbench.cli import options
from collbench.cli.measuring import measure_and_show
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant

# `collbench copies` and `collbench latency`: raw copies in every pattern, and the three latencies.


_PATTERNS = {
    "one-way": Variant.PLAIN,
    "both-ways": Variant.BOTH_WAYS,
    "one-to-all": Variant.ONE_TO_ALL,
    "all-to-one": Variant.ALL_TO_ONE,
    "host": Variant.HOST,
    "staged": Variant.STAGED,
}
# nvbandwidth's own default on GPUs (-b 512); cores copy fifty times slower.

_patterns = click.option(
    "--patterns", metavar="LIST", help=f"What to time: {', '.join(_PATTERNS)}.  [default: all; host backend: one-way]"
)
_sizes = click.option(
    "--sizes",
    metavar="SIZES",
    help="Message sizes: one, MIN:MAX (doubling), MIN:MAX:FACTOR, or a list of these. The page shows the largest.  "
    "[default: 512M; host backend: 64M]",
)


@click.command(short_help="Time raw copies in every pattern, host memory included.")
@options.measuring(_patterns, sized=_sizes)
def copies(**given: Any) -> None:
    """Time raw copies by copy engine (ce) and by kernel (sm), written and read, in every pattern.

    Patterns: one-way on each link; both-ways, two messages at once; one-to-all and all-to-one, a device and all
    others at once; host, to and from pinned host memory; staged, through host memory as without peer access. Prints
    a matrix or table for each, in GB/s. All data is verified.

    \b
    Examples:
      collbench copies
      collbench copies --patterns both-ways,host --sizes 1M,1G
      collbench copies --patterns one-way --devices 0,1 -o run.json
    """
    wanted = _parse_patterns(given["patterns"])
    request, path = options.make_request("copies", given)
    elsewhere = [word for word, variant in _PATTERNS.items() if variant in wanted and variant is not Variant.PLAIN]
    if capabilities(request.backend).cores and given["patterns"] is not None and elsewhere:
        raise UsageError(f"the host backend copies one-way only: leave out {', '.join(elsewhere)}")
    if not request.resume:
        sizes = request.sizes or (capabilities(request.backend).largest_pattern_bytes,)
        request = replace(request, copies=wanted, sizes=sizes)
    measure_and_show(request, path)


@click.command(short_help="Time one access, one small copy, one small all-reduce.")
@options.measuring(sized=None)
def latency(**given: Any) -> None:
    """Time three latencies: one access, one copy of 8 bytes, one all-reduce of 8 bytes.

    The access is a pointer chase: a kernel reads another GPU's memory (or the host's), each address from the last
    read. The copy runs on each link, by copy engine and by kernel, written and read. The all-reduce runs on each
    pair, as device time and as an ungraphed launch loop.

    \b
    Examples:
      collbench latency
      collbench latency --devices 0,1 --precision 1%
    """
    request, path = options.make_request("latency", given)
    measure_and_show(request if request.resume else requests.latency(request), path)


def _parse_patterns(text: str | None) -> tuple[Variant, ...]:
    if text is None:
        return tuple(_PATTERNS.values())
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in _PATTERNS:
            raise UsageError(f"pattern '{word}' is unknown: choose from {','.join(_PATTERNS)}")
    return tuple(_PATTERNS[word] for word in words)


# `collbench pairs`: every link and pair, measured, on one page.


_COPY = "copy"
_COLLECTIVES = {operation.value: operation for operation in (Operation.ALLREDUCE, Operation.BROADCAST)}
_EVERYTHING = ",".join((_COPY, *_COLLECTIVES))


_operations = click.option(
    "--operations",
    default=_EVERYTHING,
    show_default=True,
    metavar="LIST",
    help="What to time.",
)


@click.command(short_help="Measure every link and pair of GPUs, and rank the pairs.")
@options.measuring(_operations, options.dtype, options.redop, sized=options.survey_sizes)
def pairs(**given: Any) -> None:
    """Measure every link and pair of GPUs, rank the pairs, and recommend devices.

    Times raw copies on every directed link (by copy engine and by SM kernel, written and read), and NCCL all-reduce
    and broadcast on every pair, at every size. Prints the labels, the measured matrix, the pairs in order and whether
    they tie, the best 2, 4, … devices, and where the run was saved. All data is verified.

    \b
    Examples:
      collbench pairs
      collbench pairs --devices 0,2,3 --sizes 1M:1G -o run.json
      collbench pairs --operations allreduce --backend host
    """
    asked = _parse_operations(given["operations"])
    request, path = options.make_request("pairs", given)
    if not request.resume:
        operations = [_COLLECTIVES[word] for word in asked if word != _COPY]
        request = requests.pairs(request, operations, copies=_COPY in asked)
    measure_and_show(request, path)


def _parse_operations(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word != _COPY and word not in _COLLECTIVES:
            raise UsageError(f"operation '{word}' is unknown: choose from {_EVERYTHING}")
    return words
