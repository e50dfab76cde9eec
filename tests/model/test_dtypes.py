import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.model.errors import UsageError
from collbench.model.units import DTYPE_BYTES, parse_dtype, whole_elements


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("float", "float32"),
        ("half", "float16"),
        ("double", "float64"),
        ("bf16", "bfloat16"),
        ("FP16", "float16"),
        ("Float32", "float32"),
        ("uint8", "uint8"),
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
