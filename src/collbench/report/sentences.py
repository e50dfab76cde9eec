"""Sentences about flags, failures, skips, missing figures, verdicts and choices: made from typed values, only here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collbench.choose.choice import (
    AllLeft,
    Band,
    BestForJob,
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
    TooFewLeft,
    Undecided,
    Unfit,
    Why,
)
from collbench.judge.diagnose import CheckKind, Kind, NotDone, Verdict
from collbench.judge.diagnose.evidence import (
    Beaten,
    Disturbed,
    Extent,
    FewerLinks,
    Inverted,
    LinkCount,
    OfWorks,
    OtherLabel,
    OtherProcesses,
    PeerAnswers,
    SlotBelowBest,
    Slower,
    SlowerFor,
    Source,
    StagedFaster,
    TreeLabels,
    Where,
    WrongElements,
)
from collbench.judge.diagnose.readings import COLLECTIVE_BYTES, COPY_BYTES
from collbench.judge.fits import FEWEST_SIZES, LEAST_SPAN, NoLine, Unfitted
from collbench.judge.outcome import Absence, AbsenceKind
from collbench.judge.stats import FEWEST_TRIALS
from collbench.judge.tiers import Ranking
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.failures import Cause, Failure, FailureKind, WrongData
from collbench.model.operations import Registration, Variant, Work
from collbench.model.run import Device, Flag, FlagKind, Run, SkipKind, Skipped
from collbench.model.units import (
    DTYPE_BYTES,
    TELLING_BYTES,
    abridged,
    amount,
    figure,
    fixed,
    format_approximate_size,
    format_size,
    span,
)
from collbench.report import causes

_MOST_NAMES = 4


def flag(flagged: Flag, devices: Sequence[Device]) -> str:
    """Return "throttled: SW thermal slowdown on GPU1", "hot: GPU1 at 86 °C", "shared: 1 other process on GPU0"."""
    names = tags(flagged.devices, devices)
    match flagged.kind:
        case FlagKind.THROTTLED:
            return f"throttled: {flagged.reason} on {names}"
        case FlagKind.HOT:
            return f"hot: {names} at {flagged.figure} °C"
        case FlagKind.SHARED:
            return f"shared: {flagged.figure} other process{'' if flagged.figure == 1 else 'es'} on {names}"
        case FlagKind.OTHER:
            return flagged.reason


# Failures and wrong data.


def failure(failed: Failure, devices: Sequence[Device]) -> str:
    """Return why a step failed: "allreduce of 1M on GPU0-GPU1 failed on GPU1: unhandled cuda error"."""
    text = _failed(failed, devices)
    if failed.kind is FailureKind.UNTRIED and failed.cause is Cause.IN_A_ROW:
        text = f"not tried, as {text}"
    if failed.rank is None:
        return text
    host = devices[failed.rank].host if failed.rank < len(devices) else ""
    return f"rank {failed.rank}{f' on {host}' if host else ''}: {text}"


_FAILED = {
    Cause.REFUSED: "{step} failed{at}: {detail}",
    Cause.NOT_OPENED: "opening the GPUs failed{at}: {detail}",
    Cause.NO_BUFFERS: "allocating buffers failed{at}: {detail}",
    Cause.NO_COMMUNICATOR: "creating NCCL communicators failed{at}: {detail}",
    Cause.NO_ANSWER: "hang: no answer{at} within {seconds} s, so the worker process was killed{said}",
    Cause.GIVEN_UP: "{step} failed: no answer for {seconds} s: the step was given up",
    Cause.DIED: "crash: the worker process died{at} ({ending}){said}",
    Cause.ENDING: "crash: the worker process closed its pipe and is exiting",
    Cause.NO_WORKER: "could not start a new worker process: {because}",
    Cause.NCCL_START: "NCCL failed to start in {count} worker processes; last error: {because}",
    Cause.NO_WORLD: "the ranks could not reconnect: {because}",
    Cause.NOT_COVERED: "{step} failed: three times the load{at} ended before the copies that were timed beside it",
    Cause.NO_TIME: "the clock stopped or went backward: a timed batch took {seconds} s; measure again",
    Cause.IN_A_ROW: "{count} data points in a row failed; last error: {because}",
    Cause.REPORTED: "{detail}",
}


# The signals that end a process, by their numbers on Linux [signal(7)].
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}


def _failed(failed: Failure, devices: Sequence[Device]) -> str:
    silent = "it wrote nothing to stderr" if failed.cause is Cause.DIED else ""
    said = failed.detail or silent
    ending = f"exit status {failed.exit_status}"
    if failed.signal is not None:
        ending = ", ".join(filter(None, (f"signal {failed.signal}", _SIGNALS.get(failed.signal))))
    return _FAILED[failed.cause].format(
        step=_step(failed, devices),
        at=f" on {tags(failed.devices, devices)}" if failed.devices else "",
        detail=failed.detail,
        said=f": {said}" if said else "",
        seconds=fixed(failed.seconds or 0.0, 3),
        ending=ending,
        count=failed.count,
        because=failure(failed.because, devices) if failed.because else "",
    )


def _step(failed: Failure, devices: Sequence[Device]) -> str:
    size = "" if failed.size_bytes is None else f" of {format_size(failed.size_bytes)}"
    groups = ", ".join(tags(group, devices, "-") for group in failed.groups)
    return f"{failed.work}{size}{f' on {groups}' if groups else ''}"


def wrong_data(wrong: WrongData, devices: Sequence[Device]) -> str:
    """Return which data was wrong, where, and what to do."""
    first, others = tags(wrong.members[:1], devices), tags(wrong.members[1:], devices)
    if not first:
        where = "location unknown"
    elif wrong.work.operation.is_collective:
        where = f"{first} among {tags(sorted(wrong.members), devices)}"
    elif wrong.work.variant.host_memory:
        where = f"link between {first} and host memory"
    elif wrong.work.variant is Variant.LOCAL:
        where = f"memory of {first}"
    else:
        where = f"link {first} → {others}"
    details = [] if wrong.count is None else [f"{wrong.count} wrong"]
    details += [] if wrong.offset is None else [f"the first at byte {wrong.offset}"]
    values = ""
    if wrong.expected is not None:
        found = "no finite number" if wrong.found is None else fixed(wrong.found, 6)
        values = f": expected {fixed(wrong.expected, 6)}, found {found}"
    advice = "Do not train over this link; IOMMU or ACS settings are the usual cause"
    if devices and devices[0].is_core:
        advice = "Do not trust this machine; test its memory (memtest86+)"
    reported = f"{', '.join(details)}{values}"
    return f"wrong data: {wrong.work} of {format_size(wrong.size_bytes)}, {where}: {reported}. {advice}"


# Skips and missing figures.


def skipped(skip: Skipped, run: Run) -> str:
    """Return what was skipped and why: "sm-write GPU0 → GPU1: no peer access, …"."""
    what, why = skipped_what(skip, run), skipped_reason(skip, run)
    return f"{what}: {why}" if what else why


_SKIPPED_WHAT = {
    SkipKind.NODE_LIMIT: "host copies of {sizes}",
    SkipKind.ROOM: "sizes {sizes}",
    SkipKind.ALGORITHMS: "algorithms, protocols and channels",
    SkipKind.WRONG_DATA: "all remaining data points",
}
_SKIPPED_WHY = {
    SkipKind.NO_PEERS: "no peer access, so a kernel cannot address the other GPU's memory",
    SkipKind.PEERS_REFUSED: "the driver refused the peer access that it had called possible: {detail}",
    SkipKind.SMALL_BLOCK: "smaller than the 16 bytes that nccl-tests needs for each of {count} ranks",
    SkipKind.SMALL_ELEMENT: "smaller than one {dtype}, which takes {width} bytes",
    SkipKind.NODE_LIMIT: (
        "{size} is the limit with the memory of each NUMA node: larger messages would use too much of it"
    ),
    SkipKind.ONE_DEVICE: "it needs two devices, and one was measured",
    SkipKind.ROOM: "the fullest device has room for messages of {limit}; {free}",
    SkipKind.CONCURRENT_ROOM: "{count} concurrent messages do not fit in a buffer of {limit}",
    SkipKind.CACHE: "only {limit} are free for a buffer, too little compared with the cache of the reading device",
    SkipKind.NUMA: "{detail}",
    SkipKind.PROCESSES: "one process times copies; here each device has its own process",
    SkipKind.ALGORITHMS: "{detail}",
    SkipKind.WRONG_DATA: "{detail}",
    SkipKind.OTHER: "{detail}",
}


def skipped_what(skip: Skipped, run: Run) -> str:
    """Return what was skipped: "sm-write GPU0 → GPU1", "sizes 8G"; "" if the reason names it."""
    sizes = ", ".join(map(format_size, skip.sizes))
    if skip.kind in _SKIPPED_WHAT:
        return _SKIPPED_WHAT[skip.kind].format(sizes=sizes)
    if skip.work is None:
        return "host copies by NUMA node" if skip.kind is SkipKind.NUMA else ""
    where = tags(skip.members, run.devices, " → ") or (f"of {sizes}" if sizes else "")
    return f"{skip.work} {where}".rstrip()


def skipped_reason(skip: Skipped, run: Run) -> str:
    """Return why it was skipped."""
    if skip.wrong is not None:
        return wrong_data(skip.wrong, run.devices)
    dtype = run.settings.dtype
    silent = "nothing here reports these operations" if skip.kind is SkipKind.ALGORITHMS else ""
    return _SKIPPED_WHY[skip.kind].format(
        count=skip.count,
        dtype=dtype,
        width=DTYPE_BYTES.get(dtype),
        size=format_size(skip.limit_bytes or 0),
        limit=format_approximate_size(skip.limit_bytes or 0),
        free=_free(skip, run),
        detail=skip.detail or silent,
    )


def _free(skip: Skipped, run: Run) -> str:
    if not skip.free_bytes:
        return "half of the free memory is shared among source, target and gloo's buffers"
    free = zip(run.devices, skip.free_bytes, strict=False)
    amounts = ", ".join(f"{device.tag} {format_approximate_size(free_bytes)}" for device, free_bytes in free)
    kinds = {work.registration for work in run.settings.collectives} - {Registration.NONE}
    buffers = ("three", "five", "seven")[len(kinds)]  # source, send, target; send and target of each kind
    return f"free now: {amounts}, shared by {buffers} buffers plus those of NCCL"


def reason_alone(skip: Skipped) -> Skipped:
    """Return the skip without its work and sizes: equal for everything skipped for the same reason."""
    return replace(skip, work=None, members=(), sizes=())


_ABSENT = {
    AbsenceKind.FAILED: "failed",
    AbsenceKind.SKIPPED: "skipped",
    AbsenceKind.ONE_WAY: "measured one way only",
    AbsenceKind.SMALL: "small messages only",
    AbsenceKind.NOT_REACHED: "not measured: the run was interrupted",
    AbsenceKind.NOT_MEASURED: "not measured",
}


def absence(absent: Absence, run: Run) -> str:
    """Return why there is no figure, as a clause."""
    if absent.failure is not None:
        return failure(absent.failure, run.devices)
    if absent.skipped is not None:
        return skipped_reason(absent.skipped, run)
    if absent.kind is not AbsenceKind.FEW_TRIALS:
        return _ABSENT[absent.kind]
    if absent.needed is not None:
        return f"{absent.trials} of the {absent.needed} trials needed to estimate noise"
    return f"{amount(absent.trials, 'trial')} only"


# Verdicts, and checks that could not be made.


_NOT_DONE = {
    CheckKind.LINKS: "{work} at {size} on {links}: {why}",
    CheckKind.COPIES: f"links against their limits: no copy of {format_size(COPY_BYTES)} or more was measured on them",
    CheckKind.LIMITS: "{labels} links against their limits: their PCIe slots or NVLinks are unknown",
    CheckKind.STAGING: "peer access against staging: no staged copies (collbench copies --patterns one-way,staged)",
    CheckKind.COLLECTIVES: (
        f"NCCL against the links: no collective of {format_size(COLLECTIVE_BYTES)} or more was measured"
    ),
    CheckKind.PAIRS: "NCCL on each pair: no all-reduce was measured on pairs",
    CheckKind.LABELS: "the labels against {sources}: not recorded in this run",
    CheckKind.PCIE: "PCIe under load: its generation and width were not read",
}


def not_done(check: NotDone, run: Run) -> str:
    """Return which check could not be made, and what would make it possible."""
    return _NOT_DONE[check.kind].format(
        work=check.work,
        size=format_size(check.size_bytes),
        links=abridged([tags(link, run.devices, " → ") for link in check.links], _MOST_NAMES),
        why=absence(check.absence, run) if check.absence else "",
        labels=", ".join(check.labels),
        sources=", ".join("CUDA's peer access" if one is Source.CUDA else one for one in check.sources),
    )


def what(verdict: Verdict, run: Run) -> str:
    """Return what was found, with the failure or the wrong data that shows it."""
    text = _evidence(verdict, run)
    if verdict.failure is not None:
        return f"{text} {failure(verdict.failure, run.devices).rstrip('.')}."
    if verdict.skipped is not None:
        return f"{text} {skipped_reason(verdict.skipped, run).rstrip('.')}."
    return text


def finding(verdict: Verdict, run: Run) -> str:
    """Return a verdict in one line: its kind, where it is, what was found, and the rates that show it."""
    place, _, clause = _evidence(verdict, run).rstrip(".").partition(": ")
    rates = ""
    if verdict.measured is not None and verdict.theory_gbs is not None and not isinstance(verdict.evidence, Beaten):
        rates = f"{figure(verdict.measured[1])} of {fixed(verdict.theory_gbs)} GB/s"
    unsure = "" if verdict.confirmed else "not confirmed in isolation"
    said = "; ".join(filter(None, (rates, clause, unsure)))
    return f"{verdict.kind} {place}{': ' if said else ''}{said}"


_BRIDGES = {"PIX": "one PCIe bridge", "PXB": "PCIe bridges", "PHB": "a PCIe host bridge", "NODE": "the host bridges"}


def _evidence(verdict: Verdict, run: Run) -> str:  # noqa: PLR0911 - a sentence for each kind of evidence
    match verdict.evidence:
        case WrongElements(elements, work):
            counted = f", {elements} wrong elements of {work}" if work else ""
            return f"{where(verdict.where, run.devices)}: wrong data arrived{counted}."
        case OtherProcesses(seen):
            where_seen = (f"on {run.devices[one.device].tag} {causes.presence(one)}" for one in seen)
            return f"another process was {', '.join(where_seen)}."
        case Disturbed(labels, ratio, works):
            pairs = f"{' and '.join(labels)} pairs"
            return f"{pairs}: concurrently they reach {ratio:.2f} of their isolated rate ({_names(works)})."
        case Inverted(share, worse, works):
            pairs = f"{verdict.label} pairs of {tags(verdict.members, run.devices)}"
            return f"{pairs} reach {share:.0%} less than {worse} pairs, though the label is better ({_names(works)})."
        case TreeLabels(labels, ancestors):
            bridges = f" ({_BRIDGES[ancestors[0]]})" if len(ancestors) == 1 and ancestors[0] in _BRIDGES else ""
            tree = f"the PCIe tree (topo -p) has {', '.join(ancestors)}{bridges}"
            return f"topo -m reports {', '.join(labels)}; {tree}. Both are right."
        case OfWorks() if verdict.kind is Kind.VIRTUAL_FLAT:
            alike = f"All pairs have the label {verdict.label} and no GPU has a NUMA node"
            return f"{alike}: the labels carry no information."
        case _:
            return f"{where(verdict.where, run.devices)}: {_clause(verdict, run)}."


_OF_WORKS = {
    Kind.HANG: "the work never ended",
    Kind.FAILED: "the work failed",
    Kind.NV_NOT_USED: "{pcie}, though the label is {label}",
    Kind.HIDDEN_NVLINK: "faster than PCIe can be, though the label has no NVLink",
}
_SLOWER = {
    Kind.ASYMMETRY: "{share:.0%} slower than the opposite direction",
    Kind.INTRA_LABEL_OUTLIER: "{share:.0%} below the best {label} links",
    Kind.COLLECTIVE_CONTRADICTION: "NCCL reaches {rest:.0%} of the capacity of its slowest link",
}


def _clause(verdict: Verdict, run: Run) -> str:  # noqa: C901, PLR0911 - a clause for each kind of evidence
    match verdict.evidence:
        case OfWorks(works):
            pcie = "NCCL is no faster than PCIe" if works else "copies are no faster than PCIe allows"
            clause = _OF_WORKS[verdict.kind].format(pcie=pcie, label=verdict.label)
            return f"{clause} ({_names(works)})" if works else clause
        case LinkCount(source, label, nvlinks):
            return f"{source} reports {label}, NVML counts {nvlinks} active NVLinks"
        case PeerAnswers(label, answers, agree):
            reports = ", ".join(f"{source} {answer}" for source, answer in answers)
            if agree:
                return f"the label {label} implies peer access, but no source allows it: {reports}"
            return f"the sources disagree on peer access: {reports}"
        case FewerLinks(links, count):
            return f"reaches the rate of {f'{links:.0f}' if links >= 1 else f'{links:.1f}'} of {count} links"
        case Beaten(gbs, part, works, batches):
            most = f"{gbs:.0f} GB/s, above the capacity of the {part}, {verdict.theory_gbs or 0.0:.0f} GB/s"
            return f"{most} ({_names(works)}; {batches} batch{'' if batches == 1 else 'es'})"
        case SlotBelowBest(now, best):
            return f"PCIe gen {now[0]} ×{now[1]} right after measuring; its maximum is gen {best[0]} ×{best[1]}"
        case StagedFaster(gbs):
            unit = "GB/s sim" if capabilities(run.backend).simulated else "GB/s"
            return f"slower by peer access than through host memory, which reaches {gbs:.1f} {unit}"
        case Slower(share, works, label):
            return f"{_SLOWER[verdict.kind].format(share=share, rest=1 - share, label=label)} ({_names(works)})"
        case SlowerFor(share, first, last, passes):
            part = f"pass {first}" if first == last else f"passes {first} to {last}"
            return f"{share:.0%} slower in {part} of {passes} than in the others"
        case OtherLabel(tool, nvml):
            return f"nvidia-smi topo -m reports {tool}, NVML reports {nvml}"
        case _:
            raise TypeError(f"no sentence for {verdict.evidence}")


def where(location: Where, devices: Sequence[Device]) -> str:
    """Return "GPU0 → GPU1", "all links from GPU2", "all 6 NV18 pairs (one direction each)"."""
    one_way = " (one direction each)" if location.one_way else ""
    return _WHERE[location.extent].format(
        commas=tags(location.devices, devices),
        dash=tags(location.devices, devices, "-"),
        arrow=tags(location.devices, devices, " → "),
        pairs=f"{location.pairs} {' and '.join(location.labels)} pairs{one_way}",
    )


_WHERE = {
    Extent.DEVICES: "{commas}",
    Extent.PAIR: "{dash}",
    Extent.DIRECTION: "{arrow}",
    Extent.ALL: "all links of {commas}",
    Extent.SENT: "all links from {commas}",
    Extent.RECEIVED: "all links to {commas}",
    Extent.PAIRS: "{pairs}",
    Extent.ALL_PAIRS: "all {pairs}",
    Extent.SET: "all of {commas}",
}


def _names(works: Sequence[Work]) -> str:
    return ", ".join(map(str, works))


_NO_LINE = {
    NoLine.FEW_SIZES: f"{{figure:.0f}} of the {FEWEST_SIZES} sizes that a fit needs",
    NoLine.NARROW: f"sizes span a factor of {{factor}}, a fit needs {LEAST_SPAN}",
    NoLine.ONE_TRIAL: "a size has one trial; an interval needs two",
    NoLine.FLAT: "time does not grow with size, so there is no bandwidth",
}


def no_line(unfitted: Unfitted) -> str:
    """Return why a link has no fit."""
    return _NO_LINE[unfitted.why].format(figure=unfitted.figure, factor=fixed(unfitted.figure, 3))


# Choices.


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
    if error.predicting:
        names = "; ".join(f"without {name}" for name in named)
        without = f" {names}" if names else ""
        return f"cannot predict for {error.asked} of {usable} devices{without}: choose 2 to {usable}"
    advice = "choose fewer, or add --allow-busy" if error.forgivable else "choose fewer"
    left = f"{usable} {'is' if usable == 1 else 'are'} left without {'; '.join(named)}"
    return f"cannot choose {error.asked} of {len(error.devices)} devices: {left}; {advice}"


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
    if isinstance(why, BestForJob):
        text = _best_for_job(why)
    else:
        text = _by_labels(why, k, without) if isinstance(why, ByLabels) else _reason(why, k, without)
    if choice.heuristic and not isinstance(choice.reason, Measured | BestForJob) and not choice.tied:
        text += ", found by a heuristic search"
    if (
        choice.trials is not None
        and choice.trials < FEWEST_TRIALS
        and not isinstance(choice.reason, AllLeft | Measured | BestForJob)
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


def _best_for_job(why: BestForJob) -> str:
    """Return how long a step of the job communicates on the chosen set, and whether another finalist may be faster."""
    if why.finalists < 2:
        least = "the only finalist that did not fail"
    elif why.tied:
        least = f"{why.finalists} finalists tie"
    elif why.significant:
        least = f"the shortest of {why.finalists} finalists"
    else:
        least = f"none of {why.finalists} finalists is significantly faster"
    how = "simulated" if why.simulated else "measured"
    return f"a step of {why.job} communicates for {why.seconds * 1e3:.3f} ms ({how}): {least}"


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


def device_sets(sets: Sequence[Sequence[int]], devices: Sequence[Device]) -> str:
    """Return the names of sets of devices: "GPU2-GPU3; GPU4"; "an unknown device" for an empty one."""
    names = (tags(device_set, devices, "-" if len(device_set) == 2 else ", ") for device_set in sets)
    return "; ".join(name or "an unknown device" for name in names)


def tags(positions: Sequence[int], devices: Sequence[Device], between: str = ", ") -> str:
    """Return the names of devices: "GPU0, GPU1"."""
    return between.join(devices[position].tag for position in positions)
