"""The page of `collbench nodes`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from collbench.cluster.fit import Observation
from collbench.cluster.nodes import (
    UNKNOWN,
    Effect,
    Judgement,
    LateNode,
    State,
    Uplink,
    choose_nodes,
    judge,
)
from collbench.cluster.page import as_plain, page
from tests.cluster.made import judged, leaves, seen, slow, survey
from tests.report.pages import text

LEAVES = leaves(16, 4)


def test_every_figure_of_a_simulation_says_so() -> None:
    judgement = judged(16, slow(3), LEAVES)
    shown = text(page(survey(judgement, choice=choose_nodes(judgement, 8, LEAVES), truth=(100.0, 100.0))))
    lines = shown.splitlines()
    assert "backend   sim: nothing is measured" in lines
    for line in lines:
        assert "sim" in line or not any(unit in line for unit in ("GB/s", "%", " s,")), line


def test_sentences_take_the_terminals_columns_and_a_node_list_stays_one_word() -> None:
    judgement = judged(16, slow(3), LEAVES)
    chosen = survey(judgement, choice=choose_nodes(judgement, 8, LEAVES))
    narrow = text(page(chosen), columns=50)
    assert max(map(len, narrow.splitlines())) <= 50
    wide = text(page(chosen))
    assert " ".join(narrow.split()) == " ".join(wide.split())
    assert {line[:10] for line in narrow.splitlines()} == {line[:10] for line in wide.splitlines()} | {" " * 10}
    names = ",".join(f"host-{n}-a" for n in range(16))  # for Slurm's --nodelist
    everyone = judged(16, slow())
    found = survey(everyone, choice=choose_nodes(everyone, 16), backend="cuda", names=tuple(names.split(",")))
    assert f" {names}\n" in text(page(found), columns=50)


@pytest.mark.parametrize(
    ("pairs", "nodes", "why"),
    [
        (seen(2, slow(), 8, 0.01), 2, "two nodes form only one pair, which does not show which of them is slow"),
        (seen(4, lambda a, b: 100.0 / (a ^ b), 4), 4, "they differ more than their nodes could explain"),
        (seen(4, slow(), 2, 0.9), 4, "a longer --budget measures more"),
    ],
)
def test_the_page_says_why_nobody_is_judged(pairs: list[Observation], nodes: int, why: str) -> None:
    names = ("h0", "h1", "h2", "h3")[:nodes]
    first, *others = text(page(survey(judge(pairs, nodes), backend="cuda", names=names))).splitlines()
    assert first.startswith("not judged: ")
    assert why in first
    assert not [
        line for line in others if line.startswith("undecided h")
    ]  # of their intervals the first line says enough


def test_lost_and_late_nodes_and_changes_of_the_network_are_findings_of_their_own() -> None:
    healthy = Effect(0.0, (-0.01, 0.01), State.HEALTHY)
    judgement = Judgement((healthy, healthy, UNKNOWN), (), 50.0, (), 0.01, None)
    found = survey(
        judgement,
        backend="host",
        names=("a", "b", "c"),
        late=(LateNode(1, 2.5e-3, (2.4e-3, 2.6e-3), 23, 24),),
        network=("symbol_error grew by 3 on mlx5_0:1 of b",),
        gone=("rank 2 on c is gone",),
    )
    shown = text(page(found)).splitlines()
    for line in (
        "lost      rank 2 on c is gone",
        "undecided c: it was not measured",
        "late      b arrives at batches 2.5 ms after its partners (median; 95% 2.4 to 2.6), in 23 of 24 trials",
        "network   symbol_error grew by 3 on mlx5_0:1 of b",
    ):
        assert line in shown
    data = as_plain(found)
    assert json.loads(json.dumps(data))["late"][0]["seconds"] == 2.5e-3


def test_what_is_inferred_is_said_as_inferred_on_the_page_and_in_json() -> None:
    leaf = Uplink("", (8, 9), Effect(-0.3, (-0.32, -0.28), State.EITHER))
    judgement = replace(judged(16, slow()), uplinks=(leaf,))
    lines = text(page(survey(judgement))).splitlines()
    assert (
        "either    an uplink that node[8-9] share: 30.0% below the others (28.0% to 32.0%), slow or oversubscribed; "
        "among themselves they are fast (sim)"
    ) in lines
    answer = json.loads(json.dumps(as_plain(survey(judgement))))
    assert answer["judgement"]["uplinks"][0]["effect"]["state"] == "either"


def test_pairs_that_met_an_uplink_that_nobody_can_name_have_a_line() -> None:
    judgement = replace(judged(16, slow()), across=(-0.26,), across_intervals=(), busy_pairs=5)
    assert text(page(survey(judgement))).splitlines()[0] == (
        "across    5 pairs of nodes that are fast with others lose 26% while many run: slow or oversubscribed uplinks, "
        "or noise; --switches FILE says whose (sim)"
    )


def test_where_all_uplinks_are_oversubscribed_the_first_line_says_so_and_none_says_that_nothing_is_slow() -> None:
    """No node and no single uplink is to blame, but half of the bandwidth is gone."""
    healthy = Effect(0.0, (-0.01, 0.01), State.HEALTHY)
    judgement = Judgement((healthy, healthy), (), 400.0, (-0.5,), 0.01, None)
    judgement = replace(judgement, across_intervals=((-0.52, -0.48),))
    first_of_all, second, *_ = text(page(survey(judgement))).splitlines()
    assert first_of_all.startswith(
        "across    pairs across switches lose 50% (48.0% to 52.0%) if all run at once: slow or oversubscribed uplinks"
    )
    others = "found     no node and no uplink is slower than the others"
    assert second == f"{others}; if all are slow, only the typical rate shows it (sim)"
    first, *_ = text(page(survey(replace(judgement, across=(-0.01,))))).splitlines()
    assert first == second
    noisy = replace(judgement, across=(-0.022,), across_intervals=((-0.05, 0.01),))
    assert text(page(survey(noisy))).splitlines()[0] == (
        "across    pairs across switches perhaps lose 2% (-1.0% to 5.0%) if all run at once: slow or oversubscribed "
        "uplinks, or noise (sim)"
    )
    doubtful = Effect(-0.03, (-0.06, 0.01), State.UNDECIDED)
    lines = text(page(survey(replace(judgement, nodes=(*judgement.nodes, doubtful))))).splitlines()
    assert lines[0] == first_of_all
    assert lines[1].startswith("found     nothing slow for certain: 1 node is in doubt")
