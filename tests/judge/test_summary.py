from itertools import combinations

import pytest

from collbench.judge.outcome import AbsenceKind
from collbench.judge.summary import RankedWork, rank_summary
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Measurement, Run, StopReason
from collbench.report import sentences
from tests.builders import GIB, gpus, in_words, measured, run_of

MIB = 2**20
SUM = Operation.ALLREDUCE


def sums(sizes: dict[int, int], count: int = 4) -> list[Measurement]:
    """Return all-reduces at each size on that many of the pairs, the first ones."""
    pairs = list(combinations(range(count), 2))
    return [measured(SUM, pair, 300.0, size) for size, some in sizes.items() for pair in pairs[:some]]


def only(run: Run, size: int | None = None) -> RankedWork:
    (ranked,) = rank_summary(run, SUM, size)
    return ranked


@pytest.mark.parametrize(
    ("title", "sizes", "asked", "ranked", "incomplete"),
    [
        ("the largest and the smallest", {8: 6, MIB: 6, GIB: 6}, None, [GIB, 8], ()),
        ("no small one: no latency", {MIB: 6, GIB: 6}, None, [GIB], ()),
        ("one size", {8: 6}, None, [8], ()),
        ("the size that was asked for", {8: 6, MIB: 6, GIB: 6}, MIB, [MIB], ()),
        ("a size that nobody measured", {8: 6}, MIB, [], ()),
        ("a largest size that only two pairs have", {8: 6, MIB: 6, GIB: 2}, None, [MIB, 8], ((GIB, 2),)),
        ("a smallest size that one pair has", {8: 1, 64: 6, GIB: 6}, None, [GIB, 64], ((8, 1),)),
        ("asked for although only two pairs have it", {8: 6, GIB: 2}, GIB, [GIB], ()),
    ],
)
def test_which_sizes_are_ranked(
    title: str, sizes: dict[int, int], asked: int | None, ranked: list[int], incomplete: tuple[tuple[int, int], ...]
) -> None:
    found = only(run_of(gpus(4), sums(sizes)), asked)
    assert [ranking.size_bytes for ranking in found.rankings] == ranked
    assert found.incomplete == incomplete


def test_what_lacks_is_named_with_its_reason() -> None:
    points = sums({GIB: 4})
    points.append(
        Measurement(DataPoint(SUM, (1, 3), GIB), stop=StopReason.FAILED, failure=in_words("hang: no answer within 5 s"))
    )
    run = run_of(gpus(4), points)
    assert [(lack.members, sentences.absence(lack.absence, run)) for lack in only(run).missing] == [
        ((1, 3), "hang: no answer within 5 s"),
        ((2, 3), "not measured"),
    ]
    run.complete = False
    assert only(run).missing[-1].absence.kind is AbsenceKind.NOT_REACHED
