"""Verdicts: where the labels of a run and its measured links disagree (docs/method/verdicts.md). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.judge.diagnose.blame import unhealthy_devices
from collbench.judge.diagnose.collectives import collectives
from collbench.judge.diagnose.coverage import Coverage, NotDone, coverage, missing
from collbench.judge.diagnose.devices import degraded_slots, interference, other_processes, unsteady
from collbench.judge.diagnose.limits import excluded_links, failures, limits
from collbench.judge.diagnose.links import asymmetries, below_elements, inversions, outliers, staging
from collbench.judge.diagnose.links import unstaged as unstaged_links
from collbench.judge.diagnose.readings import Facts, Reading
from collbench.judge.diagnose.reported import reported
from collbench.judge.diagnose.verdict import Kind, Link, Severity, Verdict, explained
from collbench.judge.registration import ordinary
from collbench.model.run import Run

__all__ = ["Coverage", "Kind", "NotDone", "Severity", "Verdict", "coverage", "judge", "not_judged", "unstaged"]


def judge(run: Run) -> tuple[Verdict, ...]:
    """Return the verdicts on a run, strongest first. `coverage` says which pairs were judged at all."""
    facts = Facts(ordinary(run))
    unhealthy = unhealthy_devices(facts)
    by_limits = list(limits(facts, unhealthy))
    excluded = excluded_links(facts, by_limits)
    found = [
        *failures(facts),
        *reported(facts),
        *other_processes(facts, unhealthy),
        *interference(facts),
        *degraded_slots(facts),
        *by_limits,
        *staging(facts, excluded),
        *asymmetries(facts, excluded, unhealthy),
        *outliers(facts, excluded, unhealthy),
        *below_elements(facts, unhealthy),
        *collectives(facts, excluded, unhealthy),
        *unsteady(facts, unhealthy),
    ]
    found += inversions(facts, excluded, frozenset[Link]().union(*(verdict.reach for verdict in found)))
    ranks = list(Severity)
    return tuple(sorted(explained(found), key=lambda verdict: ranks.index(verdict.severity)))


def not_judged(run: Run) -> tuple[NotDone, ...]:
    """Return the checks that this run has no data for, with what is missing."""
    return tuple(missing(Facts(ordinary(run))))


def unstaged(run: Run, verdicts: Sequence[Verdict]) -> list[Reading]:
    """Return the copies by P2P than which those through host memory may be faster, which the run does not tell."""
    return unstaged_links(Facts(ordinary(run)), verdicts)
