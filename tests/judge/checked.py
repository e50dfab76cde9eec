"""Machines to judge: healthy ones, of recorded or published rates, and what a fault makes of their runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path as File

from collbench.judge.diagnose import Diagnosis, Kind, Severity, Verdict, judge
from collbench.model.errors import FailureKind
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import (
    DataPoint,
    Device,
    Flag,
    Health,
    InterferenceCheck,
    Measurement,
    Path,
    Run,
    Sample,
    StopReason,
)
from collbench.report import verdicts
from tests.builders import GIB, gpus, in_words, measured, nvml_says, run_of, smi_says

Members = tuple[int, ...]
Rate = Callable[[Work, Members], float]

DATA = File(__file__).parents[1] / "data" / "h200x4"
COPIES = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE, Operation.SM_READ)
STAGED = Work(Operation.CE_WRITE, Variant.STAGED)
HOST = tuple(Work(operation, Variant.HOST) for operation in (Operation.H2D_CE, Operation.D2H_CE))


def h200(share: Rate = lambda _work, _members: 1.0) -> Run:
    """Return the run of the 4 × H200 reference machine [method/verdicts.md 2], at a `share` of what it measured."""
    matrices = {
        case["name"]: case
        for case in json.loads((DATA / "nvbandwidth-d2d-ce.json").read_text())["nvbandwidth"]["testcases"]
    }

    def healthy(work: Work, members: Members) -> float:
        if work.variant is Variant.STAGED:
            return 38.4  # p2pBandwidthLatencyTest, P2P disabled
        if work.variant is Variant.HOST:
            return 55.0
        if work.operation in (Operation.CE_WRITE, Operation.CE_READ):
            way = "write" if work.operation is Operation.CE_WRITE else "read"
            matrix = matrices[f"device_to_device_memcpy_{way}_ce"]["bandwidth_matrix"]
            return float(matrix[members[0]][members[1]])
        return {Operation.SM_WRITE: 370.0, Operation.SM_READ: 376.0}.get(work.operation, 326.08)

    links = tuple(
        Path(pair, "NV18", "PHB", 18, 450.0, "18 × 25 GB/s", nvml_says("OK"), "NV18", smi_says("OK"), cuda_peers=True)
        for pair in combinations(range(4), 2)
    )
    run = run_on(gpus(4), links, lambda work, members: healthy(work, members) * share(work, members))
    return replace(run, machine=replace(run.machine, virtualization="pass-through"))


def pcie(labels: Mapping[Members, str], rate: Rate, *, theory: float = 31.5, count: int = 4) -> Run:
    """Return a run of GPUs in gen 4 slots, PHB where `labels` does not say otherwise; `rate` is of plain work."""
    links = tuple(
        Path(pair, label, label, 0, theory, "PCIe gen 4 ×16", nvml_says("OK"), label, smi_says("OK"), cuda_peers=True)
        for pair in combinations(range(count), 2)
        for label in (labels.get(pair, "PHB"),)
    )
    others = {Variant.STAGED: 9.0, Variant.HOST: 24.0}
    return run_on(gpus(count, "NVIDIA A40"), links, lambda w, m: others.get(w.variant) or rate(w, m), slot=(4, 16))


def run_on(devices: Sequence[Device], links: Sequence[Path], rate: Rate, slot: tuple[int, int] = (5, 16)) -> Run:
    """Return a run of every copy, staged and to the host, and of all-reduce on each pair, at 1 GiB and these rates."""
    n = len(devices)
    places: list[tuple[Work, Members]] = []
    places += [(Work(op), link) for op in COPIES for link in permutations(range(n), 2)]
    places += [(STAGED, link) for link in permutations(range(n), 2)]
    places += [(work, (gpu,)) for work in HOST for gpu in range(n)]
    places += [(Work(Operation.ALLREDUCE), pair) for pair in combinations(range(n), 2)]
    slots = [replace(device, pcie_generation=slot[0], pcie_width=slot[1]) for device in devices]
    run = run_of(slots, [trials(work, members, rate(work, members)) for work, members in places], links)
    return replace(
        run, health_after=tuple(Health(processes=0, pcie_generation=slot[0], pcie_width=slot[1]) for _ in slots)
    )


def trials(work: Work, members: Members, gbs: float, size: int = GIB) -> Measurement:
    """Return five trials that vary by a thousandth."""
    found = measured(work.operation, members, [gbs * (1 + 0.001 * step) for step in (-1, 0.5, 0, 1, -0.5)], size)
    return replace(found, point=replace(found.point, variant=work.variant))


def beside_others(run: Run) -> Run:
    """Return the run as if everything had been measured beside others."""
    busy = [
        replace(found, samples=[replace(sample, concurrent=True) for sample in found.samples])
        for found in run.measurements
    ]
    return replace(run, measurements=busy)


def with_check(run: Run, operation: Operation, label: str, ratio: float, members: Members = (0, 1)) -> Run:
    """Return the run with one more interference check of a label, at this speed beside others."""
    alone = next(f for f in run.measurements if f.point.operation is operation and f.point.members == members)
    gbs = GIB / alone.samples[0].seconds[0] / 1e9
    finding = InterferenceCheck(
        operation, members, label, gbs, gbs * ratio, ratio, 0.02, trusted=abs(1 - ratio) <= 0.02
    )
    return replace(run, interference_checks=[*run.interference_checks, finding])


def faults(run: Run) -> list[Verdict]:
    """Return what is wrong: all verdicts but information."""
    return [verdict for verdict in judge(run) if verdict.severity is not Severity.INFO]


def what(verdict: Verdict, devices: Sequence[Device] | None = None) -> str:
    """Return what a verdict says in words, by default of up to eight GPUs."""
    return verdicts.what(verdict, run_of(devices or gpus(8), []))


def the(run: Run, kind: Kind) -> Verdict:
    """Return the one verdict of a run, which must be of this kind. Fails the test where there is another."""
    found = faults(run)
    assert [verdict.kind for verdict in found] == [kind], found
    return found[0]


def kinds(run: Run) -> list[str]:
    """Return the kinds of all verdicts, information included."""
    return [str(verdict.kind) for verdict in judge(run)]


def slow(links: Sequence[Members], factor: float, *, copies: bool = True) -> Rate:
    """Return the share at which plain copies (or collectives) run: `factor` on these members, else all of it."""

    def share(work: Work, members: Members) -> float:
        plain = work.variant is Variant.PLAIN and work.operation.is_copy is copies
        return factor if plain and members in links else 1.0

    return share


def undone(run: Run) -> list[str]:
    """Return the checks that a run does not allow, as pages tell them."""
    return [verdicts.not_done(one, run) for one in Diagnosis(run).not_judged]


def failed(
    run: Run, operation: Operation, members: Members, reason: str, kind: FailureKind | None = FailureKind.HANG
) -> Run:
    """Return the run with a data point that failed; `kind` None as an older version saved it."""
    point = DataPoint(operation, members, 2 * GIB)
    bad = Measurement(point, [], StopReason.FAILED, 0, in_words(reason, kind))
    return replace(run, measurements=[*run.measurements, bad])


def flagged(run: Run, flag: Flag) -> Run:
    """Return the run with a flag on every sample."""
    marked = [
        replace(found, samples=[_flagged(sample, flag) for sample in found.samples]) for found in run.measurements
    ]
    return replace(run, measurements=marked)


def _flagged(sample: Sample, flag: Flag) -> Sample:
    return replace(sample, flags=(*sample.flags, flag))
