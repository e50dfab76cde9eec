import pytest

from collbench.judge.diagnose import Diagnosis
from collbench.report.text.ranking import pairs_page
from tests.report.pages import pairs_run, text


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Rich's markup", "[bold red]GPU[/bold red]"),
        ("a closing tag alone", "GPU [/x]"),
        ("an emoji code", "GPU :smile:"),
        ("no name", ""),
        ("another script", "显卡 ｘ"),
        ("very long", "N" * 300),
    ],
)
def test_names_are_printed_as_they_are(title: str, name: str) -> None:
    assert f"\nmachine   box: 2 × {name}; Linux 6.8 x86_64\n" in text(pairs_page(Diagnosis(pairs_run(2, name=name))))


def test_colours_are_for_terminals_alone() -> None:
    run = pairs_run(4)
    assert "48;5;227m" in text(pairs_page(Diagnosis(run)), terminal=True)
    assert "\x1b" not in text(pairs_page(Diagnosis(run)))
    assert "48;5;" not in text(pairs_page(Diagnosis(run)), terminal=True, no_color=True)


@pytest.mark.parametrize(
    ("title", "fast", "said"),
    [
        ("two tie", {(0, 1), (2, 3)}, "reaches 200 GB/s; ties decided by the lowest PCI bus ids\n"),
        ("one is best", {(2, 3)}, "reaches 200 GB/s\n"),
    ],
)
def test_what_decided_a_tie_is_said(title: str, fast: set[tuple[int, int]], said: str) -> None:
    run = pairs_run(4, lambda a, b: 300.0 if (a, b) in fast else 200.0)
    first, *_ = text(pairs_page(Diagnosis(run))).partition("best 4")
    assert said in first.replace("\n          ", " "), title
