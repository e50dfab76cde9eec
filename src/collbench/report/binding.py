"""Where the processes of chosen GPUs belong: one line for the page of `collbench select`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from collbench.affinity.binding import Binding, bindings
from collbench.model import Run


def line(run: Run, members: Sequence[int]) -> str:
    """Return on which NUMA nodes these positions belong, by host copies; "" where the run does not compare nodes."""
    found = [one for one in bindings(run) if one.member in members]
    if not found:
        return ""
    sim = " (sim)" if run.backend == "sim" else ""
    if all(one.tied for one in found):
        return f"NUMA nodes tie: no binding needed{sim}"
    wrong = [one for one in found if one.agrees is False]
    if wrong:
        return "; ".join(f"{one.text}: {numactl(one)}" for one in wrong) + sim
    if all(one.agrees for one in found):
        return f"{_by_node(run, found)}, as NVML says: torchrun --numa-binding=node{sim}"
    return "; ".join(one.text for one in found if not one.tied) + sim


def numactl(binding: Binding) -> str:
    """Return the command that runs a process on the nodes that suit its GPU."""
    return f"numactl --cpunodebind={','.join(map(str, binding.best))}"


def _by_node(run: Run, found: Sequence[Binding]) -> str:
    tags: dict[int, list[str]] = defaultdict(list)
    for one in found:
        tags[one.best[0]].append(run.devices[one.member].tag)
    return "; ".join(f"{', '.join(names)} on node {node}" for node, names in sorted(tags.items()))
