"""Inject a fault for each kind of verdict (docs/method/verdicts.md): is it found, with its cause, and nothing else?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from collbench.judge import diagnose
from collbench.judge.diagnose import Kind, Verdict
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


# The names of the causes that name each injected mechanism.
_CAUSES: dict[str, tuple[str, ...]] = {
    "data-corrupt": ("acs_corrupts", "faulty_nvlinks"),
    "hang": ("acs_stalls", "faulty_nvlinks"),
    "nv-degraded": ("nvlinks_degraded", "gpu"),
    "nv-not-used": ("nvlinks_down",),
    "linkcount-mismatch": ("nvlinks_lost",),
    "hidden-nvlink": ("nvlinks_hidden",),
    "impossible": ("timing_or_limit",),
    "order-inversion": ("no_peer_access", "uplink_shared"),
    "intra-label-outlier": ("gpu", "gpu_direction", "one_nvlink", "one_pcie_path", "several"),
    "asymmetry": ("gpu", "gpu_direction", "nvlink_lanes", "pcie_direction"),
    "p2p-slower-than-staged": ("peer_detour",),
    "p2p-cap-mismatch": ("peers_taken",),
    "pcie-degraded": ("fewer_lanes", "lower_generation"),
    "contention": ("other_jobs", "nvlink_traffic", "bridge_detour"),
    "collective-contradiction": ("nccl_path",),
    "virtual-flat": ("pcie_tree_hidden",),
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
        v for v in placed if v.cause.name in (causes if v.kind is expected_kind else (*causes, *_causes_of_stronger(v)))
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


def _causes_of_stronger(verdict: Verdict) -> tuple[str, ...]:
    """Return the causes of a stronger verdict, which explains the injected kind by its own kind."""
    return _CAUSES[verdict.kind.lower().replace("_", "-")]


def expected_causes(kind: str, fabric: Fabric) -> tuple[str, ...]:
    """Return the causes that a verdict may name, by the mechanism of the injected fault."""
    injected: list[Fault] = [*fabric.faults[-1:]]
    if injected and injected[0].kind is FaultKind.P2P_DISABLED:
        return ("NCCL_P2P_DISABLE",)
    if injected and injected[0].kind is FaultKind.FOREIGN_LOAD:
        return ("other_jobs",)
    if injected and injected[0].kind is FaultKind.PCIE_DEGRADED:
        return ("lower_generation",) if injected[0].generation else ("fewer_lanes",)
    if injected and kind == "intra-label-outlier":
        return ("gpu", "gpu_direction") if injected[0].kind is FaultKind.SLOW_GPU else ("one_nvlink", "one_pcie_path")
    return _CAUSES[kind]
