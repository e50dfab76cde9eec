"""The answer beside a printed run's samples: the same as on the pages, and right by the samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
import pytest

from collbench.judge.diagnose import Diagnosis
from collbench.model.errors import Cause, Failure, FailureKind
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Measurement, Run, StopReason
from collbench.report import answer
from collbench.sim import fabrics
from collbench.sim.fabrics import Fault, FaultKind
from tests.builders import gpus, measured, pair_run, run_of
from tests.cli.program import Program
from tests.sim.made import fabric_text

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "answer.schema.json").read_text(encoding="utf-8"))
SIM = ("--backend", "sim", "--fabric", "nvlink-pairs-2x2", "--seed", "1")


def checked(text: str) -> dict[str, Any]:
    """Return a printed run, whose answer follows the schema."""
    printed: dict[str, Any] = json.loads(text)
    jsonschema.validate(printed["answer"], SCHEMA, jsonschema.Draft202012Validator)
    return printed


def test_tiers_and_best_sets_follow_from_the_samples(program: Program) -> None:
    printed = checked(program("pairs", *SIM, "--sizes", "8,64M", "-o", "run.json", "--json").out)
    rates: dict[tuple[int, ...], tuple[float, float, float]] = {}
    for measurement in printed["measurements"]:
        point = measurement["point"]
        if (point["operation"], point["size_bytes"]) == ("allreduce", 2**26):  # on pairs busbw is algbw
            trials = sorted(2**26 / median(sample["seconds"]) / 1e9 for sample in measurement["samples"])
            rates[tuple(point["members"])] = trials[0], median(trials), trials[-1]
    ranking, *others = printed["answer"]["rankings"]
    assert (ranking["operation"], ranking["size_bytes"], len(ranking["standings"])) == ("allreduce", 2**26, 6)
    by_rate = sorted(rates, key=lambda pair: -rates[pair][1])
    for standing, pair in zip(ranking["standings"], by_rate, strict=True):
        low, middle, high = rates[pair]
        assert tuple(standing["members"]) == pair
        assert standing["devices"] == [f"GPU{printed['devices'][member]['index']}" for member in pair]
        assert standing["gbs"] == pytest.approx(middle)
        assert low * 0.99 <= standing["interval"][0] <= middle <= standing["interval"][1] <= high * 1.01
    # The machine's two bridges are faster than every path over PCIe.
    assert {tuple(one["members"]) for one in ranking["standings"] if one["tier"] == 1} == {(0, 1), (2, 3)}
    assert tuple(printed["answer"]["best"][0]["members"]) in {(0, 1), (2, 3)}
    assert [len(one["devices"]) for one in printed["answer"]["best"]] == [2, 4]
    slower = {tuple(sorted(measurement["point"]["members"])) for measurement in printed["measurements"]}
    assert {other["operation"] for other in others} == {"ce-write", "ce-read", "sm-write", "sm-read", "broadcast"}
    assert all({tuple(standing["members"]) for standing in other["standings"]} <= slower for other in others)
    assert len(printed["answer"]["rates"]) == len(printed["measurements"])


def test_the_answer_is_that_of_the_pages_and_of_the_other_commands(program: Program, tmp_path: Path) -> None:
    fabric = dataclasses.replace(
        fabrics.load("nvlink-pairs-2x2"), faults=(Fault(FaultKind.SLOW_LINK, (0, 1), factor=0.5),)
    )
    (tmp_path / "slow.json").write_text(fabric_text(fabric), encoding="utf-8")
    sim = ("--backend", "sim", "--fabric", "slow.json", "--seed", "3")
    found = checked(program("pairs", *sim, "--sizes", "64M", "-o", "run.json", "--json").out)["answer"]
    faults = [verdict for verdict in found["check"]["verdicts"] if verdict["severity"] != "info"]
    assert {0, 1} in [set(verdict["members"]) for verdict in faults]
    assert found["check"] | {"p2p": None} == json.loads(program("check", "run.json", "--json").out)  # nothing examined
    works = json.loads(program("show", "--ranking", "run.json", "--operation", "allreduce", "--json").out)["works"]
    standings = [
        {**standing, "devices": [f"GPU{member}" for member in standing["members"]]}
        for standing in works[0]["rankings"][0]["standings"]
    ]
    assert found["rankings"][0]["standings"] == standings
    page = " ".join(program("show", "run.json").out.split())
    for best in found["best"]:
        assert f"{', '.join(best['devices'])}: {best['reason']}" in page


@pytest.mark.parametrize(
    "args",
    ["allreduce --sizes 1M:4M", "copies --quick", "latency --quick", "alltoallv --sizes 1M", "overlap --sizes 64M"],
)
def test_other_commands_have_rates(program: Program, args: str) -> None:
    printed = checked(program(*args.split(), *SIM, "-o", "run.json", "--json").out)
    assert len(printed["answer"]["rates"]) == len(printed["measurements"]) + len(printed["overlaps"]) > 0


def failed() -> Run:
    """Return a run in which one pair failed."""
    run = pair_run(3, lambda *_: 300.0)
    failure = Failure(FailureKind.ERROR, Cause.REFUSED, (2,), 1, detail="CUDA error 719")
    point = DataPoint(Operation.SM_READ, (1, 2), 8)
    run.measurements.append(Measurement(point, [], StopReason.FAILED, failure=failure))
    return run


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (run_of(gpus(4), []), ""),
        (run_of(gpus(1), []), ""),
        (failed(), "GPU1→GPU2"),
        (pair_run(2, lambda *_: 300.0), ""),
        (run_of(gpus(3), [measured(Operation.ALLREDUCE, (0, 1, 2), 50.0)]), ""),
    ],
    ids=["empty", "one device", "failed", "a pair", "a collective"],
)
def test_every_run_has_an_answer(run: Run, says: str) -> None:
    found = answer.as_json(Diagnosis(run))
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)
    assert says in found["failed"]
    assert bool(found["failed"]) is bool(says)
    survey = dataclasses.replace(run, settings=dataclasses.replace(run.settings, kind="nodes"))
    assert set(answer.as_json(Diagnosis(survey))) == {"failed", "rates"}
