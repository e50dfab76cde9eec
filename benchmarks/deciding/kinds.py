"""Each kind of verdict of docs/method.md 10 put into a machine: found there, with its cause, and nothing else?"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from collbench.analysis import diagnose
from collbench.analysis.diagnose import Kind, Verdict
from collbench.analysis.diagnose.causes import (
    GpuItself,
    Known,
    LikelyCause,
    OfLabel,
    OfLinks,
    VariableSet,
)
from collbench.api.checking import confirm
from collbench.model.errors import DataCorruption, UsageError
from collbench.model.run import Run
from collbench.sim.fabrics import Fabric, Fault, FaultKind
from tests.sim import faults
from tests.sim.made import fabric_text

from .bench import Asked, Part, Row, drawn_seed, healthy, inspection, measured, noisy, rng_of, share, spread
from .truth import contradictions, holds, times

RUNS, BAR = 100, 0.99  # of each kind
_PART = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """One machine with a fault: whether its kind was found, at its place, with its cause; what was said elsewhere."""

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


Wanted = tuple[LikelyCause | type[LikelyCause], ...]

# The causes that name each mechanism that was put in.
_CAUSES: dict[str, Wanted] = {
    "data-corrupt": (Known.ACS_CORRUPTS, Known.FAULTY_NVLINKS),
    "hang": (Known.ACS_STALLS, Known.FAULTY_NVLINKS),
    "nv-degraded": (Known.NVLINKS_DEGRADED, GpuItself),
    "nv-not-used": (Known.NVLINKS_DOWN,),
    "linkcount-mismatch": (Known.NVLINKS_LOST,),
    "hidden-nvlink": (Known.NVLINKS_HIDDEN,),
    "impossible": (Known.TIMING_OR_LIMIT,),
    "order-inversion": (Known.NO_PEER_ACCESS, Known.UPLINK_SHARED),
    "intra-label-outlier": (GpuItself, Known.ONE_NVLINK, Known.ONE_PCIE_PATH, Known.SHARED_PARTS),
    "asymmetry": (GpuItself, Known.NVLINK_LANES, Known.PCIE_DIRECTION),
    "p2p-slower-than-staged": (Known.PEER_DETOUR,),
    "p2p-cap-mismatch": (Known.PEERS_TAKEN,),
    "pcie-degraded": (Known.FEWER_LANES, Known.LOWER_GENERATION),
    "contention": (Known.OTHER_JOBS, Known.NVLINK_TRAFFIC, Known.BRIDGE_DETOUR),
    "collective-contradiction": (Known.NCCL_PATH,),
    "virtual-flat": (Known.PCIE_TREE_HIDDEN,),
}


def run(asked: Asked) -> Part:
    """Return for each kind the share of injections that were found, and what was said of unrelated places."""
    runs = asked.runs or RUNS
    items = [(index, number) for index in range(len(faults.kinds())) for number in range(runs)]
    every = spread(partial(trial, asked.seed), items, asked.jobs, chunk=4)
    rows = []
    for kind in faults.kinds():
        ours = [t for t in every if t.kind == kind]
        right, false = sum(t.caused for t in ours), sum(bool(t.false_kinds) for t in ours)
        words = f"{share(right, len(ours))}, elsewhere {false}"
        met = right >= BAR * len(ours) and not false
        rows.append(Row(f"{kind}, found with place and cause", words, "≥ 99 %, 0", met))
    wrong = Counter((t.kind, name) for t in every for name in t.false_kinds.split())
    notes = [f"elsewhere, injecting {kind}: {name} {count}" for (kind, name), count in wrong.most_common()]
    return Part(rows, every, notes)


def trial(seed: int, item: tuple[int, int]) -> Trial:
    """Return what was found of one kind on one machine."""
    kind = faults.kinds()[item[0]]
    rng = rng_of(seed, _PART, *item)
    number = item[1]
    while True:
        quiet = healthy(number, rng)
        try:
            broken, members = faults.with_fault(quiet, kind, rng)
        except UsageError:
            number += 1  # this machine has no place for it
            continue
        break
    fabric = noisy(broken, rng)
    one = checked(fabric, drawn_seed(rng))
    found = diagnose.judge(one)
    wanted = Kind(kind.upper().replace("-", "_"))
    ours = [v for v in found if wanted is v.kind or wanted in v.explains]
    placed = [v for v in ours if is_at(v, kind, members)]
    caused = [v for v in placed if _names(v.cause, cause_of(kind, broken) + (() if v.kind is wanted else _of(v)))]
    true = times(broken, inspection())
    false = [v for v in contradictions(found) if not set(v.members) & set(members) and not holds(v, one, true)]
    return Trial(
        kind=kind,
        run=item[1],
        fabric=fabric.name,
        gpus=len(fabric.gpus),
        noise=round(fabric.noise.trial, 5),
        place=_words(members),
        found=bool(ours),
        placed=bool(placed),
        caused=bool(caused),
        false_kinds=" ".join(sorted({str(v.kind) for v in false})),
        reported=" ".join(f"{v.kind}:{_words(v.members)}" for v in contradictions(found)),
    )


def _words(members: tuple[int, ...]) -> str:
    return "-".join(map(str, members))


def checked(fabric: Fabric, seed: int) -> Run:
    """Return what `check` judges: its measurement, and what looked suspicious once more, alone."""
    one = measured(fabric, inspection(), seed)
    with tempfile.TemporaryDirectory(prefix="decisions-") as folder:
        path = Path(folder) / f"{fabric.name}.json"
        path.write_text(fabric_text(fabric), encoding="utf-8")
        with suppress(DataCorruption):  # it is in the run already
            confirm(replace(inspection(), fabric=str(path), seed=seed), one, lambda _words: None)
    return one


def is_at(verdict: Verdict, kind: str, members: tuple[int, ...]) -> bool:
    """Return whether a verdict names the place: a link by its direction where that is what is wrong.

    Slow collectives show where NVLinks or one bridge promise more: on PCIe machines on some of the GPUs.
    """
    if kind == "asymmetry" and verdict.kind is Kind.ASYMMETRY:
        return verdict.members == members
    if kind == "collective-contradiction":
        return set(verdict.members) <= set(members)
    return set(verdict.members) == set(members)


def _names(cause: LikelyCause, wanted: Wanted) -> bool:
    named = cause.known if isinstance(cause, OfLinks | OfLabel) else cause
    return any(isinstance(named, one) if isinstance(one, type) else named == one for one in wanted)


def _of(verdict: Verdict) -> Wanted:
    """Return what a stronger verdict's cause must be: it names the kind that was put in as explained by its own."""
    return _CAUSES[verdict.kind.lower().replace("_", "-")]


def cause_of(kind: str, fabric: Fabric) -> Wanted:
    """Return what the cause must be, by the mechanism that the fault has."""
    made: list[Fault] = [*fabric.faults[-1:]]
    if made and made[0].kind is FaultKind.P2P_DISABLED:
        return (VariableSet("NCCL_P2P_DISABLE", "1"),)
    if made and made[0].kind is FaultKind.FOREIGN_LOAD:
        return (Known.OTHER_JOBS,)
    if made and made[0].kind is FaultKind.PCIE_DEGRADED:
        return (Known.LOWER_GENERATION,) if made[0].generation else (Known.FEWER_LANES,)
    if made and kind == "intra-label-outlier":
        return (GpuItself,) if made[0].kind is FaultKind.SLOW_GPU else (Known.ONE_NVLINK, Known.ONE_PCIE_PATH)
    return _CAUSES[kind]
