"""nccl-tests' flags on the collective commands, as people type them, and what they ask of a measurement.

NCCL_FLAGS are the options: they hold --dtype, --op and --root too, each beside nccl-tests' name for it. The flags that
ask for something else than collbench measures are in `nccl_refused`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from collbench.backends import opening
from collbench.cli.nccl_refused import REFUSED
from collbench.dtypes import DTYPE_BYTES, REDOPS, parse_dtype
from collbench.errors import UsageError
from collbench.planning import default_sizes
from collbench.units import format_size, parse_size

# nccl-tests' own step where -f does not say otherwise [src/common.cu, stepBytes].
_STEP = 2**20
# Above this an additive range is a forgotten -f: -b 8 -e 1G would be 1024 sizes, most of them alike.
_MOST_SIZES = 256
_DECIMAL = re.compile(r"(\d{1,9}\.\d{1,9})([KMG]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_RANGE = ("minbytes", "maxbytes", "stepbytes", "stepfactor")


def apply_nccl_flags(given: Mapping[str, Any], backend: str, processes: int = 1) -> dict[str, Any]:
    """Return the fields of planning.Request that the flags ask for; what nobody typed is left out, but for defaults.

    `backend` is "cuda", "host" or "sim", `processes` the ranks of a torchrun-like launch. Raises UsageError where two
    options contradict each other.
    """
    fields: dict[str, Any] = {"dtype": given["dtype"], "redop": given["redop"], "root": given["root"]}
    sizes = _sizes(given, backend)
    if sizes is not None:
        fields["sizes"] = sizes
    devices = _devices(given, backend, processes)
    if devices is not None:
        fields["devices"] = devices
    for flag, field in (("iters", "iterations"), ("warmup_iters", "warmup")):
        if given[flag] is not None:
            fields[field] = given[flag]
    if given["check"] is not None:
        fields["verify"] = given["check"] > 0
    return fields


def _sizes(given: Mapping[str, Any], backend: str) -> tuple[int, ...] | None:
    """Return the sizes of -b, -e, -i and -f: with both ends nccl-tests' steps, with one our default range, doubling."""
    if all(given[name] is None for name in _RANGE):
        return None
    if given["sizes"] is not None:
        raise UsageError("--sizes and -b/-e/-i/-f both say which sizes to measure: leave one out")
    default = default_sizes(backend)
    low, high = given["minbytes"], given["maxbytes"]
    if low is not None and high is not None and low > high:
        raise UsageError(f"-b {format_size(low)} is larger than -e {format_size(high)}: write the smaller one as -b")
    both = low is not None and high is not None
    first = low or min(default[0], high or default[0])
    last = high or max(default[-1], first)
    factor = given["stepfactor"] or (2 if given["stepbytes"] is None and not both else 1)
    return _stepped(first, last, factor, given["stepbytes"] or _STEP)


def _stepped(first: int, last: int, factor: int, step: int) -> tuple[int, ...]:
    """Return the sizes from first to last: by the factor above 1, else by the step in bytes. Raises UsageError."""
    if factor == 1 and (last - first) // step >= _MOST_SIZES:
        raise UsageError(
            f"from {format_size(first)} to {format_size(last)} in steps of {format_size(step)} are "
            f"{(last - first) // step + 1} sizes: double them with -f 2, or widen the step with -i"
        )
    sizes = [first]
    while (larger := sizes[-1] * factor if factor > 1 else sizes[-1] + step) <= last:
        sizes.append(larger)
    return tuple(sizes)


def _devices(given: Mapping[str, Any], backend: str, processes: int) -> str | None:
    """Return the first -g × -t devices as --devices takes them, None where neither was given. Raises UsageError."""
    asked = [f"-{flag} {given[name]}" for flag, name in (("g", "ngpus"), ("t", "nthreads")) if given[name] is not None]
    if not asked:
        return None
    flags, count = " ".join(asked), (given["ngpus"] or 1) * (given["nthreads"] or 1)
    if given["devices"] is not None:
        raise UsageError(f"--devices and {flags} both say which devices to measure: leave one out")
    if processes > 1:
        if count > 1:
            raise UsageError(f"{flags}: each of the {processes} processes has one device; start more processes instead")
        return None
    if count < 2:
        raise UsageError(f"{flags} is one device, and a collective needs two: write -g 2, or start a process for each")
    simulated = backend == "sim"
    present = opening.simulated_devices(given["fabric"]) if simulated else opening.present_devices(backend)
    if count > len(present):
        raise UsageError(f"{flags} asks for {count} devices, and this process may use {len(present)}: write fewer")
    return ",".join(str(device.index) for device in present[:count])


def _size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """Return the bytes of "8", "64K", "1g" or "1.5G", as nccl-tests reads them. Raises UsageError."""
    if text is None:
        return None
    match = _DECIMAL.fullmatch(text.strip())
    return parse_size(str(int(float(match[1]) * parse_size(f"1{match[2]}")))) if match else parse_size(text)


def _dtype(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """Return our name of the type. Raises UsageError."""
    if text == "all":
        raise UsageError("-d all: a run has one type; loop over them: for t in float half bfloat16; do … -d $t; done")
    return parse_dtype(text)


def _redop(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """Return the reduction. Raises UsageError, with --output for what looks like a file."""
    if text.lower() in REDOPS:
        return text.lower()
    if text == "all":
        raise UsageError("-o all: a run has one reduction; loop over them: for o in sum max avg; do … -o $o; done")
    if text == "mulsum":
        raise UsageError("-o mulsum is not measured: -o sum moves the same bytes")
    if "/" in text or "." in text:
        raise UsageError(f"-o is the reduction here, as in nccl-tests: save the run with --output {text}")
    raise UsageError(f"reduction '{text}' is unknown: choose from {', '.join(REDOPS)}")


def _root(_context: click.Context, _option: click.Parameter, root: int) -> int:
    """Return the root's rank. Raises UsageError, for nccl-tests' -1 too."""
    if root == -1:
        raise UsageError("-r -1: a run has one root; loop over them: for r in 0 1; do … -r $r; done")
    if root < -1:
        raise UsageError(f"-r {root} is no rank: ranks count from 0")
    return root


_BYTES, _COUNT = "BYTES", click.IntRange(min=1)
NCCL_FLAGS = (
    click.option("-b", "--minbytes", metavar=_BYTES, callback=_size, help="Smallest size.  [default: 8]"),
    click.option(
        "-e", "--maxbytes", metavar=_BYTES, callback=_size, help="Largest size.  [default: 1G; host: 64M; -b if larger]"
    ),
    click.option("-f", "--stepfactor", metavar="N", type=_COUNT, help="Multiply sizes by this.  [default: see -i]"),
    click.option(
        "-i",
        "--stepbytes",
        metavar=_BYTES,
        callback=_size,
        help="Add this to sizes instead.  [default: 1M with both -b and -e, as nccl-tests; else sizes double]",
    ),
    click.option(
        "-n", "--iters", metavar="N", type=_COUNT, help="Calls of a timed block, and of the launch loop.  [default: 20]"
    ),
    click.option("-w", "--warmup_iters", metavar="N", type=click.IntRange(min=0), help="Untimed blocks before a cell."),
    click.option(
        "-d",
        "--dtype",
        "--datatype",
        "dtype",
        metavar="TYPE",
        default="float32",
        show_default=True,
        callback=_dtype,
        help=f"Element type: {', '.join(DTYPE_BYTES)}, or nccl-tests' names.",
    ),
    click.option(
        "-o",
        "--op",
        "redop",
        metavar="OP",
        default="sum",
        show_default=True,
        callback=_redop,
        help=f"Reduction, where there is one: {', '.join(REDOPS)}.",
    ),
    click.option(
        "-r",
        "--root",
        metavar="RANK",
        type=int,
        default=0,
        show_default=True,
        callback=_root,
        help="The root by rank, where there is one.",
    ),
    click.option("-c", "--check", metavar="0|1", type=click.IntRange(min=0), help="Verify the data.  [default: 1]"),
    click.option(
        "-G",
        "--cudagraph",
        metavar="N",
        type=click.IntRange(min=0),
        help="With 1 or more, --format nccl-tests and --json show the graph replay's time, not the launch loop's.",
    ),
    click.option("-g", "--ngpus", metavar="N", type=_COUNT, help="Measure the first N devices.  [default: all]"),
    click.option("-t", "--nthreads", metavar="N", type=_COUNT, help="Measure the first N devices; N times -g with -g."),
    click.option(
        "-J",
        "--json",
        "--output_file",
        "json",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Write nccl-tests' JSON (version 3) here too.",
    ),
    *REFUSED,
)
