"""`collbench rank` on saved runs: the page, the JSON, and what cannot be ranked."""

import json
from pathlib import Path

import pytest

from collbench.model.operations import Operation
from collbench.runfile import run_file
from tests.builders import gpus, measured, pair_run, run_of
from tests.cli.program import Program

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-21-4xh200-peers" / "pairs.json"


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "run.json"
    run_file.save(pair_run(4, lambda a, b: 200.0 if (a, b) == (1, 3) else 300.0), path)
    return str(path)


@pytest.mark.parametrize(
    ("title", "args", "line"),
    [
        ("no such operation", ["--operation", "teleport"], "--operation='teleport' is unknown: write one of ce-write"),
        ("no such size", ["--size", "x"], "size 'x' is not a number of bytes"),
        (
            "an operation that was not measured",
            ["--operation", "broadcast"],
            "run.json has nothing to rank of broadcast: it holds allreduce at 1G",
        ),
        (
            "a size that was not measured",
            ["--size", "8"],
            "run.json has nothing to rank at 8 B: it holds allreduce at 1G",
        ),
    ],
)
def test_what_cannot_be_ranked_is_refused(program: Program, saved: str, title: str, args: list[str], line: str) -> None:
    result = program("show", "--ranking", saved, *args)
    assert (result.status, result.out) == (2, "")
    assert line in result.line


def test_a_run_of_all_devices_alone_has_no_pair(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    run_file.save(run_of(gpus(4), [measured(Operation.ALLREDUCE, (0, 1, 2, 3), 300.0)]), path)
    result = program("show", "--ranking", str(path))
    assert result.status == 2
    assert result.line.endswith("it holds no link, pair or device: measure with 'collbench pairs' first")


def test_the_json_of_a_ranking_has_what_its_page_and_check_say_first(program: Program, saved: str) -> None:
    first = program("show", "--ranking", saved).out.splitlines()[0]
    answer = json.loads(program("show", "--ranking", saved, "--json").out)
    assert first == f"{answer['contradiction']}: 'collbench check {saved}' explains it"
    assert answer["verdicts"] == json.loads(program("check", saved, "--json").out)["verdicts"]
    assert [(one["kind"], one["members"]) for one in answer["verdicts"]] == [("INTRA_LABEL_OUTLIER", [1, 3])]
    healthy = json.loads(program("show", "--ranking", str(RECORDED), "--json").out)
    assert (healthy["contradiction"], {verdict["severity"] for verdict in healthy["verdicts"]}) == ("", {"info"})
