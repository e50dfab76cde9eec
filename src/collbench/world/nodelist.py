"""Slurm's compressed words for nodes and tasks: "node[01-03,7]" and "2(x3),1". Pure."""

from __future__ import annotations

import re

from collbench.errors import UsageError

# A prefix, and perhaps a bracket whose first number (or range) is what we need; a suffix may follow the bracket.
_FIRST = re.compile(r"(?P<prefix>[^\[\],\s]+)(?:\[(?P<number>\d+)[-\d,]*\](?P<suffix>[^\[\],\s]*))?(?:,|$)")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def first_host(nodes: str) -> str:
    """Return the first host of a node list: "node01" of "node[01-03,7],login". Raises UsageError."""
    found = _FIRST.match(nodes.strip())
    if found is None:
        raise UsageError(f"Slurm's node list '{nodes}' cannot be read: set MASTER_ADDR to the host of rank 0")
    return found["prefix"] + (found["number"] or "") + (found["suffix"] or "")


def tasks_on_node(tasks: str, node: int) -> int | None:
    """Return how many tasks a list gives the node at a place: 1 of "2(x3),1" for 3; None where it does not tell."""
    counts: list[int] = []
    for word in filter(None, tasks.split(",")):
        found = _TASKS.fullmatch(word.strip())
        if found is None:
            return None
        counts += [int(found[1])] * int(found[2] or 1)
    return counts[node] if node < len(counts) else None
