"""What a run's pages answer, as JSON: best sets, tiers, rates, what check finds (docs/run-file.md)."""

from __future__ import annotations

from typing import Any

from collbench.choose.fitness import left_out
from collbench.choose.select import choose_each, evidence
from collbench.judge.diagnose import Diagnosis
from collbench.model.run import CommandKind, ordinary
from collbench.report import ranking, verdicts
from collbench.report.frame import headline
from collbench.report.rows import Table
from collbench.report.views import view
from collbench.runfile.codec import picked


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return it in JSON's own types, from the objects that the pages show; members are positions in the run's devices.

    `exit_status` is that of the command that measured the run. Of a run that an annex measured as the main house does
    only the rates: its command judges it.
    """
    run = diagnosis.run
    answer: dict[str, Any] = {"failed": headline(run)}
    if run.settings.kind in {*CommandKind} or view(run):
        own, names = ordinary(run), [device.tag for device in run.devices]
        deciding = evidence(own)
        rankings = [] if deciding is None else ranking.rankings_of_pairs(own, deciding)
        answer["best"] = [
            {
                "devices": [names[member] for member in choice.members],
                "members": list(choice.members),
                "reason": choice.why(run.devices),
                "predicted_gbs": [choice.band.lo, choice.band.hi] if choice.band else None,
                "tied": choice.tied,
                "failed": [[names[member] for member in members] for members in choice.failed],
            }
            for choice in (choose_each(run) if rankings else ())
        ]
        answer["left_out"] = [{"device": names[left.member], "reason": left.reason} for left in left_out(run)]
        answer["rankings"] = [picked(ranked, "operation", "kind") | ranking.figures_json(ranked) for ranked in rankings]
        for standing in (standing for ranked in answer["rankings"] for standing in ranked["standings"]):
            standing["devices"] = [names[member] for member in standing["members"]]
        answer["check"] = verdicts.as_json(diagnosis)
        answer = {"exit_status": verdicts.status_of(diagnosis), **answer}
    if run.settings.layers:
        from collbench.report.collectives import small_allreduces_json  # late: few runs need it

        answer["small_allreduces"] = small_allreduces_json(run)
    return answer | {"rates": Table.of(run).main()}
