"""Figures that no hardware can carry bear their mark in every format that a run is written in."""

from __future__ import annotations

import csv
import io
import json
from copy import deepcopy
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from collbench.judge.diagnose import Diagnosis
from collbench.judge.outcome import outcome
from collbench.judge.physics import impossible, marked
from collbench.judge.summary import rank_summary
from collbench.judge.tiers import Relation, rank_links, rank_pairs
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Measurement, Path, Run
from collbench.report import nccl_tests, ranking
from collbench.report.frame import run_page as page
from collbench.report.html import content
from collbench.report.rows import as_csv, as_json, as_markdown, as_prometheus, rows
from tests.builders import GIB, gpus, measured, run_of
from tests.report.pages import text


def run_with(gbs: float, launch: float | None = None) -> Run:
    """Return two H200, whose NVLinks carry 450 GB/s, with a copy and an all-reduce at this rate; no sample is marked.

    An older collbench marked none, so nothing but the run file may rest on marks.
    """
    link = Path((0, 1), "NV18", "SYS", 18, 450.0)
    measurements = [
        measured(operation, (0, 1), gbs, launch=launch) for operation in (Operation.CE_WRITE, Operation.ALLREDUCE)
    ]
    return run_of(gpus(2), measurements, [link], command=("allreduce",))


WRONG, RIGHT = run_with(500.0), run_with(400.0)


def marks(run: Run) -> dict[str, bool]:
    """Return for each format whether it says that figures are impossible."""
    made = rows(run)
    parsed = {family.name: family.samples for family in text_string_to_metric_families(as_prometheus(run))}
    return {
        "the run file": marked(replace(run, measurements=deepcopy(run.measurements))),
        "csv": any(int(row["impossible"]) for row in csv.DictReader(io.StringIO(as_csv(made)))),
        "json": any(row["impossible"] for row in json.loads(as_json(made))),
        "prometheus": any(sample.value for sample in parsed["collbench_impossible"]),
        "nccl-tests": any(line.startswith("# IMPOSSIBLE") for line in nccl_tests.lines(run)),
        "nccl-tests' verdict": any("FAILED" in line for line in nccl_tests.lines(run)),
        "html": "impossible" in json.dumps(content([("run.json", run)], "1")["runs"][0]["data"]),
        "the page": "impossible" in text(page(Diagnosis(run))).lower(),
    }


def test_each_format_bears_the_mark() -> None:
    assert [name for name, has_mark in marks(WRONG).items() if not has_mark] == []


def test_no_format_bears_it_where_all_is_possible() -> None:
    assert [name for name, has_mark in marks(RIGHT).items() if has_mark] == []


def test_rows_have_the_limit_and_how_many_batches_beat_it() -> None:
    assert [(row["limit_gbs"], row["impossible"]) for row in rows(WRONG)] == [(450.0, 10)] * 2
    assert "impossible: 10" in as_markdown(WRONG, rows(WRONG))


def test_a_launch_loop_that_beats_the_limit_is_one_batch() -> None:
    """1 GiB in 2 ms is 537 GB/s."""
    assert {row["impossible"] for row in rows(run_with(400.0, launch=2e-3))} == {5}


def test_an_unknown_limit_is_empty_and_not_zero() -> None:
    unknown = replace(WRONG, paths=tuple(replace(path, theory_gbs=None) for path in WRONG.paths))
    assert impossible(unknown) == []
    assert [row["limit_gbs"] for row in rows(unknown)] == [None, None]


def test_the_mark_of_a_pair_is_on_no_table_of_its_devices() -> None:
    """A staged copy of 100 GB/s beats the slot of GPU0, 63 GB/s; the copies of GPU0 with host memory do not."""

    def of(operation: Operation, variant: Variant, members: tuple[int, ...], gbs: float) -> Measurement:
        one = measured(operation, members, gbs)
        return replace(one, point=replace(one.point, variant=variant))

    host = [of(Operation.D2H_CE, Variant.HOST, (at,), 55.0) for at in (0, 1)]
    staged = [of(Operation.CE_WRITE, Variant.STAGED, link, 100.0) for link in ((0, 1), (1, 0))]
    slots = [replace(device, pcie_generation=5, pcie_width=16) for device in gpus(2)]
    run = run_of(slots, [*host, *staged], [Path((0, 1), "SYS", "SYS", 0, 63.0)])
    assert [trouble.devices for trouble in outcome(run).troubles] == [(0,), (1,)]
    relations = {
        work.variant: {standing.relation for standing in ranking.standings}
        for work in (Work(Operation.D2H_CE, Variant.HOST), Work(Operation.CE_WRITE, Variant.STAGED))
        if (ranking := rank_links(run, work, GIB)) is not None
    }
    assert Relation.IMPOSSIBLE not in relations[Variant.HOST]
    assert relations[Variant.STAGED] == {Relation.IMPOSSIBLE}


def test_rank_does_not_say_failed_of_a_rate_above_a_limit() -> None:
    pair_ranking = rank_pairs(WRONG, Operation.ALLREDUCE, GIB)
    assert pair_ranking is not None
    assert [standing.relation for standing in pair_ranking.standings] == [Relation.IMPOSSIBLE]
    assert pair_ranking.failed == pair_ranking.impossible == ((0, 1),)
    assert not pair_ranking.all_tied
    said = text(ranking.page(Diagnosis(WRONG), rank_summary(WRONG)), verbose=False)
    assert "impossible" in said
    assert "1 with a rate above the limit" in said
    assert "failed" not in said.lower()
