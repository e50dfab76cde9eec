"""`collbench show` of what `nodes --json` printed: the same page, and one line for a file that is no survey."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collbench.cluster import saved
from collbench.cluster.nodes import LateNode, choose_nodes
from collbench.cluster.page import NodeSurvey, as_plain, page
from collbench.model.errors import ExitStatus, RunFileError
from tests.cli.program import Program
from tests.cluster.made import judged, leaves, slow, survey
from tests.report.pages import text

UPLINK = {"name": "", "members": [0, 40], "effect": {"ratio": -0.2, "interval": [-0.3, -0.1], "state": "slow"}}
KEPT = Path(__file__).parents[1] / "data" / "cluster" / "thin-32-survey.json"
LEAVES = leaves(16, 4)
FAULTY = judged(16, slow(3), LEAVES)
SURVEYS = {
    "slow": survey(FAULTY, choice=choose_nodes(FAULTY, 15, LEAVES), truth=(100.0, 120.0)),
    "a slow leaf": survey(found := judged(16, slow(*range(4))), choice=choose_nodes(found, 13)),
    "known leaves": survey(found := judged(16, slow(*range(4)), LEAVES), choice=choose_nodes(found, 13, LEAVES)),
    "healthy": survey(judged(16, slow())),
    "lost": survey(
        judged(16, slow()),
        backend="cuda",
        lost=("h1 and h2: hang",),
        gone=("rank 8 of h1 died",),
        late=(LateNode(3, 0.001, (0.0005, 0.002), 9, 10),),
        plain=True,
        switches=(4,),
        switches_from="slurm",
        failure_status=ExitStatus.UNTRUSTED,
    ),
}


@pytest.mark.parametrize("found", SURVEYS.values(), ids=SURVEYS)
def test_a_survey_that_was_printed_as_json_is_shown_as_it_was(
    program: Program, tmp_path: Path, found: NodeSurvey
) -> None:
    printed = json.dumps(as_plain(found))
    (tmp_path / "survey.json").write_text(printed, encoding="utf-8")
    read = saved.load(tmp_path / "survey.json")
    for verbose in (False, True):
        assert text(page(read), verbose=verbose) == text(page(found), verbose=verbose)
    assert (json.loads(json.dumps(as_plain(read))), read.status) == (json.loads(printed), found.status)


def test_a_simulated_survey_is_shown_again(program: Program) -> None:
    shown = program("show", str(KEPT))
    asked = ("nodes", "--backend", "sim", "--fabric-cluster", "thin-32", "--select", "4", "--seed", "1")
    assert (shown.status, shown.out) == (0, program(*asked).out)
    assert json.loads(program("show", str(KEPT), "--json").out) == json.loads(program(*asked, "--json").out)
    refused = program("nodes", "--backend", "sim", "--fabric-cluster", "thin-32", "-o", "survey.json")
    assert "'collbench show' prints" in refused.line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(backend="gpu"), "survey.backend is 'gpu', not one of"),
        (lambda d: d.update(names=["a"]), "survey.judgement.nodes has 32 items for 1 names"),
        (lambda d: d["choice"].update(members=[32]), "survey names node 32 of 32"),
        (lambda d: d["choice"].update(left_out=[[-1, "why"]]), "survey names node -1 of 32"),
        (lambda d: d["judgement"].update(fast_pair=[1, 99]), "survey names node 99 of 32"),
        (lambda d: d["judgement"].update(uplinks=[UPLINK]), "survey names node 40 of 32"),
        (lambda d: d["judgement"].update(across_intervals=[[0, 1], [0, 1], [0, 1]]), "not one interval for each"),
        (lambda d: d["judgement"].update(across_intervals=[]), "not one interval for each"),
        (lambda d: d.update(exit_status=77), "survey.exit_status is 77, not one of 0, 1, 2"),
        (lambda d: d.pop("judgement"), "survey has no 'judgement'"),
    ],
)
def test_a_survey_that_makes_no_sense_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    fields = json.loads(KEPT.read_text(encoding="utf-8"))
    change(fields)
    (tmp_path / "survey.json").write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(RunFileError) as refused:
        saved.load(tmp_path / "survey.json")
    assert said in str(refused.value)


def test_a_survey_has_no_other_form(program: Program) -> None:
    refused = program("export", str(KEPT), "--format", "csv")
    assert (refused.status, "is a survey of nodes" in refused.line) == (2, True)
