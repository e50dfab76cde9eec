"""`collbench reference`: which published figures there are, and whether one number is normal."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from collbench.cli.options import parse_operation, parsed
from collbench.cli.terminal import echo, echo_sentence, show_page
from collbench.model.errors import ExitStatus, UsageError
from collbench.model.operations import Operation
from collbench.model.units import format_size, parse_size

if TYPE_CHECKING:
    from collbench.judge.references import Figure

_COUNTED = re.compile(r"\s*(\d{1,3})(?:\s*[x×*]\s*|\s+)(.+)", re.IGNORECASE)  # "8 x H100", "8 H100"


def _operation(text: str) -> Operation:
    """Return the operation of a name, also of nccl-tests' program: "all_reduce_perf"."""
    return parse_operation(text.removesuffix("_perf"))


@click.command()
@click.argument("machine", metavar="[GPU]", required=False)
@click.argument("operation", metavar="[OPERATION]", required=False, callback=parsed(_operation))
@click.option("--size", metavar="SIZE", callback=parsed(parse_size), help="What is normal at this message size, as 1G.")
@click.option("--busbw", metavar="GB/S", type=click.FloatRange(min=0, min_open=True), help="Is this rate normal?")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table (docs/compare.md).")
@click.pass_context
def reference(
    context: click.Context,
    machine: str | None,
    operation: Operation | None,
    size: int | None,
    busbw: float | None,
    as_json: bool,
) -> None:
    """List the published figures by which runs are judged, or say whether one number is normal.

    For each machine a line for each operation, number of GPUs and kind of link: the sizes, the number of independent
    sources and whether they disagree at some size, and what is normal at the largest size, in GB/s. GPU is a part of a
    product name, with the number of GPUs as "8 x H100".

    With OPERATION and --size: what is normal there. Exit status with --busbw: 0; 3 if it is below; 1 if there is
    nothing to compare it with.

    \b
    Examples:
      collbench reference
      collbench reference H100
      collbench reference "RTX PRO 6000" --json
      collbench reference "8 x H100" allreduce --size 1G --busbw 311
    """
    from collbench.judge.references import by_kind, load  # late: numpy
    from collbench.report.text import reference as page

    if size is not None and operation is None:
        raise UsageError("--size asks about one operation: name it, as 'collbench reference \"8 x H100\" allreduce'")
    if busbw is not None and size is None:
        raise UsageError("--busbw needs the message size of the rate: add --size")
    if busbw is not None and not math.isfinite(busbw):
        raise UsageError(f"--busbw {busbw} is no rate: write it in GB/s")
    if size is not None and as_json:
        raise UsageError("--json prints the table: leave out --size, or --json")
    kinds = _kinds(by_kind(load()), machine or "", operation)
    if not kinds and size is None:
        what = f"'{machine}'" if operation is None else f"{operation} on '{machine}'"
        raise UsageError(f"there is no published figure for {what}: 'collbench reference' lists all machines")
    if size is not None:
        context.exit(_answer(kinds, f"{operation} at {format_size(size)} on '{machine}'", size, busbw))
    if as_json:
        echo(page.coverage_json(kinds), end="")
    else:
        show_page(page.coverage(kinds))


def _kinds(kinds: Sequence[tuple[Figure, ...]], machine: str, operation: Operation | None) -> list[tuple[Figure, ...]]:
    """Return the kinds of figures of a machine, with as many GPUs as its text says, and of an operation if named."""
    counted = _COUNTED.fullmatch(machine)
    count, name = (int(counted[1]), counted[2]) if counted else (None, machine)
    name = name.strip()
    found = [kind for kind in kinds if any(one.is_of(name) for one in kind)]
    found = found or [kind for kind in kinds if name.casefold() in kind[0].machine.casefold()]
    return [kind for kind in found if count in (None, kind[0].ranks) and operation in (None, kind[0].operation)]


def _answer(kinds: Sequence[tuple[Figure, ...]], what: str, size: int, busbw: float | None) -> ExitStatus:
    """Print what is normal at a size, a line for each kind of machine, and return the exit status.

    A minimum of an acceptance test is printed only where nothing was measured.
    """
    from collbench.judge.references import ReferenceVerdict, place, reference_at
    from collbench.report.text.reference import NOTHING, placed

    found = [one for kind in kinds if (one := reference_at(kind, size))]
    found = [one for one in found if one.sources] or found
    if not found:
        echo(f"{what}: {NOTHING}; 'collbench reference' lists what there is")
        return ExitStatus.FAILED
    counts = sorted({one.figure.ranks for one in found})
    if busbw is not None and len(counts) > 1:
        listed = ", ".join(map(str, counts))
        raise UsageError(
            'what is normal depends on the number of GPUs, which comes first, as in "2 x H200": '
            f"there are figures of {listed}"
        )
    for one in found:
        echo_sentence(placed(one, busbw))
    standings = {place(one, busbw) for one in found} if busbw is not None else set()
    if standings == {ReferenceVerdict.NOT_JUDGED}:
        return ExitStatus.FAILED
    # Where figures of several machines fit the name, a rate is below if it is below all that judge it.
    below = standings - {ReferenceVerdict.NOT_JUDGED} == {ReferenceVerdict.BELOW}
    return ExitStatus.CONTRADICTION if below else ExitStatus.DONE
