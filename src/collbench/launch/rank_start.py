"""Run by torchrun once per rank where there are several nodes: check that all chose as many, then become the program.

    python -I -S same_count.py [--program=PROGRAM] -- [PROGRAM] ARGUMENT…

torchrun itself would start unequal nodes, and NCCL would then hang or average over the wrong ranks. Imports nothing
but os, sys and time: it stands between torchrun and every rank's start, in a container without collbench, too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence

# Ends with the first rank's line, which torchrun answers by ending the others; a guard, should it not.
_WAIT_S = 60
# Until the other nodes have said theirs: where this one keeps torchrun's store, they end with it.
_LINGER_S = 3
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


def complaint(environment: Mapping[str, str]) -> str:
    """Return one line where this node has another number of ranks than the others, "" if all seem alike.

    By torchrun's variables [torch 2.13, elastic/agent/server/local_elastic_agent.py]. LOCAL_RANK is not asked:
    --virtual-local-rank makes it 0 everywhere.
    """
    values = [environment.get(name, "") for name in _NAMES]
    if not all(value.isdecimal() for value in values):
        return f"collbench: cannot compare the nodes: torchrun sets {', '.join(_NAMES)}, but some are not numbers here"
    rank, world, local, node, nodes = map(int, values)
    if local * nodes == world and rank // local == node:
        return ""
    return (
        f"collbench: the nodes disagree on the number of ranks: node {node} of {nodes} has {local}, "
        f"and all together have {world}: give every node the same --auto-select K"
    )


def main(arguments: Sequence[str]) -> None:
    """Check and exec; returns never. A disagreement raises SystemExit, after one line a node."""
    before = list(arguments[: arguments.index("--")]) if "--" in arguments else []
    program = [option.removeprefix("--program=") for option in before] + list(arguments[len(before) + 1 :])
    if "--" not in arguments or not program:
        raise SystemExit("collbench: cannot compare the nodes: usage: same_count -- PROGRAM ARGUMENT…")
    line = complaint(os.environ)
    if line and os.environ.get("LOCAL_RANK") != "0":
        time.sleep(_WAIT_S)  # were this rank to end first, torchrun might end the one that speaks before it does
    if line:
        sys.stderr.write(f"{line}\n")
        time.sleep(_LINGER_S)
        raise SystemExit(1)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        raise SystemExit(f"collbench: cannot start '{program[0]}': {error.strerror}: check its path") from None


if __name__ == "__main__":
    main(sys.argv[1:])
