"""Which switches nodes are under: from Slurm, from a file like Slurm's, or from a table.

Switches are read from `topology.conf` (trees and blocks; NVIDIA Topograph writes the same), from what `scontrol show
topology` prints, and from lines of a node, its leaf switch, and the switches above it (docs/slow-nodes.md).
topology.conf(5) defines the first.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from collbench import untrusted
from collbench.machine.launchers import expand_node_list
from collbench.model.errors import UsageError
from collbench.model.units import number_ranges

FROM_SLURM = "slurm"
_ASK_SLURM = ("scontrol", "show", "topology")
_ASK_S = 20.0
_MAX_BYTES = 1 << 24
_PAIR = re.compile(r"(\w+)=(\S*)", re.ASCII)
# Topograph's name for nodes of which it knows no switch.
_UNKNOWN = "no-topology"
_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d{0,8})", re.ASCII)
_NAMES = ("switchname", "blockname", "aggregatedblock")


def format_node_list(names: Sequence[str]) -> str:
    """Return names as Slurm lists them, in their order: "node[0-16,18],login"."""
    parts = [_NUMBERED.fullmatch(name) for name in names]
    split = [(part[1], int(part[2])) if part else (name, -1) for name, part in zip(names, parts, strict=True)]
    spelled: list[str] = []
    for (prefix, whole), group in groupby(split, key=lambda name: (name[0], name[1] < 0)):
        numbers = [number for _, number in group]
        if whole:
            spelled += [prefix] * len(numbers)
            continue
        inside = number_ranges(numbers)
        spelled.append(f"{prefix}{inside}" if len(numbers) == 1 else f"{prefix}[{inside}]")
    return ",".join(spelled)


@dataclass(frozen=True, slots=True)
class Switches:
    """One level of switches as reported: every node is under one of them."""

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class NodeSwitches:
    """Each node's switches, its leaf first, by the node's name in lower case. `source` says where they are from."""

    source: str
    switches_of: dict[str, tuple[str, ...]]

    def of(self, node: str) -> tuple[str, ...] | None:
        """Return a node's switches; a domain may be missing on either side. None for a node that was not reported."""
        node = node.lower()
        if node in self.switches_of:
            return self.switches_of[node]
        short = node.partition(".")[0]
        same = {switches for name, switches in self.switches_of.items() if name.partition(".")[0] == short}
        return same.pop() if len(same) == 1 else None


def read_switches(source: str) -> NodeSwitches:
    """Return what a file says, or Slurm itself where `source` is "slurm". Raises UsageError."""
    if source == FROM_SLURM:
        return parse_switches(_slurm(), " ".join(_ASK_SLURM))
    try:
        return parse_switches(untrusted.read_text(Path(source), _MAX_BYTES), source)
    except OSError as error:
        raise UsageError(f"cannot read --switches {source}: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or a null byte in the name
        raise UsageError(f"--switches {source} is not text") from error


def _slurm() -> str:
    """Return what Slurm's own command prints. Raises UsageError."""
    command = " ".join(_ASK_SLURM)
    advice = "give a file with --switches FILE"
    try:
        done = subprocess.run(_ASK_SLURM, capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False)
    except FileNotFoundError as error:
        raise UsageError(f"--switches slurm needs {_ASK_SLURM[0]}, which is not on PATH: {advice}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"'{command}' failed ({error}): {advice}") from error
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise UsageError(f"'{command}' failed ({reason[0]}): {advice}")
    return done.stdout


def parse_switches(text: str, source: str) -> NodeSwitches:
    """Return each node's switches. Raises UsageError, which names `source` and the line."""
    lines = list(_lines(text))
    if not lines:
        raise UsageError(f"{source} reports no switches")
    parse = _slurm_nodes if any("=" in line for _, line in lines) else _table_nodes
    try:
        nodes = parse(lines)
    except UsageError as error:
        raise UsageError(f"{source}, {error}") from error
    if not nodes:
        raise UsageError(f"{source} reports no nodes under its switches")
    return NodeSwitches(source, nodes)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without comments, continued ones joined."""
    begin, whole = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begin = begin if whole else number
        whole += line.partition("#")[0].rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        if whole.strip():
            yield begin, whole.strip()
        whole = ""
    if whole.strip():
        yield begin, whole.strip()


def _table_nodes(lines: Iterable[tuple[int, str]]) -> dict[str, tuple[str, ...]]:
    """Return the switches of lines such as "node[0-15] leaf0 pod0"."""
    switches_of: dict[str, tuple[str, ...]] = {}
    for number, line in lines:
        nodes, *switches = line.split()
        if not switches:
            raise UsageError(f"line {number}: write a node, its leaf switch, and the switches above: node0 leaf0 pod0")
        _put(switches_of, nodes, tuple(switches), number)
    above: dict[tuple[int, str], tuple[str, ...]] = {}
    for node, chain in switches_of.items():
        for level, switch in enumerate(chain):
            if above.setdefault((level, switch), chain[level + 1 :]) != chain[level + 1 :]:
                raise UsageError(f"line of {node}: '{switch}' is under different switches: give each its own name")
    depths = {len(chain) for chain in switches_of.values()}
    if len(depths) > 1:
        raise UsageError(
            f"all lines: all nodes need the same number of switches, some have {min(depths)}, some {max(depths)}"
        )
    return switches_of


def _put(switches_of: dict[str, tuple[str, ...]], nodes: str, switches: tuple[str, ...], number: int) -> None:
    for node in _expanded(nodes, number):
        if switches_of.setdefault(node.lower(), switches) != switches:
            raise UsageError(f"line {number}: {node} is under '{switches[0]}' and '{switches_of[node.lower()][0]}'")


def _expanded(names: str, number: int) -> tuple[str, ...]:
    try:
        return expand_node_list(names)
    except UsageError as error:
        raise UsageError(f"line {number}: {error}") from error


def _slurm_nodes(lines: Iterable[tuple[int, str]]) -> dict[str, tuple[str, ...]]:
    """Return the switches of Slurm's lines. Only those that name no switches of their own are leaves."""
    above: dict[str, str] = {}
    leaves: dict[str, tuple[str, int]] = {}
    for number, line in lines:
        values = {key.lower(): value for key, value in _PAIR.findall(line)}
        kind = next((name for name in _NAMES if name in values), None)
        if kind is None:
            continue  # BlockSizes, and whatever a newer Slurm adds
        name = values[kind]
        below = values.get("switches") or (name if kind == "aggregatedblock" else "")
        for child in _expanded(below, number) if below else ():
            if above.setdefault(child, name) != name:
                raise UsageError(f"line {number}: '{child}' is under both '{name}' and '{above[child]}'")
        if not below and values.get("nodes") and name != _UNKNOWN:
            leaves[name] = values["nodes"], number
    switches_of: dict[str, tuple[str, ...]] = {}
    for leaf, (nodes, number) in leaves.items():
        chain = [leaf]
        while chain[-1] in above:
            chain.append(above[chain[-1]])
            if chain[-1] in chain[:-1]:
                raise UsageError(f"line {number}: '{chain[-1]}' is above itself")
        _put(switches_of, nodes, tuple(chain), number)
    # A node whose leaf hangs higher than others' has its top switch for every level above.
    deepest = max(map(len, switches_of.values()), default=0)
    return {node: chain + chain[-1:] * (deepest - len(chain)) for node, chain in switches_of.items()}


def levels(reported: NodeSwitches, names: Sequence[str]) -> tuple[Switches, ...]:
    """Return the levels of switches, leaves first; their members are positions in `names`.

    A level is left out if all of these nodes are under one of its switches, or if it divides them like the level below.
    Raises UsageError for a node that was not reported.
    """
    chains = [reported.of(name) for name in names]
    missing = [name for name, switches in zip(names, chains, strict=True) if switches is None]
    if missing:
        raise UsageError(f"{reported.source} does not say which switch {missing[0]} is under: add it")
    all_levels: list[Switches] = []
    for level in zip(*(switches for switches in chains if switches), strict=True):
        # A switch has one name, wherever it stands: a chain that ended lower keeps its own.
        groups = {switch: tuple(n for n, at in enumerate(level) if at == switch) for switch in dict.fromkeys(level)}
        members = tuple(groups.values())
        if len(groups) > 1 and (not all_levels or all_levels[-1].members != members):
            all_levels.append(Switches(tuple(groups), members))
    return tuple(all_levels)
