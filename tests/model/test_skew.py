"""How unevenly ranks send: conservation, whole units, the matrix file, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from collbench.cli.timing import parse_skew
from collbench.model.errors import UsageError
from collbench.model.operations import Skew, SkewKind, across, blocks_of, busiest, imbalance, leaving, whole_size


@st.composite
def skews(draw: st.DrawFn) -> tuple[Skew | None, int]:
    """Return a skew and its ranks: uniform, by Zipf's law, or a matrix with many zeros."""
    ranks = draw(st.integers(1, 6))
    kind = draw(st.sampled_from(("uniform", "zipf", "matrix")))
    if kind == "uniform":
        return None, ranks
    if kind == "zipf":
        return Skew(SkewKind.ZIPF, draw(st.floats(0, 40)), draw(st.integers(0, 9))), ranks
    value = st.sampled_from((0, 0, 1, 3, 1000, 2**36)).map(lambda units: 16 * units)
    row = st.lists(value, min_size=ranks, max_size=ranks).map(tuple)
    matrix = tuple(draw(st.lists(row, min_size=ranks, max_size=ranks)))
    assume(any(map(any, matrix)))
    return Skew(SkewKind.MATRIX, matrix=matrix), ranks


@given(skew_and_ranks=skews(), size=st.integers(1, 2**33))
def test_the_busiest_rank_has_the_size_and_no_block_is_cut_within_16_bytes(
    skew_and_ranks: tuple[Skew | None, int], size: int
) -> None:
    skew, ranks = skew_and_ranks
    whole = whole_size(skew, ranks, size)
    assert size - 16 * ranks < whole <= size
    assume(whole)
    blocks = blocks_of(skew, ranks, whole)
    sent, received = [sum(row) for row in blocks], [sum(column) for column in zip(*blocks, strict=True)]
    assert len(blocks) == ranks
    assert {len(row) for row in blocks} == {ranks}
    assert sum(sent) == sum(received)
    assert max(*sent, *received) == busiest(blocks) == whole
    assert all(block >= 0 and block % 16 == 0 for row in blocks for block in row)
    assert whole_size(skew, ranks, whole) <= whole
    assert imbalance(blocks) * (1 + 1e-12) >= 1
    assert imbalance(blocks) <= ranks * (1 + 1e-12)


@given(skew_and_ranks=skews(), size=st.integers(1, 2**33))
def test_what_leaves_some_ranks_enters_the_others(skew_and_ranks: tuple[Skew | None, int], size: int) -> None:
    skew, ranks = skew_and_ranks
    whole = whole_size(skew, ranks, size)
    assume(whole)
    blocks = blocks_of(skew, ranks, whole)
    for border in range(1, ranks):
        some, others = tuple(range(border)), tuple(range(border, ranks))
        assert across(blocks, some) == across(blocks, others) <= leaving(blocks)
    assert all(across(blocks, (rank,)) <= whole for rank in range(ranks))


@given(skew_and_ranks=skews())
def test_a_matrix_is_sent_as_it_stands_at_its_own_size(skew_and_ranks: tuple[Skew | None, int]) -> None:
    skew, ranks = skew_and_ranks
    assume(skew is not None and skew.matrix)
    assert skew is not None
    assert skew.own_bytes is not None
    assert blocks_of(skew, ranks, skew.own_bytes) == skew.matrix


def test_zipf_gives_the_kth_rank_a_kth_of_the_first() -> None:
    blocks = blocks_of(Skew(SkewKind.ZIPF, 1.0, seed=3), 4, whole_size(Skew(SkewKind.ZIPF, 1.0, seed=3), 4, 48 * 2**20))
    columns = sorted((sum(column) for column in zip(*blocks, strict=True)), reverse=True)
    assert [columns[0] / column for column in columns] == pytest.approx([1, 2, 3, 4], rel=1e-4)
    assert len({sum(row) for row in blocks}) == 1  # every rank sends as much
    assert imbalance(blocks) == pytest.approx(4 / (1 + 1 / 2 + 1 / 3 + 1 / 4), rel=1e-4)


def test_the_seed_alone_decides_which_rank_is_popular() -> None:
    matrices = [blocks_of(Skew(SkewKind.ZIPF, 2.0, seed), 8, whole_size(Skew(SkewKind.ZIPF, 2.0, seed), 8, 2**20))
            for seed in (1, 1, 2, 3)]  # fmt: skip
    assert matrices[0] == matrices[1]
    assert len(set(matrices)) > 1


@pytest.mark.parametrize("text", ["uniform", "UNIFORM", "zipf:0"])
def test_uniform_is_no_skew(text: str) -> None:
    assert parse_skew(text) is None
    assert blocks_of(None, 2, 64) == ((32, 32), (32, 32))


def test_the_matrix_file_is_nccl_tests(tmp_path: Path) -> None:
    file = tmp_path / "matrix.txt"
    file.write_text("100\t200 150\n\n 50 1e2 75.9\n0 16 17")
    assert parse_skew(str(file)) == Skew(SkewKind.MATRIX, matrix=((96, 192, 144), (48, 96, 64), (0, 16, 16)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no matrix"),
        ("\n \n", "holds no matrix"),
        ("16 16\n16", "row 2 of 2 has 1 values"),
        ("16 16 16\n16 16 16", "row 1 of 2 has 3 values"),
        ("16 -1\n16 16", "'-1' is not a number of bytes"),
        ("16 nan\n16 16", "'nan' is not a number of bytes"),
        ("16 inf\n16 16", "'inf' is not a number of bytes"),
        ("16 1e30\n16 16", "'1e30' is not a number of bytes"),
        ("16 x\n16 16", "'x' is not a number of bytes"),
        ("15 0\n3 15", "no value reaches 16 bytes"),
    ],
)
def test_a_matrix_that_is_none_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "matrix.txt"
    file.write_text(text)
    with pytest.raises(UsageError, match=message) as failure:
        parse_skew(str(file))
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    "text",
    [
        "zipf",
        "zipf:",
        "zipf:x",
        "zipf:-1",
        "zipf:nan",
        "zipf:inf",
        "zipf:41",
        "zipf:1:",
        "zipf:1:x",
        "zipf:1:-1",
        "uniform:2",
        "",
    ],
)
def test_texts_that_name_no_skew_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--skew"):
        parse_skew(text)


def test_a_matrix_of_other_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="2 × 2, and there are 3 ranks"):
        whole_size(Skew(SkewKind.MATRIX, matrix=((16, 0), (0, 16))), 3, 1024)


@pytest.mark.parametrize(
    "fields",
    [
        {"exponent": -1.0},
        {"exponent": math.nan},
        {"matrix": ((16,),)},
        {"kind": SkewKind.MATRIX},
        {"kind": SkewKind.MATRIX, "matrix": ((16, 16),)},
        {"kind": SkewKind.MATRIX, "matrix": ((8,),)},
        {"kind": SkewKind.MATRIX, "matrix": ((-16,),)},
        {"kind": SkewKind.MATRIX, "matrix": ((0,),)},
    ],
)
def test_what_is_no_skew_cannot_be_made(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="skew"):
        Skew(**({"kind": SkewKind.ZIPF} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 16, 63, 65])
def test_a_size_that_no_blocks_make_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="cannot give"):
        blocks_of(None, 4, size)
