"""Run by torchrun once per rank, before its program: pin the process to its core, check that the nodes are equal.

    python -I -S rank_start.py [--cores=2,3] [--compare-nodes] [--program=PROGRAM] -- [PROGRAM] ARGUMENT…

`--cores` are those of the host backend's ranks. With `--compare-nodes` all nodes must have chosen the same number of
devices: torchrun itself would start unequal nodes, and NCCL would then hang or average over the wrong ranks. Imports
only os, sys and time, because it delays the start of every rank, and runs in containers without collbench.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence

# Torchrun ends the other ranks when the first one has printed its line and failed; they wait no longer than this.
_WAIT_S = 60
# How long this node waits for the lines of the others: if it holds torchrun's store, they end with it.
_LINGER_S = 3
_MOST_DIGITS = 9
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


def options_and_program(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options, and the program with its arguments. Raises SystemExit with one line."""
    end = arguments.index("--") if "--" in arguments else 0
    options = dict(option.partition("=")[::2] for option in arguments[:end])
    program = [options["--program"]] if "--program" in options else []
    program += arguments[end + 1 :]
    if "--" not in arguments or not program:
        raise SystemExit("collbench: cannot start a rank: usage: rank_start -- PROGRAM ARGUMENT…")
    return options, program


def _is_number(text: str) -> bool:
    """Return whether torchrun may have set it; int() refuses thousands of digits."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def core_of(cores: str, environment: Mapping[str, str]) -> int:
    """Return the core of this rank. Raises SystemExit with one line."""
    numbers, rank = cores.split(","), environment.get("LOCAL_RANK", "")
    if not _is_number(rank) or int(rank) >= len(numbers):
        raise SystemExit(
            f"collbench: cannot pin local rank '{rank}' to one of the cores {cores}: "
            "torchrun sets LOCAL_RANK, and --nproc-per-node must not exceed the number of cores"
        )
    return int(numbers[int(rank)])


def node_mismatch(environment: Mapping[str, str]) -> str:
    """Return one line if this node has another number of ranks than the others, "" if all seem equal.

    It compares torchrun's variables [torch 2.13, elastic/agent/server/local_elastic_agent.py]. LOCAL_RANK is not used:
    --virtual-local-rank makes it 0 everywhere.
    """
    values = [environment.get(name, "") for name in _NAMES]
    if not all(map(_is_number, values)):
        return f"collbench: cannot compare the nodes: torchrun sets {', '.join(_NAMES)}, but some are not numbers here"
    rank, world, local, node, nodes = map(int, values)
    if local * nodes == world and rank // local == node:
        return ""
    return (
        f"collbench: the nodes disagree on the number of ranks: node {node} of {nodes} has {local}, "
        f"and all together have {world}: give every node the same --auto-select K"
    )


def _pin(core: int) -> None:
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:
        raise SystemExit(f"collbench: cannot pin to core {core}: {error.strerror}: choose other --devices") from None


def _check_nodes(environment: Mapping[str, str]) -> None:
    """Raise SystemExit if the nodes are unequal, after one line from each node."""
    line = node_mismatch(environment)
    if not line:
        return
    if environment.get("LOCAL_RANK") != "0":
        time.sleep(_WAIT_S)  # if this rank ended first, torchrun might end the one that prints before it does
    sys.stderr.write(f"{line}\n")
    time.sleep(_LINGER_S)
    raise SystemExit(1)


def main(arguments: Sequence[str]) -> None:
    """Prepare this process and exec the program. What is wrong raises SystemExit with one line."""
    options, program = options_and_program(arguments)
    if "--cores" in options:
        _pin(core_of(options["--cores"], os.environ))
    if "--compare-nodes" in options:
        _check_nodes(os.environ)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        raise SystemExit(f"collbench: cannot start '{program[0]}': {error.strerror}: check its path") from None


if __name__ == "__main__":
    main(sys.argv[1:])
