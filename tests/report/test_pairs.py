from dataclasses import replace
from itertools import combinations

import pytest

from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.report.text.layout import Table
from collbench.report.text.pairs import pairs_page
from tests.builders import gpus, measured, pair_run, paths, run_of
from tests.report.pages import pairs_run, text


def test_a_page_is_the_same_from_any_order_of_measurements() -> None:
    run = pairs_run(2)
    run.measurements.reverse()
    assert text(pairs_page(run)) == text(pairs_page(pairs_run(2)))


def after(page_text: str, heading: str) -> str:
    """Return the page from the line that begins with `heading` on."""
    return page_text[page_text.index(f"\n{heading}") + 1 :]


def test_what_too_few_trials_show_is_called_undecided() -> None:
    shown = text(pairs_page(pair_run(3, lambda a, b: 240.0 if (a, b) == (1, 2) else 300.0, trials=2)))
    assert "1     GPU1-GPU2  NV18       240.0         -  undecided\n" in shown
    assert "No pair differs significantly: the worst looks 20.0% slower than the best.\n" in shown
    assert "All pairs tie" not in shown


def table(run: Run, *, verbose: bool) -> list[list[str]]:
    """Return the words of the rows of a page's table of pairs."""
    lines = after("\n" + text(pairs_page(run), verbose=verbose), "pairs by").split("\n")
    return [line.split() for line in lines[2 : next(i for i, line in enumerate(lines) if line.endswith("."))]]


def test_of_many_pairs_the_table_shows_both_ends_and_a_row_of_each_tier() -> None:
    order = list(combinations(range(16), 2))
    rates = [300.0 if pair < 40 else 200.0 if pair < 90 else 150.0 if pair == 90 else 100.0 for pair in range(120)]
    run = pair_run(16, lambda a, b: rates[order.index((a, b))])
    rows = table(run, verbose=True)
    assert [row[0] for row in rows] == [*["1"] * 16, "…", "2", "…", "3", "4", "…", *["4"] * 8]
    assert [row[1:3] for row in rows if row[0] == "…"] == [["24", "more"], ["49", "more"], ["20", "more"]]
    assert [row[3] for row in rows if row[0] == "3"] == ["150.0"]
    short = table(run, verbose=False)
    assert [row[0] for row in short] == [*["1"] * 5, "…", "2", "…", "3", "4", "…", *["4"] * 2]
    assert sum(int(row[1]) for row in short if row[0] == "…") + sum(row[0] != "…" for row in short) == 120


def test_of_more_tiers_than_rows_the_table_counts_those_that_it_leaves_out() -> None:
    order = list(combinations(range(16), 2))
    rows = table(pair_run(16, lambda a, b: 300.0 * 0.9 ** order.index((a, b))), verbose=False)
    assert len(rows) == 16
    assert rows[13] == ["…", "105", "more", "of", "105", "tiers"]
    assert [rows[0][1], rows[-1][1]] == ["GPU0-GPU1", "GPU14-GPU15"]


def test_a_hidden_row_between_two_shown_ones_is_shown_instead_of_counted() -> None:
    rates = iter([300.0] * 6 + [200.0] * 4)
    assert [row[0] for row in table(pair_run(5, lambda _a, _b: next(rates)), verbose=False)] == [*"1111112222"]


def test_a_host_run_says_so_first_and_where_its_labels_come_from() -> None:
    run = pair_run(2, lambda a, b: 1.5, paths(2, "NODE"), operation=Operation.CPU_WRITE)
    run.backend = "host"
    run.devices = tuple(replace(one, uuid=f"CPU-{one.index}", name="AMD EPYC") for one in run.devices)
    lines = text(pairs_page(run)).split("\n")
    assert lines[0] == "backend   host: memory copies between CPU cores and gloo collectives, no GPU"
    assert "labels (from NUMA nodes)" in lines
    assert "best 2   CPU0, CPU1: all 2 devices" in lines


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


def test_more_devices_than_can_be_searched_still_get_a_page() -> None:
    shown = text(pairs_page(pair_run(17, lambda a, b: 300.0 if a else 100.0)))
    assert "found by a heuristic search\n" in shown


def test_colours_are_for_terminals_alone() -> None:
    run = pairs_run(4)
    assert "48;5;227m" in text(pairs_page(run), terminal=True)
    assert "\x1b" not in text(pairs_page(run))
    assert "48;5;" not in text(pairs_page(run), terminal=True, no_color=True)


@pytest.mark.parametrize("count", [2, 8])
def test_all_but_the_table_and_the_recommendations_fit_80_columns(count: int) -> None:
    blocks = [
        block
        for block in pairs_page(pairs_run(count, lambda a, b: 300.0 - a))
        if not isinstance(getattr(block, "part", block), Table)
    ]
    lines = text(blocks).split("\n")
    assert [line for line in lines if len(line) > 80 and not line.startswith(("best", "rates"))] == []
