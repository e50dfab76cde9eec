"""What `collbench compare --json` prints (docs/exchange.md): comparisons, trends, answers of the reference figures."""

from __future__ import annotations

import json
from typing import Any

from collbench.comparison.cells import Key
from collbench.comparison.changes import Change, Verdict
from collbench.comparison.compare import Comparison
from collbench.comparison.groups import Group
from collbench.comparison.reference import Answer, Answers
from collbench.comparison.trend import Trend
from collbench.model import Run
from collbench.plain import plain

_VERSION = 1
_Json = dict[str, Any]


def of_comparison(comparison: Comparison, status: int) -> str:
    """Return a comparison as JSON text; members are positions of the base, of `only_new` those of the new run."""
    return _dumps("collbench-comparison", status, _comparison(comparison))


def of_trend(trend: Trend, status: int) -> str:
    """Return a trend as JSON text: its lines, and the last run against the first."""
    lines = [plain(line) for line in trend.lines]
    runs = [
        _run(run) | {"differences": [plain(one) for one in steps]}
        for run, steps in zip(trend.runs, trend.steps, strict=True)
    ]
    body = {"runs": runs, "lines": lines, "last": _comparison(trend.last)}
    return _dumps("collbench-trend", status, body)


def of_answers(answers: Answers, status: int) -> str:
    """Return what the reference figures say of a run as JSON text; members are positions of the run."""
    body = {
        "run": _run(answers.run),
        "nvls": answers.nvls.value,
        "known": answers.known,
        "answers": [_answer(answer) for answer in answers.answers],
        "unknown": [
            {"operation": one.work.operation.value, "variant": one.work.variant.value, "ranks": one.ranks}
            for one in answers.unknown
        ],
    }
    return _dumps("collbench-reference", status, body)


def _dumps(name: str, status: int, body: _Json) -> str:
    head = {"format": name, "format_version": _VERSION, "exit_status": status}
    return json.dumps(head | body, indent=1, ensure_ascii=False) + "\n"


def _comparison(comparison: Comparison) -> _Json:
    return {
        "base": _run(comparison.base),
        "new": _run(comparison.new),
        "devices": comparison.match.told,
        "differences": [plain(difference) for difference in comparison.differences],
        "fail_below": comparison.fail_below,
        "counts": {verdict.value: comparison.count(verdict) for verdict in Verdict},
        "groups": [_group(group) for group in comparison.groups],
        "cells": [_change(change) for change in comparison.changes],
        "only_base": [_key(key) for key in comparison.only_base],
        "only_new": [_key(key) for key in comparison.only_new],
    }


def _run(run: Run) -> _Json:
    machine = run.machine
    return {
        "started": run.started,
        "backend": run.backend,
        "fabric": machine.fabric,
        "hostname": machine.hostname,
        "driver": machine.driver,
        "nccl": machine.nccl,
        "devices": [device.tag for device in run.devices],
    }


def _key(key: Key) -> _Json:
    return {"work": key.work, "members": list(key.members), "root": key.root, "size_bytes": key.size_bytes}


def _change(change: Change) -> _Json:
    numbers = ("base_gbs", "new_gbs", "base_seconds", "new_seconds", "ratio", "delta", "regressed")
    found = {name: getattr(change, name) for name in numbers}
    interval = None if change.interval is None else list(change.interval)
    visits = {"visits": list(change.visits)}
    return _key(change.key) | found | {"interval": interval, "verdict": change.verdict.value} | visits


def _group(group: Group) -> _Json:
    found: _Json = plain(group)
    return found


def _answer(answer: Answer) -> _Json:
    figure = answer.figure
    low, high = figure.band
    return {
        "operation": figure.operation.value,
        "variant": figure.variant.value,
        "ranks": figure.ranks,
        "size_bytes": answer.size_bytes,
        "standing": answer.standing.value,
        "band_gbs": [low, high],
        "places": [plain(place) for place in answer.places],
        "mismatch": answer.mismatch,
        "impossible": _impossible(answer),
        "machine": figure.machine,
        "nvls": figure.nvls,
        "nccl": figure.nccl,
        "conditions": figure.conditions,
        "source": figure.source,
    }


def _impossible(answer: Answer) -> _Json | None:
    """Return the cell of the run that beats its limit, for which an answer is not judged."""
    beaten = answer.impossible
    if beaten is None:
        return None
    cell, limit = beaten.cell, beaten.capacity
    place = {"work": str(cell.work), "members": list(cell.members), "size_bytes": cell.size_bytes}
    return place | {"gbs": beaten.rate_gbs, "limit_gbs": limit.gbs, "devices": list(limit.devices)}
