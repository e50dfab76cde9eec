"""Whether what was ranked differs, in words."""

from __future__ import annotations

from collbench.judge.tiers import Ranking
from collbench.model.units import TELLING_BYTES, figure


def verdict_of(ranking: Ranking, without: str = "") -> str:
    """Return a clause on whether what was ranked differs; `without` names devices left out: " without GPU3"."""
    kind = ranking.kind
    if ranking.sets == 1 and not ranking.failed:
        return f"there is one {kind}, so there is nothing to choose"
    failed = wrong_sets(ranking, f" of {ranking.sets} {kind}s")
    if len(ranking.standings) == 1:
        why = "; ".join(failed) or f"only one of {ranking.sets} {kind}s was measured"
        return f"{why}, so there is nothing to compare"
    if ranking.all_tied:
        what = "bandwidth" if ranking.size_bytes >= TELLING_BYTES else "latency"
        subject = f"{len(ranking.standings)} measured {kind}s of {ranking.sets}" if ranking.excused else f"{kind}s"
        among = " among them" if without else ""
        return f"all {subject}{without} tie within {ranking.spread:.1%}: the choice{among} does not affect {what}"
    if failed:
        doubts = "".join(f"{count}; " for count in failed)
    else:
        doubts = f"{len(ranking.standings)} of {ranking.sets} {kind}s were measured; " if ranking.lacking else ""
    if ranking.one_tier:
        other = "other " if failed else ""
        slower = f": the worst looks {ranking.spread:.1%} slower than the best" if round(ranking.spread, 3) else ""
        return f"{doubts}no {other}{kind}{without} differs significantly{slower}"
    slower = f"is {ranking.spread:.0%} slower than"
    if ranking.size_bytes < TELLING_BYTES:  # the page has times
        slower = f"takes {figure(1 / (1 - ranking.spread))} times as long as"
    return f"{doubts}{ranking.tiers} tiers: the worst {kind}{without} {slower} the best"


def wrong_sets(ranking: Ranking, of: str = "") -> list[str]:
    """Return how many sets failed, "1 failed", and how many only have a rate above a limit."""
    above_limit = len(ranking.impossible)
    counts = ((len(ranking.failed) - above_limit, "failed"), (above_limit, "with a rate above the limit"))
    return [f"{count}{of} {outcome}" for count, outcome in counts if count]
