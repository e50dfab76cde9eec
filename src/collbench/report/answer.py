"""What a run's pages answer, as JSON: best sets, tiers, rates, what check finds (docs/run-file.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from collbench.choose.choice import Choice
from collbench.choose.problem import left_out
from collbench.choose.select import choose_each, evidence
from collbench.judge.diagnose import judge
from collbench.judge.registration import ordinary
from collbench.judge.tiers import Ranking, rank_pairs
from collbench.model.run import CommandKind, Run
from collbench.report import choice_text
from collbench.report.rows import Table
from collbench.report.text import ranking, verdicts
from collbench.report.text.frame import headline
from collbench.report.text.measured import at_largest, operations_of


def as_json(run: Run) -> dict[str, Any]:
    """Return it in JSON's own types, from the objects that the pages show; members are positions in the run's devices.

    Of a survey of nodes only the rates: `collbench nodes --json` has its answer.
    """
    answer: dict[str, Any] = {"failed": headline(run)}
    if run.settings.kind is not CommandKind.NODES:
        rankings = list(_rankings(ordinary(run)))
        answer |= {
            "best": [_best(run, choice) for choice in choose_each(run)] if rankings else [],
            "left_out": [
                {"device": run.devices[one.member].tag, "reason": choice_text.left_out(one)} for one in left_out(run)
            ],
            "rankings": [_ranked(run, one) for one in rankings],
            "check": verdicts.as_json(run, judge(run)),
        }
    return answer | {"rates": Table.of(run).main()}


def _rankings(run: Run) -> Iterator[Ranking]:
    """Yield the ranking of pairs by which devices are chosen, then those of the other operations at their largest."""
    deciding = evidence(run)
    if deciding is None:
        return
    yield deciding
    of_pairs = [measurement for measurement in run.measured() if len(measurement.point.members) == 2]
    for operation in operations_of(of_pairs):
        size_bytes = at_largest(of_pairs, operation)[0].point.size_bytes
        other = rank_pairs(run, operation, size_bytes) if operation is not deciding.operation else None
        if other is not None:
            yield other


def _best(run: Run, choice: Choice) -> dict[str, Any]:
    return {
        "devices": _tags(run, choice.members),
        "members": list(choice.members),
        "reason": choice_text.reason(choice, run.devices),
        "predicted_gbs": [choice.band.lo, choice.band.hi] if choice.band else None,
        "tied": choice.tied,
        "failed": [_tags(run, members) for members in choice.failed],
    }


def _ranked(run: Run, ranked: Ranking) -> dict[str, Any]:
    shown = ranking.figures_json(ranked)
    for standing in shown["standings"]:
        standing["devices"] = _tags(run, standing["members"])
    return {"operation": ranked.operation.value, "kind": ranked.kind, **shown}


def _tags(run: Run, members: tuple[int, ...] | list[int]) -> list[str]:
    return [run.devices[position].tag for position in members]
