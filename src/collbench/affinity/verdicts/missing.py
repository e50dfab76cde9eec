"""What a run leaves open: the checks that could not be made on what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.absence import AbsenceKind, Absences
from collbench.affinity.verdicts.limits import path_limit
from collbench.affinity.verdicts.readings import COLLECTIVE_BYTES, COPY_BYTES, STAGED, Facts
from collbench.affinity.verdicts.verdict import Link
from collbench.machine.labels import is_nvlink
from collbench.operations import Operation, Variant, Work
from collbench.units import format_size

_MOST_NAMES = 4


def missing(facts: Facts) -> Iterator[str]:
    """Yield a line for each check that could not be made, and what would make it possible."""
    yield from _cells(facts)
    if facts.run.backend != "host":
        yield from _copies(facts)
        yield from _collectives(facts)
        yield from _sources(facts)


def _cells(facts: Facts) -> Iterator[str]:
    """Name the links that the others of their work were compared without."""
    for work in facts.readings.works(collective=False):
        readings = facts.readings.of(work, 1)
        n = len(facts.run.devices)
        absent = [(a, b) for a in range(n) for b in range(n) if a != b and (a, b) not in readings]
        if absent:
            yield from _absent(facts, work, next(iter(readings.values())).size_bytes, absent)


def _absent(facts: Facts, work: Work, size_bytes: int, links: Sequence[Link]) -> Iterator[str]:
    """Yield a line for each reason why links have no figure."""
    absences, reasons = Absences(facts.run), dict[tuple[AbsenceKind, str], list[Link]]()
    for link in links:
        absence = absences.of(work, link, size_bytes)
        told = "failed" if absence.kind is AbsenceKind.FAILED else absence.reason
        reasons.setdefault((absence.kind, told), []).append(link)
    for (_, told), ours in reasons.items():
        names = ", ".join(facts.tags(link, " → ") for link in ours[:_MOST_NAMES])
        more = f" and {len(ours) - _MOST_NAMES} more" if len(ours) > _MOST_NAMES else ""
        yield f"{work} at {format_size(size_bytes)} on {names}{more}: {told}"


def _copies(facts: Facts) -> Iterator[str]:
    readings = facts.readings
    copies = [r for r in readings.cells if r.work.operation.is_copy and r.work.variant is Variant.PLAIN]
    if not any(reading.size_bytes >= COPY_BYTES for reading in copies):
        yield f"links against their limits: no copy of {format_size(COPY_BYTES)} or more was measured on them"
        return
    unknown = sorted({r.label for r in copies if path_limit(facts, (r.members[0], r.members[1])) is None})
    if unknown:
        yield f"{', '.join(unknown)} links against a limit: nobody told their slots or NVLinks"
    if not readings.of(STAGED, COPY_BYTES):
        yield "peer access against staging: no staged copies (collbench copies --patterns one-way,staged)"


def _collectives(facts: Facts) -> Iterator[str]:
    cells = [r for r in facts.readings.cells if r.work.operation.is_collective]
    if not any(reading.size_bytes >= COLLECTIVE_BYTES for reading in cells):
        yield f"NCCL against the links: no collective of {format_size(COLLECTIVE_BYTES)} or more was measured"
    elif not any(r.work.operation is Operation.ALLREDUCE and len(r.members) == 2 for r in cells):
        yield "NCCL pair by pair: no all-reduce was measured on pairs"


def _sources(facts: Facts) -> Iterator[str]:
    run = facts.run
    asked: dict[str, list[object]] = {
        "nvidia-smi topo -m": [path.tool_label for path in run.paths],
        "nvidia-smi topo -p2p": [path.tool_peer_access for path in run.paths],
        "CUDA's peer access": [path.cuda_peers for path in run.paths],
    }
    silent = [name for name, answers in asked.items() if all(answer is None for answer in answers)]
    if silent and run.paths:
        yield f"the labels against {', '.join(silent)}: not in this run"
    states = run.health_after
    over_pcie = any(not is_nvlink(path.label) for path in run.paths)
    if over_pcie and not any(state.pcie_generation or state.pcie_width for state in states):
        yield "PCIe under load: its generation and width were not read"
