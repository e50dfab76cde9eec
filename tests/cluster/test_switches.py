"""Which switch a node is under: Slurm's files and command, Topograph's file, a table, and what is refused."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.cluster.switches import NodeSwitches, Switches, levels, parse_switches, read_switches
from collbench.model.errors import UsageError

# As slurm.schedmd.com/topology.html shows a tree of three levels.
TREE = """
# a comment
SwitchName=s0 Nodes=tux[0-5]
switchname=s1 LinkSpeed=900 nodes=tux[6-11]   # cables of another kind
SwitchName=s2 Nodes=tux[12-17]
SwitchName=s3 \\
  Switches=s[0-1]
SwitchName=s4 Switches=s2
SwitchName=s5 Switches=s[3-4]
"""
# As `scontrol show topology` prints the same.
SHOWN = """
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-5]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=tux[6-11]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=tux[12-17]
SwitchName=s3 Level=1 LinkSpeed=1 Nodes=tux[0-11] Switches=s[0-1]
SwitchName=s4 Level=1 LinkSpeed=1 Nodes=tux[12-17] Switches=s2
SwitchName=s5 Level=2 LinkSpeed=1 Nodes=tux[0-17] Switches=s[3-4]
"""
TABLE = """
tux[0-5]    s0  s3  s5
tux[6-11]   s1  s3  s5
tux[12-17]  s2  s4  s5   # the other pod
"""
# As Topograph writes blocks and a tree.
BLOCKS = """
# block001=nvl-1-1
BlockName=block001 Nodes=node[11-12]
# block002=nvl-1-2
BlockName=block002 Nodes=node[21-22]
BlockSizes=2
"""
SPINE = """
SwitchName=core Switches=spine
SwitchName=no-topology Nodes=node[13,23]
SwitchName=spine Switches=tor[1-2]
SwitchName=tor1 Nodes=node[11-12]
SwitchName=tor2 Nodes=node[21-22]
"""


@pytest.mark.parametrize("text", [TREE, SHOWN, TABLE])
def test_the_same_tree_in_three_ways(text: str) -> None:
    switches = parse_switches(text, "there")
    assert len(switches.switches_of) == 18
    assert switches.of("tux7") == ("s1", "s3", "s5")
    assert switches.of("tux12") == ("s2", "s4", "s5")
    assert levels(switches, [f"tux{n}" for n in (0, 6, 7, 12)]) == (
        Switches(("s0", "s1", "s2"), ((0,), (1, 2), (3,))),
        Switches(("s3", "s4"), ((0, 1, 2), (3,))),
    )


def test_blocks_are_leaves_and_unknown_nodes_are_not_reported() -> None:
    assert parse_switches(BLOCKS, "there").of("node21") == ("block002",)
    switches = parse_switches(SPINE, "there")
    assert switches.of("node22") == ("tor2", "spine", "core")
    assert switches.of("node13") is None
    with pytest.raises(UsageError, match="there does not say which switch node13 is under"):
        levels(switches, ["node11", "node13"])


def test_aggregated_blocks_are_above_theirs() -> None:
    text = "BlockName=b0 Nodes=n0\nBlockName=b1 Nodes=n1\nBlockName=b2 Nodes=n2\nAggregatedBlock=b[0-1] Nodes=n[0-1]\n"
    switches = parse_switches(text, "there")
    assert switches.of("n1") == ("b1", "b[0-1]")
    assert switches.of("n2") == ("b2", "b2")


def test_a_level_that_separates_nothing_is_left_out() -> None:
    switches = parse_switches(TABLE, "there")
    assert levels(switches, ["tux0", "tux1"]) == ()  # all under one leaf
    assert levels(switches, ["tux0", "tux6"]) == (Switches(("s0", "s1"), ((0,), (1,))),)  # one pod
    assert levels(switches, ["tux0", "tux12"]) == (Switches(("s0", "s2"), ((0,), (1,))),)  # pods part them as leaves do


def test_hosts_and_slurm_may_differ_by_a_domain_or_capitals() -> None:
    switches = parse_switches("Node1.example s0\nnode2.example s1\n", "there")
    assert switches.of("node1") == ("s0",)
    assert switches.of("NODE2.other") == ("s1",)
    both = parse_switches("n1.a s0\nn1.b s1\n", "there")
    assert (both.of("n1"), both.of("n1.b")) == (None, ("s1",))


@pytest.mark.parametrize(
    ("title", "text", "message"),
    [
        ("nothing", "# only a comment\n", "there reports no switches"),
        ("a node without a switch", "n0 s0\nn1\n", "there, line 2: write a node"),
        ("depths that differ", "n0 s0\nn1 s1 p1\n", "some have 1, some 2"),
        ("two leaves", "SwitchName=a Nodes=n[0-1]\nSwitchName=b Nodes=n[1-2]\n", "line 2: n1 is under 'b' and 'a'"),
        (
            "two parents",
            "SwitchName=a Switches=x\nSwitchName=b Switches=x\nSwitchName=x Nodes=n\n",
            "'x' is under both 'b'",
        ),
        ("above itself", "SwitchName=x Nodes=n\nSwitchName=a Switches=x,b\nSwitchName=b Switches=a\n", "above itself"),
        ("no list", "SwitchName=x Nodes=n[2-1]\n", "there, line 1: node list"),
        ("one leaf in two pods", "n0 leaf0 pod0\nn1 leaf0 pod1\n", "give each its own name"),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_line(title: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"^there") as caught:
        parse_switches(text, "there")
    assert message in str(caught.value), title
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="SwitchName=Nodes ab01[]-,\n#\\", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parsed = parse_switches(text, "there")
    except UsageError:
        return
    assert all(switches and all(switches) for switches in parsed.switches_of.values())


@given(st.integers(0, 10**6))
def test_random_trees_come_back(seed: int) -> None:
    """A tree is written as Slurm's lines in any order, and read as it was."""
    rng = random.Random(seed)
    depth = rng.randint(1, 4)
    leaves = 3**depth if depth > 1 else 3
    leaf_of = {f"n{n:03d}": rng.randrange(leaves) for n in range(rng.randint(1, 40))}

    def chain(leaf: int) -> tuple[str, ...]:
        numbers = [leaf % 3 ** (depth - level) for level in range(depth)]
        return tuple(f"l{level}-{number}" for level, number in enumerate(numbers))

    nodes: dict[str, list[str]] = {}
    below: dict[str, set[str]] = {}
    for node, leaf in leaf_of.items():
        switches = chain(leaf)
        nodes.setdefault(switches[0], []).append(node)
        for low, high in pairwise(switches):
            below.setdefault(high, set()).add(low)
    lines = [f"SwitchName={switch} Nodes={','.join(under)}" for switch, under in nodes.items()]
    lines += [f"SwitchName={switch} Switches={','.join(sorted(under))}" for switch, under in below.items()]
    rng.shuffle(lines)
    parsed = parse_switches("\n".join(lines), "there")
    assert parsed.switches_of == {node: chain(leaf) for node, leaf in leaf_of.items()}
    for level in levels(parsed, list(leaf_of)):
        assert sorted(n for members in level.members for n in members) == list(range(len(leaf_of)))


def test_slurm_itself_is_queried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = 'show topology' ] && cat <<'END'\n{SHOWN}\nEND\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    switches = read_switches("slurm")
    assert isinstance(switches, NodeSwitches)
    assert (switches.source, switches.of("tux17")) == ("scontrol show topology", ("s2", "s4", "s5"))
    program.write_text("#!/bin/sh\necho 'slurm_load_topo error: down' >&2; exit 1\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"failed \(slurm_load_topo error: down\): give a file"):
        read_switches("slurm")


def test_without_slurm_a_file_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="not on PATH: give a file"):
        read_switches("slurm")
    with pytest.raises(UsageError, match="No such file"):
        read_switches(str(tmp_path / "nothing.conf"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not text"):
        read_switches(str(tmp_path / "binary"))
