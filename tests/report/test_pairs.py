import pytest

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
    assert f"\nmachine   box: 2 × {name}; Linux 6.8 x86_64\n" in text(pairs_page(pairs_run(2, name=name)))


def test_colours_are_for_terminals_alone() -> None:
    run = pairs_run(4)
    assert "48;5;227m" in text(pairs_page(run), terminal=True)
    assert "\x1b" not in text(pairs_page(run))
    assert "48;5;" not in text(pairs_page(run), terminal=True, no_color=True)
