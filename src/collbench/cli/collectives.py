"""One command for each of NCCL's nine collectives: over all chosen GPUs, over each pair, or over disjoint sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from collbench.cli import options
from collbench.cli.following import processes
from collbench.cli.measuring import measure_and_show
from collbench.cli.nccl_flags import NCCL_FLAGS, apply_nccl_flags
from collbench.cli.showing import FORMAT, Showing
from collbench.errors import UsageError
from collbench.operations import COLLECTIVES, Operation, Variant, Work

_pairs = click.option("--pairs", is_flag=True, help="Time each pair instead of all devices together.")
_algorithms = click.option(
    "--algorithms",
    is_flag=True,
    help="Ask NCCL afterwards, in a process of its own, which algorithm, protocol and channels it chose.",
)
_split = click.option(
    "--split",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    help="Time N disjoint sets of neighbours at once, each a communicator.",
)
_in_place = click.option("--in-place", is_flag=True, help="Time it in place as well, in rows of their own.")


@dataclass(frozen=True, slots=True)
class _Words:
    """What the help of one command says: its name, what it does, in short, what a size counts, an example's words."""

    name: str
    does: str
    short: str
    size: str = "of one rank's buffer"
    example: str = "--pairs"


_TOTAL = "of all ranks' blocks together"
_WORDS = {
    Operation.ALLREDUCE: _Words(
        "all-reduce",
        "every rank gets the reduction of all ranks' data",
        "every rank gets the reduction",
        example="--op max",
    ),
    Operation.BROADCAST: _Words(
        "broadcast", "every rank gets the root's data", "every rank gets the root's data", example="--devices 0,1"
    ),
    Operation.REDUCE: _Words(
        "reduce",
        "the root gets the reduction of all ranks' data",
        "the root gets the reduction",
        example="--op avg --root 1",
    ),
    Operation.ALLGATHER: _Words(
        "all-gather", "every rank gets every rank's block", "every rank gets all blocks", _TOTAL, "--dtype bfloat16"
    ),
    Operation.REDUCESCATTER: _Words(
        "reduce-scatter",
        "each rank gets its block of the reduction of all ranks' data",
        "each rank gets a reduced block",
        _TOTAL,
        "--split 2",
    ),
    Operation.ALLTOALL: _Words(
        "all-to-all", "each rank sends a block to every rank", "a block from each to each", _TOTAL, "--precision 0.5%"
    ),
    Operation.SENDRECV: _Words(
        "send/recv", "each rank sends to the next and receives from the one before", "each rank sends to the next"
    ),
    Operation.GATHER: _Words(
        "gather", "the root gets every rank's block", "the root gets all blocks", _TOTAL, "--root 1"
    ),
    Operation.SCATTER: _Words(
        "scatter", "each rank gets its block of the root's data", "each rank gets a block", _TOTAL, "--root 1"
    ),
}
_HELP = """Time {name} over all chosen GPUs as one communicator: {does}.

    Sizes are nccl-tests': bytes {size}. Prints size, count, time, algbw, busbw and its 95 % interval. "time" is device
    time (graph replay, slowest rank), "launch" one call of an ungraphed loop, as a training step makes it.

    \b
    Examples:
      collbench {command} --sizes 1M:1G
      collbench {command} --sizes 64M {example}
    """


class _Collective(click.Command):
    """A command whose help shows nccl-tests' flags, which have one letter, in a section of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        ours: list[tuple[str, str]] = []
        theirs: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                letter = not param.opts[0].startswith("--") and "--help" not in param.opts
                (theirs if letter else ours).append(record)
        for title, records in (("Options", ours), ("Options with nccl-tests' names", theirs)):
            with formatter.section(title):
                formatter.write_dl(records)


def _command(operation: Operation) -> click.Command:
    words = _WORDS[operation]

    @options.measuring(_pairs, _split, _in_place, _algorithms, FORMAT, *NCCL_FLAGS, saves=options.long_output)
    def measure(**given: Any) -> None:
        _measure(operation, given)

    command = click.command(
        operation.value,
        cls=_Collective,
        help=_HELP.format(command=operation, name=words.name, does=words.does, size=words.size, example=words.example),
        short_help=f"Time {words.name}: {words.short}.",
    )(measure)
    idle = {name for name, has_a_use in (("redop", operation.reduces), ("root", operation.rooted)) if not has_a_use}
    for option in command.params:
        if isinstance(option, click.Option) and option.name in idle:
            option.hidden = True  # taken and ignored, as nccl-tests does
    return command


def _measure(operation: Operation, given: Mapping[str, Any]) -> None:
    _check(given)
    showing = Showing.asked(given)
    request, path = options.make_request(operation.value, given)
    # The host backend's collectives are in place in any case: nccl-tests' second half stays N/A.
    both = given["in_place"] or (showing.as_nccl_tests and request.backend != "host")
    places = (Variant.PLAIN, Variant.IN_PLACE) if both else (Variant.PLAIN,)
    request = replace(
        request,
        collectives=tuple(Work(operation, place) for place in places),
        pairs=given["pairs"],
        split=given["split"],
        launches=True,
        algorithms=given["algorithms"],
        **apply_nccl_flags(given, request.backend, processes()),
    )
    measure_and_show(request, path, showing)


def _check(given: Mapping[str, Any]) -> None:
    """Raise UsageError where two options contradict each other."""
    if given["pairs"] and given["split"] > 1:
        raise UsageError("--pairs and --split both say which sets to time: leave one out")
    if given["pairs"] and given["root"] > 1:
        raise UsageError(f"--root {given['root']} is no rank of a pair: write 0 or 1")


COMMANDS = {operation.value: _command(operation) for operation in COLLECTIVES}
