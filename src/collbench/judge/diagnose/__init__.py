"""What a run means: where its labels and its measured links disagree, and what was judged (docs/method/verdicts.md)."""

from __future__ import annotations

from functools import cached_property

from collbench.judge import references
from collbench.judge.diagnose import links
from collbench.judge.diagnose.blame import unhealthy_devices
from collbench.judge.diagnose.collectives import collectives
from collbench.judge.diagnose.coverage import Coverage, NotDone, coverage, missing
from collbench.judge.diagnose.devices import degraded_slots, interference, other_processes, unsteady
from collbench.judge.diagnose.limits import excluded_links, failures, limits
from collbench.judge.diagnose.readings import Facts, Reading
from collbench.judge.diagnose.reported import reported
from collbench.judge.diagnose.verdict import Kind, Link, Severity, Verdict, explained
from collbench.judge.outcome import outcome
from collbench.judge.references import Answers
from collbench.judge.registration import ordinary
from collbench.model.errors import ExitStatus
from collbench.model.run import Run

__all__ = ["Coverage", "Diagnosis", "Kind", "NotDone", "Severity", "Verdict", "judge"]

_STATUS = {
    Severity.HARD: ExitStatus.UNTRUSTED,
    Severity.CONTRADICTION: ExitStatus.CONTRADICTION,
    Severity.FAILURE: ExitStatus.FAILED,
    Severity.INFO: ExitStatus.DONE,
}


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
        facts = self.facts
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
            *links.staging(facts, excluded),
            *links.asymmetries(facts, excluded, unhealthy),
            *links.outliers(facts, excluded, unhealthy),
            *links.below_elements(facts, unhealthy),
            *collectives(facts, excluded, unhealthy),
            *unsteady(facts, unhealthy),
        ]
        found += links.inversions(facts, excluded, frozenset[Link]().union(*(verdict.reach for verdict in found)))
        ranks = list(Severity)
        return tuple(sorted(explained(found), key=lambda verdict: ranks.index(verdict.severity)))

    @cached_property
    def coverage(self) -> Coverage:
        """Which pairs were judged at all."""
        return coverage(self.facts)

    @cached_property
    def not_judged(self) -> tuple[NotDone, ...]:
        """The checks that the run has no data for, with what is missing."""
        return tuple(missing(self.facts))

    @cached_property
    def unstaged(self) -> list[Reading]:
        """The copies by P2P than which those through host memory may be faster, which the run does not tell."""
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
