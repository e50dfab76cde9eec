"""The page of `collbench ablate`: which sentence a ratio allows."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from collbench.ablations import ablation as ablations
from collbench.ablations.ablation import Ablation, ArmsResult, GpuResult, Ratio, StepSpread, format_seconds
from collbench.ablations.page import page, verdict
from tests.ablations.made import ablation
from tests.report.pages import shows, text

ROOT = Path(__file__).parents[2]


def judged(
    low: float,
    middle: float,
    high: float,
    names: tuple[str, str] | None = None,
    *,
    lacking: tuple[str, ...] = ("p2p",),
    **fields: object,
) -> Ablation:
    measured_ablation = ablation([1.0, 1.0], [1.0, 1.0], names, lacking)
    assert measured_ablation.result is not None
    measured_ablation.result = ArmsResult(measured_ablation.result.arms, Ratio(middle, low, high))
    return dataclasses.replace(measured_ablation, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "ratio", "sentence"),
    [
        ("longer", (1.28, 1.30, 1.32), "without p2p a step of this job takes 30.0% longer (95% interval 28.0–32.0%)"),
        (
            "a little longer, for certain",
            (1.001, 1.003, 1.005),
            "without p2p a step of this job takes 0.30% longer (95% interval 0.10–0.50%)",
        ),
        ("shorter", (0.94, 0.95, 0.96), "without p2p a step of this job takes 5.0% less (95% interval 4.0–6.0%)"),
        ("alike", (0.988, 1.001, 1.014), "no difference beyond ±1.4%: without p2p a step of this job takes as long"),
        ("exactly alike", (1, 1, 1), "no difference beyond ±0.00%: without p2p a step of this job takes as long"),
        (
            "unknown",
            (0.5, 1.2, 2.9),
            "undecided: without p2p a step of this job takes between 50.0% less and 190% more (95%)",
        ),
    ],
)
def test_a_sentence_says_whether_a_difference_is_shown(
    case: str, ratio: tuple[float, float, float], sentence: str
) -> None:
    assert verdict(judged(*ratio)) == sentence, case


def test_the_verdict_goes_by_what_an_arm_lacks_and_not_by_what_it_is_called() -> None:
    sentence = verdict(judged(1.28, 1.30, 1.32, ("mine", "yours"), lacking=("p2p",)))
    assert sentence.startswith("without p2p a step of this job takes 30.0% longer (")
    named = verdict(judged(1.28, 1.30, 1.32, ("mine", "without p2p"), lacking=()))
    assert " longer than mine (" in named


def test_the_page_of_the_committed_file_is_the_one_that_the_document_shows() -> None:
    document = (ROOT / "docs" / "ablate.md").read_text(encoding="utf-8")
    printed = text(page(ablations.load(ROOT / "tests" / "data" / "ablation" / "h200x2-gpt2-ddp.json")))
    (sample,) = re.findall(r"^    without p2p a step .*\n(?:    .*\n)+", document, re.MULTILINE)
    assert shows(sample, printed)


def test_an_unfinished_one_says_how_far_it_came() -> None:
    measured_ablation = ablation([0.0224, 0.0225], [0.0321, 0.0323])
    measured_ablation.arms[1].runs.pop()
    measured_ablation.result = None
    page_text = text(page(measured_ablation))
    assert page_text.startswith("unfinished: 3 of 4 runs, too few to compare\n")
    assert rows(page_text) == [["with p2p", "2", "-", "-"], ["without p2p", "1", "-", "-"]]


def rows(page_text: str) -> list[list[str]]:
    """Return the first four cells of the table's rows."""
    lines = page_text.split("\n\n")[2].splitlines()[1:3]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()][:4] for line in lines]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(5.7e-6, "5.700 µs"), (0.02241, "22.41 ms"), (0.9999, "999.9 ms"), (101.23, "101.2 s"), (4321.9, "4322 s")],
)
def test_times_have_four_digits_in_a_unit_that_suits_them(seconds: float, expected: str) -> None:
    assert format_seconds(seconds) == expected


def with_gpu(gpu: tuple[float, float], spread: float, within: float | None, needed: int | None) -> str:
    measured_ablation = judged(0.8, 1.2, 1.8)
    assert measured_ablation.result is not None
    first, second = (Ratio(middle, middle - 0.01, middle + 0.01) for middle in gpu)
    arms = measured_ablation.result.arms
    own = GpuResult(arms, Ratio(1.1, 1.09, 1.11), (first, second))
    measured_ablation.result = dataclasses.replace(
        measured_ablation.result, gpu=own, spread=StepSpread(spread, within), needed=needed
    )
    return text(page(measured_ablation))


def test_the_page_blames_the_host_of_one_arm_or_of_none() -> None:
    shown = " ".join(with_gpu((0.75, 0.99), 0.05, 0.04, None).split())
    assert "the host bounds a step with p2p: with less host work, the ratio" in shown
    assert "±3.0% would need more than 10,000 repeats" in shown
    assert "the host bounds" not in with_gpu((0.97, 0.99), 0.05, None, 20)
    assert "more steps in a run would help" in " ".join(with_gpu((0.97, 0.99), 0.05, 0.04, 20).split())
