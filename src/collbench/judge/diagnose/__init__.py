"""What a run means: where its labels and its measured links disagree, and what was judged (docs/method/verdicts.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

from collbench.judge import references
from collbench.judge.diagnose import links
from collbench.judge.diagnose.collectives import collectives
from collbench.judge.diagnose.coverage import (
    Coverage,
    NotDone,
    coverage,
    far_below_theory,
    healthy,
    missing,
    rates,
)
from collbench.judge.diagnose.devices import counted_errors, degraded_slots, interference, other_processes, unsteady
from collbench.judge.diagnose.limits import failures, limits
from collbench.judge.diagnose.readings import Facts, Reading
from collbench.judge.diagnose.reported import reported
from collbench.judge.diagnose.verdict import Kind, Link, Severity, Verdict, explained
from collbench.judge.outcome import outcome
from collbench.judge.references import Answers
from collbench.judge.registration import ordinary
from collbench.model.errors import ExitStatus
from collbench.model.run import Pair, Run

__all__ = ["Coverage", "Diagnosis", "Kind", "NotDone", "Severity", "Verdict", "judge"]

_STATUS = {
    Severity.HARD: ExitStatus.UNTRUSTED,
    Severity.CONTRADICTION: ExitStatus.CONTRADICTION,
    Severity.FAILURE: ExitStatus.FAILED,
    Severity.INFO: ExitStatus.DONE,
}
# Each yields the verdicts of one rule. Links that a blamed element slows show no inversion of labels.
_RULES: tuple[Callable[[Facts], Iterable[Verdict]], ...] = (
    failures,
    reported,
    other_processes,
    interference,
    counted_errors,
    degraded_slots,
    limits,
    links.staging,
    links.asymmetries,
    links.outliers,
    links.below_elements,
    collectives,
    unsteady,
)


class Diagnosis:
    """What is wrong with a run's machine and what was not judged, each found when it is first asked for.

    Page, headline, JSON and exit status of a command take the same one.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.facts = Facts(ordinary(run))

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts, strongest first."""
        found = [verdict for rule in _RULES for verdict in rule(self.facts)]
        found += links.inversions(self.facts, frozenset[Link]().union(*(verdict.reach for verdict in found)))
        ranks = list(Severity)
        return tuple(sorted(explained(found), key=lambda verdict: ranks.index(verdict.severity)))

    @cached_property
    def coverage(self) -> Coverage:
        """Which pairs were judged at all."""
        return coverage(self.facts)

    @cached_property
    def healthy(self) -> tuple[Pair, ...]:
        """The judged pairs without a fault."""
        return healthy(self.coverage.judged, self.unstaged, self.verdicts)

    @cached_property
    def rates(self) -> dict[str, list[Reading]]:
        """What shows the rates of their links, by label."""
        return rates(self.facts, self.healthy)

    @property
    def far_below(self) -> dict[str, float]:
        """The labels of which all these links reach less than half of theory, with the most that one reaches."""
        return far_below_theory(self.facts, self.rates)

    @cached_property
    def not_judged(self) -> tuple[NotDone, ...]:
        """The checks that the run has no data for, with what is missing."""
        return tuple(missing(self.facts))

    @cached_property
    def unstaged(self) -> list[Reading]:
        """The copies by P2P that copies through host memory may beat, which the run does not tell."""
        return links.unstaged(self.facts, self.verdicts)

    @cached_property
    def references(self) -> Answers:
        """How published figures judge the run."""
        return references.judge(self.run, references.load())

    @property
    def status(self) -> ExitStatus:
        """The exit status: the worst of verdicts and failures; a run in which nothing was judged does not pass."""
        worst = max((_STATUS[verdict.severity] for verdict in self.verdicts), default=ExitStatus.DONE)
        judged = ExitStatus.DONE if self.coverage.any else ExitStatus.FAILED
        normal = ExitStatus.CONTRADICTION if self.references.below else ExitStatus.DONE
        return max(worst, judged, normal, outcome(self.run).status)


def judge(run: Run) -> tuple[Verdict, ...]:
    """Return the verdicts on a run, strongest first."""
    return Diagnosis(run).verdicts
