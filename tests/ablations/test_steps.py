"""Step times in a script's output: the documented format, Hugging Face's, a user's pattern, and arbitrary bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.ablations.child import Reader, compile_pattern, last_lines, step_seconds, train_runtime, usual_rounding
from collbench.model.errors import UsageError


@pytest.mark.parametrize(
    ("case", "line", "seconds"),
    [
        ("gpt2_ddp.py's line", "step 12 step_time=22.41ms loss=5.312", 0.02241),
        ("seconds", "step_time=0.0224s", 0.0224),
        ("words with blanks", "Step time: 22.4 ms", 0.0224),
        ("the micro sign", "step_time=870µs", 0.00087),
        ("a power of ten", "step_time=2.5e-2s", 0.025),
        ("coloured", "step_time=\x1b[1;36m22.41\x1b[0mms", 0.02241),
        ("the first of two", "step_time=22ms (step time: 25 ms with logging)", 0.022),
    ],
)
def test_a_step_time_is_read(case: str, line: str, seconds: float) -> None:
    reader = Reader()
    reader.feed(line.encode() + b"\n")
    assert reader.steps == [pytest.approx(seconds)], case


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("no unit, which could be anything", "step_time=22.41"),
        ("an average over steps", "avg_step_time=22.41ms"),
        ("a unit that goes on", "step_time=3 samples"),
        ("zero", "step_time=0.00ms"),
        ("longer than anybody trains", "step_time=1e99s"),
        ("no number", "step_time=nan s"),
        ("the parameter of a command", "--step_time ms"),
    ],
)
def test_other_lines_are_not(case: str, line: str) -> None:
    assert step_seconds(line) is None, case


@pytest.mark.parametrize(
    ("case", "line", "seconds"),
    [
        # As transformers 4 and 5 print it.
        ("version 4", "{'train_runtime': 101.2, 'train_samples_per_second': 79.0, 'epoch': 1.0}", 101.2),
        ("version 5", "{'train_runtime': '101.2', 'train_samples_per_second': '79.0', 'epoch': '1'}", 101.2),
        ("after a progress bar", "100%|████| 10/10 [00:05<00:00]{'train_runtime': 5.4}", 5.4),
        ("of one step, by a fork", "{'train_step_runtime': 0.6309}", None),
        ("of the evaluation", "{'eval_runtime': 3.0}", None),
    ],
)
def test_hugging_faces_train_runtime(case: str, line: str, seconds: float | None) -> None:
    assert train_runtime(line) == seconds, case


@pytest.mark.parametrize(
    ("case", "pattern", "line", "seconds"),
    [
        ("milliseconds", r"took (?P<ms>[0-9.]+)", "iter 3 took 18.5 of all", 0.0185),
        ("whichever group matched", r"(?P<s>\d+) sec|(?P<ms>\d+) milli", "40 milli", 0.04),
        ("no number in the group", r"took (?P<ms>\S+)", "took long", None),
        ("a number that is none", r"took (?P<ms>\S+)", "took nan", None),
        ("the documented words count no more", r"took (?P<ms>\S+)", "step_time=3ms", None),
    ],
)
def test_a_users_pattern(case: str, pattern: str, line: str, seconds: float | None) -> None:
    found_s = step_seconds(line, compile_pattern(pattern))
    assert found_s == (None if seconds is None else pytest.approx(seconds)), case


@pytest.mark.parametrize(
    ("case", "pattern", "reported"),
    [
        ("unusable", "took (", "is not a regular expression"),
        ("no group", r"took \d+ ms", "no group named s, ms or us"),
        ("a number too large to repeat", "a{99999999999999999999}", "is not a regular expression"),
    ],
)
def test_a_pattern_that_cannot_work_is_one_line(case: str, pattern: str, reported: str) -> None:
    with pytest.raises(UsageError, match=reported) as error:
        compile_pattern(pattern)
    assert "\n" not in str(error.value), case


def test_a_progress_bars_carriage_returns_end_lines_and_the_last_runtime_counts() -> None:
    reader = Reader()
    reader.feed(b"step_time=1ms\rstep_time=2ms\r\nstep_time=3ms\n{'train_runtime': 1.0}\n{'train_runtime': 2.0}")
    reader.close()
    assert reader.steps == [0.001, 0.002, 0.003]
    assert reader.train_runtime == 2.0


PIECES = st.sampled_from([b"step_time=", b"22.41ms", b"\n", b"\r", b"{'train_runtime': 3.5}", b"\xff\x00", b"x" * 9000])


@given(st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=30), st.integers(1, 5000))
def test_any_bytes_are_read_and_where_they_are_cut_changes_nothing(pieces: list[bytes], length: int) -> None:
    data = b"".join(pieces)
    whole, cut = Reader(), Reader()
    whole.feed(data)
    for start in range(0, len(data), length):
        cut.feed(data[start : start + length])
    whole.close()
    cut.close()
    assert (cut.steps, cut.train_runtime, list(cut.tail)) == (whole.steps, whole.train_runtime, list(whole.tail))


@given(st.text(max_size=200))
def test_any_line_and_any_pattern_end_in_a_time_or_none_or_one_line(text: str) -> None:
    found_s = step_seconds(text)
    assert found_s is None or 1e-9 <= found_s <= 1e7
    try:
        pattern = compile_pattern(text)
    except UsageError:
        return
    step_seconds(text, pattern)


def test_of_a_long_report_the_traceback_comes_first() -> None:
    # The shape of what torchrun prints when a rank fails: the script's traceback, then its own report.
    lines = [f"noise {number}" for number in range(100)]
    lines += ["[rank0]: Traceback (most recent call last):", "[rank0]: ValueError: no data"]
    lines += [f"torchrun {number}" for number in range(80)]
    reported = last_lines(lines)
    assert reported[:2] == lines[100:102]
    assert len(reported) == 60
    assert last_lines(lines[:100]) == lines[70:100]


@pytest.mark.parametrize(
    ("line", "pattern", "half"),
    [
        ("step_time=20ms", None, 0.5e-3),
        ("step_time=20.0ms", None, 0.05e-3),
        ("step_time=20.125 ms", None, 0.5e-6),
        ("step time: 2.5e-2s", None, 0.5e-3),
        ("step_time=20000µs", None, 0.5e-6),
        ("took 1.5 s", r"took (?P<s>[0-9.]+)", 0.05),
    ],
)
def test_a_printed_time_is_known_to_half_its_last_digit(line: str, pattern: str | None, half: float) -> None:
    found = step_seconds(line, None if pattern is None else compile_pattern(pattern))
    assert found is not None
    assert found.rounding == pytest.approx(half)


@pytest.mark.parametrize(
    ("title", "steps", "half"),
    [
        ("none", [], 0.0),
        ("zeros at the end are left out", ["20.13", "20.2", "20.14", "20", "20.17"], 0.005e-3),
        ("three digits", ["9.97", "10.1", "10.2", "10.3"], 0.05e-3),
    ],
)
def test_the_usual_last_digit_counts(title: str, steps: list[str], half: float) -> None:
    reader = Reader()
    reader.feed("".join(f"step_time={step}ms\n" for step in steps).encode())
    reader.close()
    assert usual_rounding(reader.steps) == pytest.approx(half)
