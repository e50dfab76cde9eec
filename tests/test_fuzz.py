"""Arbitrary and damaged input gives a result or the one error that a user can read."""

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.judge.diagnose import judge, not_judged
from collbench.model.errors import RunFileError, UsageError
from collbench.model.run import Run
from collbench.model.units import parse_size, parse_sizes
from collbench.report.text import verdicts
from collbench.runfile import run_file
from tests.judge.checked import h200
from tests.report.pages import text
from tests.runfile.test_run_file import runs

VALID: dict[str, Any] = json.loads(run_file.dumps(h200()))
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-1, 9), max_size=3),
    st.sampled_from(["allreduce", "staged", "h2d-ce", "chase", "host", "NV18", "precision"]),
)


def test_the_strategy_starts_from_a_valid_file() -> None:
    assert run_file.loads(json.dumps(VALID), "x") == h200()


@given(st.one_of(st.text(max_size=30), st.from_regex(r"[0-9.:,KMGTiB ]{0,20}", fullmatch=True)))
def test_any_text_is_sizes_or_a_clear_line(sizes: str) -> None:
    for parse in (parse_size, parse_sizes):
        with contextlib.suppress(UsageError):
            parse(sizes)


@given(st.text(max_size=100))
def test_any_text_is_refused_as_a_run_file(content: str) -> None:
    with pytest.raises(RunFileError, match=r"^some\.json"):
        run_file.loads(content, "some.json")


# A file of 5,000 lines takes 0.05 s to read, and these two say little that fifty examples do not.
@settings(max_examples=25)
@given(st.integers(0, 20_000), st.integers(0, 20_000), st.text(max_size=3))
def test_a_run_file_with_a_piece_cut_out_is_read_or_refused(start: int, end: int, put: str) -> None:
    whole = json.dumps(VALID)
    with contextlib.suppress(RunFileError):
        judge(run_file.loads(whole[:start] + put + whole[end:], "x"))


@settings(max_examples=25)
@given(st.data(), JUNK)
def test_a_run_file_with_a_wrong_value_is_judged_or_refused(data: st.DataObject, junk: object) -> None:
    content = copy.deepcopy(VALID)
    container: Any = content
    while True:
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        key = data.draw(st.sampled_from(keys))
        inner = container[key]
        if not (isinstance(inner, dict | list) and inner) or data.draw(st.integers(0, 4)) == 0:
            container[key] = junk
            break
        container = inner
    with contextlib.suppress(RunFileError):
        _judged(run_file.loads(json.dumps(content), "x"))


@settings(max_examples=8)
@given(runs())
def test_any_valid_run_is_judged(run: Run) -> None:
    _judged(run)


def _judged(run: Run) -> None:
    verdicts_of_run = judge(run)
    not_judged(run)
    assert verdicts.status(run, verdicts_of_run) in (0, 1, 3, 4)
    assert text(verdicts.page(run, verdicts_of_run), wide=60)
    json.loads(verdicts.dumps(run, verdicts_of_run))
