from itertools import permutations

from collbench.judge.tiers import Ranking, rank_links, rank_pairs
from collbench.model.operations import Operation, Work
from collbench.model.run import Run
from collbench.report.matrix import heat_map, render_bandwidths
from tests.builders import GIB, gpus, measured, pair_run, run_of
from tests.report.pages import text

RATES = {(0, 1): 400.0, (0, 2): 384.0, (0, 3): 364.0, (1, 2): 320.0, (1, 3): 240.0, (2, 3): 40.0}


def ranked(run: Run) -> Ranking:
    ranking = rank_pairs(run, Operation.ALLREDUCE, GIB)
    assert ranking is not None
    return ranking


def shown(run: Run, *, terminal: bool = False, no_color: bool = False) -> str:
    return text([heat_map(run, ranked(run))], terminal=terminal, no_color=no_color)


def test_in_a_terminal_the_background_darkens_with_the_share_of_the_best() -> None:
    pieces = shown(pair_run(4, lambda a, b: RATES[a, b]), terminal=True).split("48;5;")[1:]
    shade = {piece.split("m", 1)[1].split("\x1b")[0].strip(): int(piece.split("m")[0]) for piece in pieces}
    # 100, 96, 91, 80, 60 and 10% of 400 GB/s, on viridis' way from yellow to violet.
    assert [shade[f"{rate:.1f}"] for rate in RATES.values()] == [227, 149, 77, 36, 31, 54]


def test_of_times_the_least_is_the_brightest() -> None:
    points = [measured(Operation.CE_WRITE, link, 0.001 * (1 + sum(link)), size=8) for link in permutations(range(3), 2)]
    run = run_of(gpus(3), points)
    ranking = rank_links(run, Work(Operation.CE_WRITE), 8)
    assert ranking is not None
    lines = text([heat_map(run, ranking)], terminal=True).split("\n")
    assert "48;5;227m   2.00" in lines[2]  # from GPU1 to GPU2 8 B at 0.004 GB/s take 2 µs, the best
    assert "48;5;31m   4.00" in lines[1]  # and from GPU0 to GPU1 at 0.002 GB/s twice that


def test_figures_that_are_nearly_the_same_have_one_shade_and_others_have_not() -> None:
    """Links of one and of two NVLinks and the way through the host: 24.0 to 24.4 is at half of 48.6, on both sides."""
    rates = {(0, 1): 48.6, (0, 2): 24.4, (0, 3): 24.0, (1, 2): 9.5, (1, 3): 24.3, (2, 3): 48.1}
    run = pair_run(4, lambda a, b: rates[a, b])
    for matrix in ([heat_map(run, ranked(run))], [*render_bandwidths(run, Operation.ALLREDUCE, GIB)]):
        pieces = text(matrix, terminal=True).split("\x1b[")
        shade = {piece.split("m", 1)[1].strip(): piece.split("m")[0] for piece in pieces if "48;5;" in piece}
        assert shade["24.4"] == shade["24.3"] == shade["24.0"]
        assert shade["48.6"] == shade["48.1"]
        assert len({shade["48.6"], shade["24.3"], shade["9.50"]}) == 3
