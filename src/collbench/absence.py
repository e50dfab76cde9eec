"""Why a run has no figure for a place: one answer, from what the run says in types, for every page and command."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from collbench.model import NO_PEERS, Measurement, Path, Run
from collbench.operations import Operation, Variant, Work

Members = tuple[int, ...]

# Kernels address the other GPU's memory; the copy engine and NCCL have other ways.
_BY_KERNEL = (Operation.SM_WRITE, Operation.SM_READ, Operation.CHASE)
_ALLOWED = "OK"


class AbsenceKind(StrEnum):
    """Why there is no figure, or too little for one."""

    FAILED = "failed"
    SKIPPED = "skipped"
    FEW_VISITS = "few visits"
    NOT_REACHED = "not reached"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Absence:
    """Why there is no figure, and the same as a clause. `by_design`: nothing is amiss, there never is one here."""

    kind: AbsenceKind
    reason: str
    by_design: bool = False


class Absences:
    """The reasons of one run, by work, members and size."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[tuple[Work, Members, int], Measurement] = {}
        self._failed: dict[tuple[Work, Members], Measurement] = {}
        for found in run.measurements:
            place = found.cell.work, _place(found.cell.work, found.cell.members)
            self._found[*place, found.cell.size_bytes] = found
            if found.failure:
                self._failed.setdefault(place, found)
        self._skipped = {
            (left.work, _place(left.work, left.members)): left for left in run.skipped if left.work is not None
        }
        self._paths = {frozenset(path.devices): path for path in run.paths}

    def of(self, work: Work, members: Members, size_bytes: int | None = None) -> Absence:
        """Return why a work has no figure, or too few visits for one, on its members; at any size for None."""
        place = work, _place(work, members)
        found = self._failed.get(place) if size_bytes is None else self._found.get((*place, size_bytes))
        if found is not None and found.failure:
            return Absence(AbsenceKind.FAILED, found.failure)
        left = self._skipped.get(place)
        if left is not None:
            return Absence(AbsenceKind.SKIPPED, left.reason, left.kind is not None and left.kind.by_design)
        if self._refused(work, members):  # in files of older versions `skipped` names no place
            return Absence(AbsenceKind.SKIPPED, NO_PEERS.reason, NO_PEERS.kind.by_design)
        visits = 0 if found is None else len(found.samples)
        if visits:
            return Absence(AbsenceKind.FEW_VISITS, f"{visits} visit{'s' if visits > 1 else ''} only")
        if not self._run.complete:
            return Absence(AbsenceKind.NOT_REACHED, "not reached: the run was interrupted")
        return Absence(AbsenceKind.NOT_MEASURED, "not measured")

    def _refused(self, work: Work, members: Members) -> bool:
        """Return whether a kernel's copy lacks peer access, as NVML or CUDA say of the path."""
        path = self._paths.get(frozenset(members))
        return work.operation in _BY_KERNEL and work.variant is not Variant.HOST and path is not None and _denied(path)


def _denied(path: Path) -> bool:
    if path.cuda_peers is not None:
        return not path.cuda_peers
    return path.peer_access not in (None, _ALLOWED)


def _place(work: Work, members: Members) -> Members:
    """Return members so that those of one place are equal."""
    unordered = work.operation.is_collective or work.variant is Variant.BOTH_WAYS
    return tuple(sorted(members)) if unordered else members
