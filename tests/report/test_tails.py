"""Single launches on the text page and on the HTML page."""

from __future__ import annotations

from collbench.model.operations import Operation
from collbench.model.run import Flag, Latency, RankLaunches, Run
from collbench.report.html.content import content
from collbench.report.html.page import render
from tests.builders import gpus, measured, run_of

_COUNT = 400


def run_with(late_us: float, *, flags: tuple[Flag, ...] = (), common: bool = True) -> Run:
    """Return a run whose second rank comes so late to launches of 8 µs, of which the last one takes ten times that."""
    run = run_of(gpus(2), [measured(Operation.ALLREDUCE, (0, 1), 1.0)], command=("allreduce",))
    late = round(late_us * 1000)
    left = tuple([late + 9_000] * (_COUNT - 1) + [late + 81_000])
    ranks = tuple(RankLaunches((came,) * _COUNT, left, 1_000, 600, 32) for came in (0, late if common else 0))
    run.latencies.append(Latency(run.measurements[0].point, ranks, common, flags=flags))
    return run


def test_the_html_page_has_each_size_and_who_is_late() -> None:
    drawn = render(content([("a", run_with(50))], "0"))

    assert '<th scope="row">1G</th><td class="number">8.00</td>' in drawn
    assert "GPU1 arrives 50.00 µs later than the others" in drawn
