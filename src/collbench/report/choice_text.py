"""Sentences about choices of devices, rankings and devices that were left out: made from typed values, only here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from collbench.choose.choice import (
    AllLeft,
    Band,
    BestPair,
    ByLabels,
    Choice,
    Grounds,
    How,
    LeftOut,
    Measured,
    OneDevice,
    Predicted,
    RatesSpread,
    SameLabels,
    TieBreak,
    Told,
    TooFewLeft,
    Undecided,
    Unfit,
    Why,
)
from collbench.judge.stats import FEWEST_TRIALS
from collbench.judge.tiers import Ranking
from collbench.model.errors import UsageError
from collbench.model.run import Device, tags
from collbench.model.units import (
    TELLING_BYTES,
    amount,
    figure,
    fixed,
    format_approximate_size,
    span,
)
from collbench.report.prose import device_sets

_UNFIT = {
    Unfit.EXCLUDED: "excluded",
    Unfit.PROCESSES: "busy: {0.figure:.0f} other process{es}",
    Unfit.TRIALS_SHARED: "busy: another process in {0.figure:.0%} of its trials",
    Unfit.UTILISATION: "busy: {0.figure:.0f}% utilization",
    Unfit.MEMORY: "busy: only {free} of {total} free",
    Unfit.THROTTLED: "throttled: {reasons}",
    Unfit.TRIALS_THROTTLED: "throttled in {0.figure:.0%} of its trials",
    Unfit.ECC_ERRORS: "faulty: {0.figure:.0f} uncorrected ECC error{s}",
    Unfit.NVLINK_ERRORS: "faulty: {0.figure:.0f} new NVLink error{s}",
    Unfit.FAILING_PAIRS: "faulty: only its pairs failed or moved wrong data",
}


def unfit(why: Why) -> str:
    """Return "busy: 2 other processes", "faulty: 1 uncorrected ECC error", "throttled: SW power cap"."""
    one = why.figure == 1
    return _UNFIT[why.kind].format(
        why,
        es="" if one else "es",
        s="" if one else "s",
        free=format_approximate_size(int(why.figure)),
        total=format_approximate_size(why.total),
        reasons=", ".join(why.reasons),
    )


def left_out(excluded: LeftOut) -> str:
    """Return why a device was not considered."""
    return "; ".join(map(unfit, excluded.why))


def refusal(error: UsageError) -> str:
    """Return why devices cannot be chosen, with the reasons against those that were not considered."""
    if not isinstance(error, TooFewLeft):
        return str(error)
    usable = len(error.devices) - len(error.out)
    named = [f"{error.devices[one.member].tag} ({left_out(one)})" for one in error.out]
    advice = "choose fewer, or add --allow-busy" if error.forgivable else "choose fewer"
    left = f"{usable} {'is' if usable == 1 else 'are'} left without {'; '.join(named)}"
    return f"cannot choose {error.asked} of {len(error.devices)} devices: {left}; {advice}"


@contextmanager
def refusals() -> Iterator[None]:
    """Give the UsageError of a refused choice its text: the reasons why devices are excluded are typed values."""
    try:
        yield
    except TooFewLeft as error:
        raise UsageError(refusal(error)) from None


def tiers(ranking: Ranking, without: str = "") -> str:
    """Return a clause on whether what was ranked differs; `without` names the devices that it leaves out."""
    kind = ranking.kind
    if ranking.sets == 1 and not ranking.failed:
        return f"there is one {kind}, so there is nothing to choose"
    if len(ranking.standings) == 1 and not ranking.failed:
        return f"only one of {ranking.sets} {kind}s was measured, so there is nothing to compare"
    if ranking.all_tied:
        what = "bandwidth" if ranking.size_bytes >= TELLING_BYTES else "latency"
        subject = f"{len(ranking.standings)} measured {kind}s of {ranking.sets}" if ranking.excused else f"{kind}s"
        among = " among them" if without else ""
        return f"all {subject}{without} tie within {ranking.spread:.1%}: the choice{among} does not affect {what}"
    if ranking.failed:
        doubts = "".join(f"{count}; " for count in wrong_sets(ranking, f" of {ranking.sets} {kind}s"))
    else:
        doubts = f"{len(ranking.standings)} of {ranking.sets} {kind}s were measured; " if ranking.lacking else ""
    if ranking.one_tier:
        other = "other " if ranking.failed else ""
        slower = f"the worst looks {ranking.spread:.1%} slower than the best"
        return f"{doubts}no {other}{kind}{without} differs significantly: {slower}"
    slower = f"is {ranking.spread:.0%} slower than"
    if ranking.size_bytes < TELLING_BYTES:  # the page has times
        slower = f"takes {figure(1 / (1 - ranking.spread))} times as long as"
    return f"{doubts}{ranking.tiers} tiers: the worst {kind}{without} {slower} the best"


def wrong_sets(ranking: Ranking, of: str = "") -> list[str]:
    """Return how many sets failed, "1 failed", and how many only have a rate above a limit."""
    above_limit = len(ranking.impossible)
    counts = ((len(ranking.failed) - above_limit, "failed"), (above_limit, "with a rate above the limit"))
    return [f"{count}{of} {outcome}" for count, outcome in counts if count]


def grounds(basis: Grounds, without: str = "") -> str:
    """Return a clause on whether pairs differ; `without` names the devices that are left out."""
    match basis:
        case SameLabels(labels):
            same = f"all pairs{without} have the label {labels[0]}"
            return same if len(labels) == 1 else f"{len(labels)} different labels"
        case RatesSpread(spread, tied):
            return (
                f"all pairs{without} are within {spread:.1%}"
                if tied
                else f"pairs{without} differ by up to {spread:.0%}"
            )
        case _:
            return tiers(basis, without)


_FEW_LEFT_OUT = 3  # devices that a reason names


def reason(choice: Choice, devices: Sequence[Device]) -> str:
    """Return why a set was chosen; no set that includes what failed is reported without it."""
    why, out = choice.reason, choice.left_out
    few = tags([one.member for one in out], devices) if len(out) <= _FEW_LEFT_OUT else f"the {len(out)} left out"
    without = f" without {few}" if out else ""
    k = len(choice.members)
    if isinstance(why, Told):
        text = why.text
    else:
        text = _by_labels(why, k, without) if isinstance(why, ByLabels) else _reason(why, k, without)
    if choice.heuristic and not isinstance(choice.reason, Measured | Told) and not choice.tied:
        text += ", found by a heuristic search"
    if (
        choice.trials is not None
        and choice.trials < FEWEST_TRIALS
        and not isinstance(choice.reason, AllLeft | Measured | Told)
    ):
        text += f"; uncertain: some sets have {choice.trials} of the {FEWEST_TRIALS} trials needed to estimate noise"
    if choice.estimated:
        text = f"by labels, nothing was measured: {text}"
    if choice.forgiven:
        taken = ", ".join(f"{devices[one.member].tag} ({left_out(one)})" for one in choice.forgiven)
        text += f"; with {taken}, because every set without them includes a failure"
    if broken := [failed_set for failed_set in choice.failed if failed_set not in choice.impossible]:
        text += f"; includes failed {device_sets(broken, devices)}"
    if above_limit := [failed_set for failed_set in choice.failed if failed_set in choice.impossible]:
        text += f"; includes {device_sets(above_limit, devices)} with a rate above the limit"
    return text


def _reason(why: AllLeft | OneDevice | Undecided | BestPair | Predicted | Measured, k: int, without: str) -> str:
    match why:
        case AllLeft(count, of):
            return f"all {count} devices" if count == of else f"the {count} of {of} devices that are left"
        case OneDevice():
            return "one device: there is no pair to compare"
        case Undecided(basis):
            return grounds(basis, without)
        case BestPair(gbs, worst, all_measured):
            pair = f"worst {'' if all_measured else 'measured '}pair"
            whose = f"the {pair}{without}" if without else f"the machine's {pair}"
            return f"{fixed(gbs, 3)} GB/s; {whose} reaches {fixed(worst, 3)} GB/s"
        case Predicted(rates, first):
            over = f" over {band_basis(rates)}" if rates.hi > 0 else ""
            other = f"same as the first {k}" if first is None else f"the first {k}: {_reaches(first)}"
            return f"predicted {_reaches(rates)}{over} ({other})"
        case Measured(gbs, simulated, is_first, gain):
            over = f" (same as the first {k})" if is_first else ""
            if gain is not None:
                over = f", {gain[1]:.2f}× ({gain[0]:.2f}–{gain[2]:.2f}) that of the first {k}"
            return f"{fixed(gbs, 3)} GB/s {'simulated' if simulated else 'measured'}{over}"


def _by_labels(why: ByLabels, k: int, without: str) -> str:
    """Return which labels the set has, and how they join it: they have an order, not rates."""
    if k == 2:
        whose = f"the worst pair{without}" if without else "the machine's worst pair"
        return f"{why.inside[0]}; {whose} has {why.worst}"
    other = f"same as the first {k}" if why.first is None else f"the first {k}: {band_basis(why.first)}"
    return f"{', '.join(why.inside)} over {band_basis(why.band)} ({other})"


def _reaches(rates: Band) -> str:
    """Return the rate of a set, or why it has none."""
    return band(rates) if rates.hi > 0 else f"nothing, {_means(rates)}"


_MEANS = {
    How.BROKEN: "one of its pairs is broken",
    How.PAIR: "the pair itself",
    How.NVSWITCH: "NVSwitch",
    How.NVLINK_RINGS: "{rings} NVLink rings",
    How.PCIE_RING: "one PCIe ring",
}


def band(rates: Band) -> str:
    """Return "28.5–47.5 GB/s", one figure where both ends print alike, "at most 47.5 GB/s" without a known `lo`."""
    if rates.unmeasured and rates.lo == 0:
        return f"at most {fixed(rates.hi, 3)} GB/s"
    return f"{span(fixed(rates.lo, 3), fixed(rates.hi, 3), '–')} GB/s"


def band_basis(rates: Band) -> str:
    """Return the links that give a band its rates: "NVSwitch, 1 pair not measured"."""
    return _means(rates) + (f", {amount(rates.unmeasured, 'pair')} not measured" if rates.unmeasured else "")


def _means(rates: Band) -> str:
    return _MEANS[rates.how].format(rings=rates.rings)


_TIE_BREAKS = {
    TieBreak.IN_USE: "the fewest GPUs in use by others",
    TieBreak.SUSPECT: "the fewest GPUs with throttling or errors",
    TieBreak.LATENCY: "the lower latency for small messages",
    TieBreak.NUMA_NODES: "the fewest NUMA nodes",
    TieBreak.REMAINDER: "the best remaining GPUs for the next job",
    TieBreak.BUS_ID: "PCI bus id",
    TieBreak.INDEX: "index",
    TieBreak.PREDICTED: "the predicted order",
}


def tie_breaks(used: Sequence[TieBreak]) -> str:
    """Return "the fewest NUMA nodes, then PCI bus id", "" for none."""
    return ", then ".join(_TIE_BREAKS[one] for one in used)
