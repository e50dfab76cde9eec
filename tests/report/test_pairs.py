import pytest

from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.report.text.pairs import pairs_page
from tests.builders import gpus, measured, pair_run, run_of
from tests.report.pages import pairs_run, text


def test_a_page_is_the_same_from_any_order_of_measurements() -> None:
    run = pairs_run(2)
    run.measurements.reverse()
    assert text(pairs_page(run)) == text(pairs_page(pairs_run(2)))


def after(page_text: str, heading: str) -> str:
    """Return the page from the line that begins with `heading` on."""
    return page_text[page_text.index(f"\n{heading}") + 1 :]


def table(run: Run, *, verbose: bool) -> list[list[str]]:
    """Return the words of the rows of a page's table of pairs."""
    lines = after("\n" + text(pairs_page(run), verbose=verbose), "pairs by").split("\n")
    return [line.split() for line in lines[2 : next(i for i, line in enumerate(lines) if line.endswith("."))]]


def test_a_hidden_row_between_two_shown_ones_is_shown_instead_of_counted() -> None:
    rates = iter([300.0] * 6 + [200.0] * 4)
    assert [row[0] for row in table(pair_run(5, lambda _a, _b: next(rates)), verbose=False)] == [*"1111112222"]


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
    assert f"\nmachine   box: 2 × {name}; Linux 6.8 x86_64\n" in text(pairs_page(pairs_run(2, name=name)))


def test_a_run_without_pairs_or_with_nothing_is_still_a_page() -> None:
    assert "labels" in text(pairs_page(run_of(gpus(3), [measured(Operation.ALLREDUCE, (0, 1, 2), 300.0)])))
    assert text(pairs_page(run_of(gpus(2), []))).endswith("GPU1  NV18  X     0-63          0\n")


def test_colours_are_for_terminals_alone() -> None:
    run = pairs_run(4)
    assert "48;5;227m" in text(pairs_page(run), terminal=True)
    assert "\x1b" not in text(pairs_page(run))
    assert "48;5;" not in text(pairs_page(run), terminal=True, no_color=True)
