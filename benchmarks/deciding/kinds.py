"""Inject a fault for each kind of verdict of docs/method.md 10: is it found there, with its cause, and nothing else?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from collbench.judge import diagnose
from collbench.judge.diagnose import Kind, Verdict
from collbench.judge.diagnose.causes import (
    GpuItself,
    Known,
    LikelyCause,
    OfLabel,
    OfLinks,
    VariableSet,
)
from collbench.model.errors import UsageError
from collbench.sim.fabrics import Fabric, Fault, FaultKind
from tests.sim import faults

from .bench import (
    Options,
    Part,
    Row,
    check_request,
    drawn_seed,
    healthy,
    map_in_order,
    noisy,
    share,
    simulated_run,
    trial_rng,
)
from .truth import contradictions, is_true, true_times

RUNS, BAR = 100, 0.99  # of each kind
_PART = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """One machine with a fault: whether the kind was found, at the right devices, with the cause; verdicts elsewhere.

    `found`, `placed` and `caused` each include the one before. `place` are the devices with the fault.
    """

    kind: str
    run: int
    fabric: str
    gpus: int
    noise: float
    place: str
    found: bool
    placed: bool
    caused: bool
    false_kinds: str
    reported: str


ExpectedCauses = tuple[LikelyCause | type[LikelyCause], ...]

# The causes that name each injected mechanism.
_CAUSES: dict[str, ExpectedCauses] = {
    "data-corrupt": (Known.ACS_CORRUPTS, Known.FAULTY_NVLINKS),
    "hang": (Known.ACS_STALLS, Known.FAULTY_NVLINKS),
    "nv-degraded": (Known.NVLINKS_DEGRADED, GpuItself),
    "nv-not-used": (Known.NVLINKS_DOWN,),
    "linkcount-mismatch": (Known.NVLINKS_LOST,),
    "hidden-nvlink": (Known.NVLINKS_HIDDEN,),
    "impossible": (Known.TIMING_OR_LIMIT,),
    "order-inversion": (Known.NO_PEER_ACCESS, Known.UPLINK_SHARED),
    "intra-label-outlier": (GpuItself, Known.ONE_NVLINK, Known.ONE_PCIE_PATH, Known.SEVERAL),
    "asymmetry": (GpuItself, Known.NVLINK_LANES, Known.PCIE_DIRECTION),
    "p2p-slower-than-staged": (Known.PEER_DETOUR,),
    "p2p-cap-mismatch": (Known.PEERS_TAKEN,),
    "pcie-degraded": (Known.FEWER_LANES, Known.LOWER_GENERATION),
    "contention": (Known.OTHER_JOBS, Known.NVLINK_TRAFFIC, Known.BRIDGE_DETOUR),
    "collective-contradiction": (Known.NCCL_PATH,),
    "virtual-flat": (Known.PCIE_TREE_HIDDEN,),
}


def run(options: Options) -> Part:
    """Return for each kind the share of injected faults that were found, and the verdicts on unrelated devices."""
    runs = options.runs or RUNS
    items = [(index, number) for index in range(len(faults.kinds())) for number in range(runs)]
    all_trials = map_in_order(partial(trial, options.seed), items, options.jobs, chunk=4)
    rows = []
    for kind in faults.kinds():
        trials_of_kind = [t for t in all_trials if t.kind == kind]
        right, false = sum(t.caused for t in trials_of_kind), sum(bool(t.false_kinds) for t in trials_of_kind)
        measured = f"{share(right, len(trials_of_kind))}, elsewhere {false}"
        met = right >= BAR * len(trials_of_kind) and not false
        rows.append(Row(f"{kind}, found with place and cause", measured, "≥ 99%, 0", met))
    wrong = Counter((t.kind, name) for t in all_trials for name in t.false_kinds.split())
    notes = [f"elsewhere, injecting {kind}: {name} {count}" for (kind, name), count in wrong.most_common()]
    return Part(rows, all_trials, notes)


def trial(seed: int, item: tuple[int, int]) -> Trial:
    """Inject one kind of fault into one machine, and judge a noisy run of it."""
    kind = faults.kinds()[item[0]]
    rng = trial_rng(seed, _PART, *item)
    number = item[1]
    while True:
        healthy_fabric = healthy(number, rng)
        try:
            broken, members = faults.with_fault(healthy_fabric, kind, rng)
        except UsageError:
            number += 1  # this machine has no device for such a fault
            continue
        break
    fabric = noisy(broken, rng)
    run = simulated_run(fabric, check_request(), drawn_seed(rng), confirmed=True)
    verdicts = diagnose.judge(run)
    expected_kind = Kind(kind.upper().replace("-", "_"))
    detected = [v for v in verdicts if expected_kind is v.kind or expected_kind in v.explains]
    placed = [v for v in detected if names_devices(v, kind, members)]
    causes = expected_causes(kind, broken)
    caused = [
        v
        for v in placed
        if _matches(v.cause, causes if v.kind is expected_kind else (*causes, *_causes_of_stronger(v)))
    ]
    truth = true_times(broken, check_request())
    false_verdicts = [
        v for v in contradictions(verdicts) if not set(v.members) & set(members) and not is_true(v, run, truth)
    ]
    return Trial(
        kind=kind,
        run=item[1],
        fabric=fabric.name,
        gpus=len(fabric.gpus),
        noise=round(fabric.noise.trial, 5),
        place=_set_text(members),
        found=bool(detected),
        placed=bool(placed),
        caused=bool(caused),
        false_kinds=" ".join(sorted({str(v.kind) for v in false_verdicts})),
        reported=" ".join(f"{v.kind}:{_set_text(v.members)}" for v in contradictions(verdicts)),
    )


def _set_text(members: tuple[int, ...]) -> str:
    return "-".join(map(str, members))


def names_devices(verdict: Verdict, kind: str, members: tuple[int, ...]) -> bool:
    """Return whether a verdict names the devices with the fault, in the direction of the link for a slow direction.

    A slow collective shows only where NVLinks or one bridge promise more: on PCIe machines, on some of the GPUs.
    """
    if kind == "asymmetry" and verdict.kind is Kind.ASYMMETRY:
        return verdict.members == members
    if kind == "collective-contradiction":
        return set(verdict.members) <= set(members)
    return set(verdict.members) == set(members)


def _matches(cause: LikelyCause, expected: ExpectedCauses) -> bool:
    named = cause.known if isinstance(cause, OfLinks | OfLabel) else cause
    return any(
        isinstance(named, cause_or_type) if isinstance(cause_or_type, type) else named == cause_or_type
        for cause_or_type in expected
    )


def _causes_of_stronger(verdict: Verdict) -> ExpectedCauses:
    """Return the causes of a stronger verdict, which explains the injected kind by its own kind."""
    return _CAUSES[verdict.kind.lower().replace("_", "-")]


def expected_causes(kind: str, fabric: Fabric) -> ExpectedCauses:
    """Return the causes that a verdict may name, by the mechanism of the injected fault."""
    injected: list[Fault] = [*fabric.faults[-1:]]
    if injected and injected[0].kind is FaultKind.P2P_DISABLED:
        return (VariableSet("NCCL_P2P_DISABLE", "1"),)
    if injected and injected[0].kind is FaultKind.FOREIGN_LOAD:
        return (Known.OTHER_JOBS,)
    if injected and injected[0].kind is FaultKind.PCIE_DEGRADED:
        return (Known.LOWER_GENERATION,) if injected[0].generation else (Known.FEWER_LANES,)
    if injected and kind == "intra-label-outlier":
        return (GpuItself,) if injected[0].kind is FaultKind.SLOW_GPU else (Known.ONE_NVLINK, Known.ONE_PCIE_PATH)
    return _CAUSES[kind]
