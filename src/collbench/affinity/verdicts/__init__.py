"""Where the labels and the wires disagree (METHOD.md §5): a run in, verdicts out. Pure."""

from __future__ import annotations

from collbench.affinity.verdicts.collectives import collectives
from collbench.affinity.verdicts.coverage import Coverage, coverage
from collbench.affinity.verdicts.devices import disturbing, foreign, slots, staged
from collbench.affinity.verdicts.explaining import explained
from collbench.affinity.verdicts.failures import failures
from collbench.affinity.verdicts.likeness import asymmetries, outliers
from collbench.affinity.verdicts.limits import beyond_labels, limits
from collbench.affinity.verdicts.missing import missing
from collbench.affinity.verdicts.order import inversions
from collbench.affinity.verdicts.readings import Facts
from collbench.affinity.verdicts.state import ailing
from collbench.affinity.verdicts.told import told
from collbench.affinity.verdicts.verdict import Kind, Severity, Verdict
from collbench.model import Run

__all__ = ["Coverage", "Kind", "Severity", "Verdict", "coverage", "judge", "not_judged"]


def judge(run: Run) -> tuple[Verdict, ...]:
    """Return the verdicts on a run, strongest first; what `coverage` does not call judged agrees with nothing."""
    facts = Facts(run)
    ill = ailing(facts)
    by_limit = list(limits(facts, ill))
    odd = beyond_labels(facts, by_limit)
    findings = [
        *failures(facts),
        *told(facts),
        *foreign(facts, ill),
        *disturbing(facts),
        *slots(facts),
        *by_limit,
        *staged(facts, odd),
        *asymmetries(facts, odd, ill),
        *outliers(facts, odd, ill),
        *inversions(facts, odd),
        *collectives(facts, odd, ill),
    ]
    ranks = list(Severity)
    standing = sorted(explained(findings), key=lambda finding: ranks.index(finding.verdict.severity))
    return tuple(finding.verdict for finding in standing)


def not_judged(run: Run) -> tuple[str, ...]:
    """Return a line for each check that this run does not allow, with what is missing."""
    return tuple(missing(Facts(run)))
