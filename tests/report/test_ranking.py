"""The pages that rank links and pairs."""

from itertools import permutations

import pytest

from collbench.judge.diagnose import Diagnosis
from collbench.judge.summary import rank_summary
from collbench.model.operations import Operation
from collbench.report.ranking import page, pairs_page
from tests.builders import GIB
from tests.report.html.runs import recorded, recorded_seconds
from tests.report.pages import pairs_run, text

MIB = 2**20


@pytest.mark.parametrize(
    ("operation", "size", "unit"),
    [(Operation.CE_WRITE, GIB, "GB/s"), (Operation.ALLREDUCE, 64 * MIB, "GB/s"), (Operation.BROADCAST, 8, "µs")],
)
def test_every_point_of_a_map_is_the_run_files(operation: Operation, size: int, unit: str) -> None:
    run = recorded()
    drawn = text(page(Diagnosis(run), rank_summary(run, operation, size)))
    assert f", {unit}\n" in drawn
    lines = drawn[drawn.index("\n       GPU0   GPU1") :].split("\n")[2:6]
    table = {cells[0]: cells[1:] for cells in map(str.split, lines)}
    for src, dst in permutations(range(4), 2):
        devices = sorted((src, dst)) if operation.is_collective else [src, dst]
        seconds = recorded_seconds(operation.value, devices, size)
        wanted = seconds * 1e6 if unit == "µs" else size / seconds / 1e9  # a pair's busbw is its algbw
        assert float(table[f"GPU{src}"][dst]) == pytest.approx(wanted, abs=0.051)


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
