"""The survey that `collbench nodes --json` printed, read again: what `show` does with it (docs/slow-nodes.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.cli.terminal import show_answer
from collbench.cluster.nodes import Judgement, LateNode, NodeChoice
from collbench.cluster.page import NodeSurvey, as_plain, page
from collbench.model.errors import ExitStatus, UsageError
from collbench.model.run import BACKENDS, Members
from collbench.model.values import one_line
from collbench.runfile.codec import FileFormat, attributes, build

FORMAT = FileFormat("collbench-nodes", 1, "survey", again="survey again")


@dataclass(frozen=True, slots=True)
class _Choice:
    """A choice as JSON has it: the reasons why others were left out are texts."""

    members: Members
    reason: str
    band: tuple[float, float] | None
    left_out: tuple[tuple[int, str], ...]
    switches: tuple[int, ...]
    heuristic: bool


@dataclass(frozen=True, slots=True)
class _Truth:
    busbw_gbs: float
    bound_gbs: float


@dataclass(frozen=True, slots=True)
class _Survey:
    """A survey as JSON has it."""

    backend: str
    exit_status: int
    where: str
    names: tuple[str, ...]
    rounds: tuple[str, ...]
    measurements: int
    seconds: float
    seed: int
    lost: tuple[str, ...]
    failed: str
    network: tuple[str, ...]
    late: tuple[LateNode, ...]
    gone: tuple[str, ...]
    plain: bool
    switches: tuple[int, ...]
    switches_from: str
    judgement: Judgement
    choice: _Choice | None
    truth: _Truth | None


_STATUSES = {int(status): status for status in ExitStatus}


def load(path: Path) -> NodeSurvey:
    """Return the survey in a file. Raises RunFileError."""
    return FORMAT.loads(FORMAT.read(path), str(path), _build)


def _build(fields: dict[str, Any]) -> NodeSurvey:
    saved: _Survey = build(_Survey, fields, "survey")
    _check(saved)
    given = attributes(saved)
    given["failure_status"] = _STATUSES[given.pop("exit_status")]
    if saved.choice is not None:
        given["choice"] = NodeChoice(**attributes(saved.choice))
    if saved.truth is not None:
        given["truth"] = saved.truth.busbw_gbs, saved.truth.bound_gbs
    return NodeSurvey(**given)


def _check(saved: _Survey) -> None:
    """Raise ValueError where fields of the right type make no sense, so that the page need not check them."""
    if saved.backend not in BACKENDS:
        raise ValueError(f"survey.backend is '{saved.backend}', not one of {', '.join(BACKENDS)}")
    if saved.exit_status not in _STATUSES:
        raise ValueError(f"survey.exit_status is {saved.exit_status}, not one of {', '.join(map(str, _STATUSES))}")
    judgement, nodes = saved.judgement, range(len(saved.names))
    if len(judgement.nodes) != len(nodes):
        raise ValueError(f"survey.judgement.nodes has {len(judgement.nodes)} items for {len(nodes)} names")
    intervals = len(judgement.across_intervals)
    if intervals != len(judgement.across) and (intervals or judgement.busy_pairs is None):
        raise ValueError("survey.judgement.across_intervals has not one interval for each of across")
    if strange := next((node for node in _named(saved) if node not in nodes), None):
        raise ValueError(f"survey names node {strange} of {len(nodes)}")


def _named(saved: _Survey) -> Iterator[int]:
    """Yield the positions of nodes that its parts name."""
    judgement, choice = saved.judgement, saved.choice
    for members in (judgement.fast_pair, *(uplink.members for uplink in judgement.uplinks)):
        yield from members
    yield from (node.node for node in saved.late)
    if choice is not None:
        yield from choice.members
        yield from (node for node, _ in choice.left_out)


# What other commands do with such a file: api/runs.py finds this module by the file's format.

NAME, CALL, OPTIONS = "a survey of nodes", "json.load(open({!r}))", ()


def show(file: Path) -> None:
    """Print the page that `collbench nodes` printed, or its JSON."""
    survey = load(file)
    show_answer(page(survey), lambda: json.dumps(as_plain(survey), allow_nan=False) + "\n")


def export(file: Path, output_format: str) -> str:
    """Raise UsageError: no format of export is for a survey."""
    raise UsageError(
        f"{one_line(str(file))} is {NAME}, and --format {output_format} is for a run: the file is JSON already"
    )
