"""A simulated cluster against sums done by hand: 400 GB/s a node, 8 nodes a leaf, 4 leaves a pod unless said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from collbench.cluster.simulated import (
    Cluster,
    NodeFault,
    UplinkFault,
    allreduce_busbw,
    best_bound,
    load,
    measured_rates,
    named,
    names,
    pair_rates,
)
from collbench.model.errors import CollbenchError, RunFileError
from collbench.runfile.codec import plain
from tests.sim.made import cluster_text

TREE = named("tree-128")
# Every node of leaf 0 with one of leaf 1.
ACROSS = [(node, node + 8) for node in range(8)]


@pytest.mark.parametrize(
    ("title", "changes", "pairs", "rates"),
    [
        ("healthy pairs", {}, [(0, 1), (2, 100)], [400, 400]),
        ("a slow node slows its pair alone", {"slow_nodes": (NodeFault(1, 0.9, 0.9),)},
         [(0, 1), (2, 3)], [360, 400]),
        ("of two slow nodes the slower counts, not both", {"slow_nodes": (NodeFault(0, 0.9), NodeFault(1, 0.8))},
         [(0, 1)], [320]),
        ("eight pairs share uplinks at 80%: 8 × 400 × 0.8 / 8", {"slow_uplinks": (UplinkFault("leaf0", 0.8),)},
         ACROSS, [320] * 8),
        ("six pairs fit: 8 × 400 × 0.8 > 6 × 400", {"slow_uplinks": (UplinkFault("leaf0", 0.8),)},
         ACROSS[:6], [400] * 6),
        ("links down to a pod, at 5% of 32 nodes', slow what comes in",
         {"slow_uplinks": (UplinkFault("pod1", down=0.05),)}, [(node, node + 32) for node in range(8)], [80] * 8),
        ("uplinks 2:1", {"leaf_oversubscription": 2.0}, ACROSS, [200] * 8),
        ("a pod's uplinks 8:1 carry 4 of 32 nodes: 8 pairs get half", {"pod_oversubscription": 8.0},
         [(node, node + 32) for node in range(8)], [200] * 8),
        ("what a slow node leaves, others take: 1600 - 80 over 7",
         {"leaf_oversubscription": 2.0, "slow_nodes": (NodeFault(0, 0.2, 0.2),)}, ACROSS, [80] + [1520 / 7] * 7),
    ],
)  # fmt: skip
def test_pairs_at_once_get(
    title: str, changes: dict[str, object], pairs: Sequence[tuple[int, int]], rates: list[float]
) -> None:
    cluster = replace(TREE, **changes)  # type: ignore[arg-type]
    assert pair_rates(cluster, pairs) == pytest.approx(rates)


@pytest.mark.parametrize(
    ("title", "changes", "members", "busbw"),
    [
        ("one node has its NVLinks", {}, [5], 450),
        ("healthy nodes have their cards", {}, range(64), 400),
        ("a ring is as slow as its slowest node", {"slow_nodes": (NodeFault(3, 0.9),)}, range(8), 360),
        ("in order, a ring leaves each leaf once", {"slow_uplinks": (UplinkFault("leaf0", 0.8),)}, range(16), 400),
        ("out of order it leaves one leaf at every hop: 8 × 400 × 0.8 / 8",
         {"slow_uplinks": (UplinkFault("leaf0", 0.8),)}, [node for pair in ACROSS for node in pair], 320),
    ],
)  # fmt: skip
def test_all_reduce_of(title: str, changes: dict[str, object], members: Sequence[int], busbw: float) -> None:
    assert allreduce_busbw(replace(TREE, **changes), members) == pytest.approx(busbw)  # type: ignore[arg-type]


def test_no_set_of_nodes_passes_the_bound() -> None:
    slow = tuple(NodeFault(node, 0.5 + node / 10, 1.0) for node in range(4))
    cluster = replace(TREE, nodes=6, slow_nodes=slow, slow_uplinks=())
    for count in range(1, 7):
        best = max(allreduce_busbw(cluster, members) for members in combinations(range(6), count))
        assert best == pytest.approx(best_bound(cluster, count))


def test_noise_is_drawn_around_the_true_rate_and_again_by_its_seed() -> None:
    pairs = [(node, node + 64) for node in range(64)]
    drawn = [measured_rates(TREE, pairs, np.random.default_rng(3)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    logs = np.log(np.array(drawn[0]) / 400)
    # 64 values of σ = 2%: their spread lies within 30% of it, their mean within 4 standard errors, for this seed.
    assert 0.014 < float(logs.std()) < 0.026
    assert abs(float(logs.mean())) < 0.01


@pytest.mark.parametrize("name", names())
def test_a_shipped_cluster_says_where_it_comes_from_and_survives_json(name: str) -> None:
    cluster = named(name)
    assert load(cluster_text(cluster), "file") == cluster
    older = {field: value for field, value in plain(cluster).items() if field != "reported"}
    assert load(json.dumps(older), "an older file") == cluster
    assert len(cluster.source) > 20


@pytest.mark.parametrize(
    ("title", "changes", "message"),
    [
        ("no nodes", {"nodes": 0}, "cluster.nodes is 0, not 1 to 1024"),
        ("more nodes than can be simulated in a minute", {"nodes": 1025}, "nodes is 1025, not 1 to 1024"),
        ("no rate", {"nic_gbs": 0.0}, "nic_gbs is 0.0, not GB/s above 0"),
        ("too much noise", {"noise": 2.0}, "noise is 2.0"),
        ("a fault that speeds up", {"slow_nodes": (NodeFault(0, 1.5),)}, "sends is 1.5, not above 0 and up to 1"),
        ("a fault nowhere", {"slow_nodes": (NodeFault(128, 0.5),)}, "an unknown node"),
        ("oversubscription upside down", {"leaf_oversubscription": 0.5}, "oversubscription is 0.5, not 1 or more"),
        ("a placement of others", {"placement": (0, 1)}, "placement"),
        ("a misspelled field", {"slow_node": []}, "cluster has 'slow_node', which is not one of name, source, nodes,"),
        (
            "a misspelled field of a fault",
            {"slow_nodes": ({"node": 1}, {"node": 9, "send": 0.8})},
            "cluster.slow_nodes[1] has 'send', which is not one of node, sends, receives",
        ),
    ],
)
def test_an_impossible_cluster_is_refused(title: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(RunFileError, match=r"^file is not a cluster file: .*; docs/slow-nodes\.md") as refused:
        load(
            json.dumps(json.loads(cluster_text(TREE)) | {field: plain(value) for field, value in changes.items()}),
            "file",
        )
    assert message in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"name": 1}', cluster_text(TREE)[:-9], "[" * 100_000])
def test_what_is_no_cluster_file_is_reported(text: str) -> None:
    with pytest.raises(RunFileError, match=r"my\.json is not a cluster file"):
        load(text, "my.json")


_FIELDS = some.sampled_from([field for field in cluster_text(TREE).split('"') if field.isidentifier()])
_VALUES = some.one_of(
    some.none(), some.booleans(), some.integers(), some.floats(), some.text(), some.lists(some.integers(-3, 200))
)


@given(changes=some.dictionaries(_FIELDS, _VALUES, max_size=3))
def test_no_file_ends_in_a_traceback(changes: dict[str, object]) -> None:
    try:
        cluster = load(json.dumps({**json.loads(cluster_text(TREE)), **changes}), "file")
    except CollbenchError:
        return
    assert isinstance(cluster, Cluster)
