"""Two runs cell by cell: what is the same, better, worse or undecided, what differs beside, and what only one has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from collbench.comparison import changes, groups
from collbench.comparison.cells import Key, Named, cells
from collbench.comparison.changes import Change, Found, Verdict, in_both
from collbench.comparison.devices import Match, match_devices
from collbench.comparison.differences import Difference, differences
from collbench.comparison.groups import Group
from collbench.errors import ExitStatus
from collbench.model import Run
from collbench.operations import Operation
from collbench.outcome import outcome

_CORES = "host"
# All answers of a comparison together: in one of a hundred, an answer at the border of δ may be wrong.
_ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of each cell of `base` in `new`. `fail_below` is the ratio that a cell may lose.

    Members of `changes` and `only_base` are positions of the base; of `only_new` those of the new run.
    """

    base: Run
    new: Run
    match: Match
    differences: tuple[Difference, ...]
    changes: tuple[Change, ...]
    groups: tuple[Group, ...]
    only_base: tuple[Key, ...]
    only_new: tuple[Key, ...]
    fail_below: float

    @property
    def regressions(self) -> tuple[Change | Group, ...]:
        """The groups and cells that are slower for certain by more than `fail_below` allows."""
        beyond = tuple(group for group in self.groups if group.regressed)
        return (*beyond, *(change for change in self.changes if change.regressed))

    @property
    def judged(self) -> int:
        """How many cells have in both runs the visits that tell noise: the others say nothing."""
        return sum(change.interval is not None for change in self.changes)

    @property
    def lost(self) -> tuple[Key, ...]:
        """The cells of the base that the new run lacks, though it has both the devices and the work at this size."""
        both = set(self.match.positions.values())
        measured = {(change.key.work, change.key.size_bytes) for change in self.changes}
        return tuple(
            key for key in self.only_base if set(key.members) <= both and (key.work, key.size_bytes) in measured
        )

    @property
    def status(self) -> ExitStatus:
        """How the command ends: what failed in the new run or is lost is no agreement, nor is nothing judged."""
        regressed = ExitStatus.CONTRADICTION if self.regressions else ExitStatus.DONE
        judged = ExitStatus.DONE if self.judged and not self.lost else ExitStatus.FAILED
        return max(regressed, judged, outcome(self.new).status)

    def count(self, verdict: Verdict) -> int:
        """Return how many cells have this verdict."""
        return Counter(change.verdict for change in self.changes)[verdict]


def compare(base: Run, new: Run, fail_below: float, operation: Operation | None = None) -> Comparison:
    """Return the comparison of two runs of one backend; of one operation where it is given."""
    match = match_devices(base, new)
    wanted = _filter(operation)
    old, now = wanted(cells(base)), wanted(cells(new, match.positions))
    judged, grouped = _judged(in_both(old, now, base.paths), fail_below, on_cores=base.backend == _CORES)
    own = wanted(cells(new))
    renamed = dict(zip(now, own, strict=True))
    return Comparison(
        base=base,
        new=new,
        match=match,
        differences=differences(base, new, match.positions),
        changes=tuple(sorted(judged, key=lambda change: (change.ratio, _order(change.key)))),
        groups=tuple(sorted(grouped, key=lambda group: (group.ratio, group.work, group.members))),
        only_base=tuple(sorted((key for key in old if key not in now), key=_order)),
        only_new=tuple(sorted((renamed[key] for key in now if key not in old), key=_order)),
        fail_below=fail_below,
    )


def _judged(found: list[Found], fail_below: float, *, on_cores: bool) -> tuple[list[Change], list[Group]]:
    bunches = groups.bunches(found)
    alpha = _ALPHA / max(1, sum(one.decided for one in found) + len(bunches))
    judged = {one.key: changes.judge(one, alpha, fail_below, on_cores=on_cores) for one in found}
    grouped = [groups.judge(b, [judged[one.key] for one in b.found], alpha, fail_below) for b in bunches]
    return list(judged.values()), grouped


def _filter(operation: Operation | None) -> Callable[[dict[Key, Named]], dict[Key, Named]]:
    def wanted(found: dict[Key, Named]) -> dict[Key, Named]:
        return {key: named for key, named in found.items() if operation in (None, named.work.operation)}

    return wanted


def _order(key: Key) -> tuple[str, tuple[int, ...], int]:
    return key.work, key.members, key.size_bytes
