"""Single launches on the text page and on the HTML page."""

from __future__ import annotations

import dataclasses
import itertools
import re

from collbench.model.operations import Operation
from collbench.model.run import Flag, FlagKind, Latency, RankLaunches, Run
from collbench.report.html.content import content
from collbench.report.html.page import render
from collbench.report.text.measured import page
from tests.builders import gpus, measured, run_of
from tests.report.pages import text

_COUNT = 400
_OPERATIONS = (Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER)


def run_with(late_us: float, *, flags: tuple[Flag, ...] = (), common: bool = True) -> Run:
    """Return a run whose second rank comes so late to launches of 8 µs, of which the last one takes ten times that."""
    run = run_of(gpus(2), [measured(Operation.ALLREDUCE, (0, 1), 1.0)], command=("allreduce",))
    late = round(late_us * 1000)
    left = tuple([late + 9_000] * (_COUNT - 1) + [late + 81_000])
    ranks = tuple(RankLaunches((came,) * _COUNT, left, 1_000, 600, 32) for came in (0, late if common else 0))
    run.latencies.append(Latency(run.measurements[0].point, ranks, common, flags=flags))
    return run


def test_the_page_names_percentiles_their_count_and_who_is_late() -> None:
    flag = Flag(FlagKind.THROTTLED, (1,), reason="SW power cap")
    shown = text(page(run_with(50, flags=(flag,))))
    row = next(line.split() for line in shown.splitlines() if "8.00-8.00" in line)

    assert f"{_COUNT} single launches" in shown
    assert row[-8:] == ["8.00", "8.00", "8.00", "80.00", "8.00-8.00", "58.00", "58.00", "130.00"]
    assert "late      GPU1 arrives 50.00 µs later than the others, last in up to 100% of the launches" in shown
    assert "during these launches" in shown
    assert "SW power cap" in shown


def test_the_histogram_has_a_bar_for_the_one_slow_launch() -> None:
    shown = text(page(run_with(0)))
    bars = [line.split() for line in shown.splitlines() if line.endswith("#")]

    assert [(bar[1], len(bar[2])) for bar in bars] == [("399", 40), ("1", 1)]
    assert "no rank arrives significantly later" in shown


def test_hosts_without_a_common_clock_are_not_compared() -> None:
    shown = text(page(run_with(50, common=False)))

    assert "not judged: hosts have no common clock" in shown
    assert "later than the others" not in shown


def test_a_run_without_single_launches_says_nothing_of_them() -> None:
    run = run_of(gpus(2), [measured(Operation.ALLREDUCE, (0, 1), 1.0)], command=("allreduce",))

    assert "single launches" not in text(page(run))
    assert "Tails and stragglers" not in render(content([("a", run)], "0"))


def test_the_html_page_draws_every_launch() -> None:
    drawn = render(content([("a", run_with(50))], "0"))

    bars = re.findall(r"<td class=.number.>(\d+)</td><td><progress max=.40. value=.(\d+).>", drawn)
    assert bars == [("399", "40"), ("1", "1")]
    assert "GPU1 arrives 50.00 µs later than the others" in drawn


def test_a_short_page_shows_a_few_communicators_and_counts_the_rest() -> None:
    run = run_with(0)
    first = run.latencies.pop()
    for operation, devices in itertools.product(_OPERATIONS, ((0, 1), (1, 0))):
        point = dataclasses.replace(first.point, operation=operation, members=devices)
        run.latencies.append(dataclasses.replace(first, point=point))

    assert "and 2 more communicators" in text(page(run), verbose=False)
    assert "more communicators" not in text(page(run))
    assert text(page(run)).count("400 single launches") == 6
