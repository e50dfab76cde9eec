"""Sizes, types, figures and lists in words."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.model.errors import UsageError
from collbench.model.units import (
    DTYPE_BYTES,
    abridged,
    amount,
    capped,
    columns,
    counted,
    figure,
    fixed,
    format_approximate_size,
    format_message_size,
    format_size,
    parse_budget,
    parse_dtype,
    parse_precision,
    parse_size,
    parse_sizes,
    sentence,
    size_span,
    span,
    whole_elements,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8),
        ("64K", 65536),
        ("64k", 65536),
        ("1MB", 1048576),
        ("2GiB", 2147483648),
        ("1T", 1099511627776),
        (" 4K ", 4096),
    ],
)
def test_a_size_is_binary(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1M", [1048576]),
        ("8:100", [8, 16, 32, 64]),  # the end need not be met
        ("1K:1M:32", [1024, 32768, 1048576]),
        ("5:5", [5]),
        ("1M,8,8,1K", [8, 1024, 1048576]),
        ("8:32,24", [8, 16, 24, 32]),
    ],
)
def test_sizes_ascend_without_repeats(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == tuple(sizes)


@pytest.mark.parametrize(
    ("title", "text", "message"),
    [
        ("backwards", "1G:1M", "starts above its end: write 1M:1G"),
        ("zero", "0", "is zero"),
        ("unknown unit", "1X", "'1X' is not a number of bytes"),
        ("a fraction", "1.5M", "'1.5M' is not"),
        ("empty", "", "--sizes is empty"),
        ("an empty list item", "1K,,2K", "'' is not"),
        ("factor one", "1K:1M:1", "factor 1 never reaches"),
        ("factor negative", "1K:1M:-2", "factor -2 never reaches"),
        ("factor a fraction", "1K:1M:1.5", "factor '1.5' is not a whole number"),
        ("four parts", "1:2:3:4", "has 4 parts"),
        ("a digit that is no number", "1K:1M:²", "factor '²' is not"),
    ],
)
def test_a_bad_size_gets_one_clear_line(title: str, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sizes(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("size", "text"),
    [(8, "8 B"), (1000, "1000 B"), (1024, "1K"), (1536, "1536 B"), (1048576, "1M"), (3221225472, "3G"), (2**40, "1T")],
)
def test_a_size_prints_without_loss(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(min_value=1, max_value=2**50))
def test_a_printed_size_reads_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(1, 2**20), st.integers(0, 2**40), st.integers(2, 1000))
def test_a_range_multiplies_until_its_end_is_passed(low: int, more: int, factor: int) -> None:
    sizes = parse_sizes(f"{low}:{low + more}:{factor}")
    assert sizes[0] == low
    assert sizes[-1] <= low + more < sizes[-1] * factor
    assert all(b == a * factor for a, b in pairwise(sizes))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (25 * 2**20, "25M"),
        (27_687 * 2**10, "27.0M"),
        (78_768_128, "75.1M"),
        (1536, "1.50K"),
        (2**20 - 1, "1024K"),
        (10 * 2**20 - 1, "10.0M"),
        (100 * 2**20 - 1, "100M"),
        (3 * 2**30, "3G"),
    ],
)
def test_a_message_of_a_job_has_three_digits_unless_fewer_are_exact(size: int, text: str) -> None:
    assert format_message_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"), [(149_461_925_069, "139.2 GiB"), (512 * 2**20, "512 MiB"), (999, "999 B"), (2**40, "1 TiB")]
)
def test_free_memory_reads_as_people_say_it(size: int, text: str) -> None:
    assert format_approximate_size(size) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1087.6, 3, "1088"),  # not 1.09e+03
        (89.04, 3, "89"),
        (44.6, 4, "44.6"),
        (999.6, 3, "1000"),
        (123456.7, 4, "123457"),
        (0.0000123, 4, "0.0000123"),
        (-2175.0, 3, "-2175"),
        (0.0, 3, "0"),
    ],
)
def test_a_number_has_no_exponent_and_loses_no_integer_digit(value: float, digits: int, text: str) -> None:
    assert fixed(value, digits) == text


@given(st.floats(-1e15, 1e15), st.integers(1, 8))
def test_a_figure_in_a_sentence_is_near_its_value(value: float, digits: int) -> None:
    written = fixed(value, digits)
    assert "e" not in written
    assert float(written) == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits), abs=0.0)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0036, "0.0036"), (0.0, "0.00"), (8.53, "8.53"), (9.96, "10.0"), (1087.6, "1087.6")]
)
def test_a_figure_in_a_table_keeps_the_digits_of_small_ones(value: float, text: str) -> None:
    assert figure(value) == text


@pytest.mark.parametrize(
    ("title", "written", "text"),
    [
        ("a span", span([1.5, 2.0, 1.0], str, "–"), "1.0–2.0"),
        ("ends that print alike are one", span([1.04, 1.01], "{:.1f}".format), "1.0"),
        ("sizes in any order", size_span((2**30, 8, 2**20)), "8 B to 1G"),
        ("one", amount(1, "trial"), "1 trial"),
        ("none are many", amount(0, "trial"), "0 trials"),
        ("each name once, in the order met", counted(("B", "A", "B")), "2 × B, 1 × A"),
        ("as many as there is room for", abridged(("a", "b"), 2), "a, b"),
        ("more", abridged(("a", "b", "c"), 1, "; "), "a and 2 more"),
        ("as many lines as there is room for", capped(["a", "b"], 2, "and {} more"), ["a", "b"]),
        ("more lines", capped(["a", "b", "c"], 1, "and {} more"), ["a", "and 2 more"]),
        ("a clause as a sentence", sentence("all tie"), "All tie."),
        ("columns", columns([("a", "", "bc"), ("abc", "", "")]), ["a    bc", "abc"]),
    ],
)
def test_lists_in_sentences(title: str, written: object, text: object) -> None:
    assert written == text, title


@pytest.mark.parametrize(
    ("text", "ratio"), [("1%", 0.01), ("0.5%", 0.005), ("0.01", 0.01), (".02", 0.02), (" 3% ", 0.03), ("50.%", 0.5)]
)
def test_precisions(text: str, ratio: float) -> None:
    assert parse_precision(text) == pytest.approx(ratio)


@pytest.mark.parametrize("text", ["0", "0%", "100%"])
def test_the_ends_are_no_precisions(text: str) -> None:
    with pytest.raises(UsageError, match=f"--precision {text} is not above 0 and below 100%: write 1%"):
        parse_precision(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("2min", 120), ("1.5s", 1.5), ("0.25min", 15), (".5s", 0.5)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("float", "float32"),
        ("double", "float64"),
        ("bf16", "bfloat16"),
        ("FP16", "float16"),
        ("fp8_e4m3", "float8_e4m3fn"),  # as nccl-tests has it
        ("f8e5m2", "float8_e5m2"),
    ],
)
def test_the_names_that_people_type(text: str, name: str) -> None:
    assert parse_dtype(text) == name


@pytest.mark.parametrize("text", ["", "float8", "int", "f32", "float32 "])
def test_an_unknown_dtype_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(UsageError, match=r"unknown: choose from int8, .*bfloat16") as caught:
        parse_dtype(text)
    assert f"'{text}'" in str(caught.value)


@pytest.mark.parametrize("name", DTYPE_BYTES)
def test_names_and_widths_are_torchs(name: str) -> None:
    import torch  # here: every process of the suite collects all tests

    assert DTYPE_BYTES[name] == getattr(torch, name).itemsize


@pytest.mark.parametrize(
    ("size", "dtype", "whole"),
    [(8, "float32", 8), (7, "float32", 4), (3, "float32", 0), (9, "float64", 8), (5, "int8", 5)],
)
def test_sizes_round_down_to_whole_elements(size: int, dtype: str, whole: int) -> None:
    assert whole_elements(size, dtype) == whole


@given(st.integers(0, 2**40), st.sampled_from(sorted(DTYPE_BYTES)))
def test_rounding_loses_less_than_one_element(size: int, dtype: str) -> None:
    whole = whole_elements(size, dtype)
    assert whole % DTYPE_BYTES[dtype] == 0
    assert 0 <= size - whole < DTYPE_BYTES[dtype]
