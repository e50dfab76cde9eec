"""Arbitrary and damaged input gives a result or the one error that a user can read."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.judge.diagnose import Diagnosis
from collbench.model.errors import RunFileError, UsageError
from collbench.model.run import Run
from collbench.model.units import parse_size, parse_sizes
from collbench.report import verdicts
from collbench.runfile import run_file
from tests.report.pages import text
from tests.runfile.test_run_file import values


@given(st.one_of(st.text(max_size=30), st.from_regex(r"[0-9.:,KMGTiB ]{0,20}", fullmatch=True)))
def test_any_text_is_sizes_or_a_clear_line(sizes: str) -> None:
    for parse in (parse_size, parse_sizes):
        with contextlib.suppress(UsageError):
            parse(sizes)


@given(st.text(max_size=100))
def test_any_text_is_refused_as_a_run_file(content: str) -> None:
    with pytest.raises(RunFileError, match=r"^some\.json"):
        run_file.loads(content, "some.json")


@settings(max_examples=8)
@given(values(Run))
def test_any_valid_run_is_judged(run: Run) -> None:
    diagnosis = Diagnosis(run)
    assert diagnosis.status in (0, 1, 3, 4)
    assert text(verdicts.page(diagnosis), wide=60)
    json.loads(verdicts.dumps(diagnosis))
