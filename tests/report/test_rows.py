"""The tidy long form: one row a data point, a typed value or nothing in each column."""

from dataclasses import replace

import pytest

from collbench.model.operations import Operation
from collbench.model.run import Latency, RankLaunches
from collbench.report.rows import COLUMNS, Type, rows
from tests.builders import gpus, measured, run_of
from tests.report.hostile import hostile_run
from tests.report.html.runs import recorded

KINDS: dict[Type, type | tuple[type, ...]] = {Type.TEXT: str, Type.WHOLE: int, Type.REAL: float, Type.YES_NO: bool}


def test_every_row_has_every_column_in_its_type_or_nothing() -> None:
    for row in rows(hostile_run()):
        assert list(row) == [column.name for column in COLUMNS]
        for column in COLUMNS:
            value = row[column.name]
            assert value is None or isinstance(value, KINDS[column.type]), column.name
            assert column.type is Type.YES_NO or not isinstance(value, bool)


def test_no_column_is_always_empty() -> None:
    simulated = run_of(gpus(2), [measured(Operation.ALLREDUCE, (0, 1), 1.0)], backend="sim")
    simulated.machine = replace(simulated.machine, fabric="dgx-1v")
    early, late = RankLaunches((0,) * 400, (60_000,) * 400), RankLaunches((50_000,) * 400, (60_000,) * 400)
    simulated.latencies.append(Latency(simulated.measurements[0].point, (early, late)))
    table_rows = [*rows(hostile_run()), *rows(simulated)]
    empty = {column.name for column in COLUMNS if all(row[column.name] is None for row in table_rows)}
    assert empty == set()


def test_the_recorded_run_has_the_figures_of_its_page() -> None:
    """pairs.txt, beside the run, shows GPU0 → GPU3 at 1G 396.1 GB/s, all-reduce of GPU0 and GPU1 327.2.

    It was printed when intervals rested on batches: 325.4-328.8.
    """
    table_rows = rows(recorded())
    assert len(table_rows) == 840
    (copy,) = (row for row in table_rows if (row["operation"], row["source"], row["destination"], row["size_bytes"])
               == ("ce-write", "GPU0", "GPU3", 2**30))  # fmt: skip
    (pair,) = (row for row in table_rows if (row["operation"], row["members"], row["size_bytes"])
               == ("allreduce", "GPU0,GPU1", 2**30))  # fmt: skip
    assert copy["busbw_gbs"] == pytest.approx(396.1, abs=0.05)
    assert (copy["label"], copy["backend"], copy["nccl"], copy["nvls"]) == ("NV18", "cuda", "2.28.9", "off")
    assert [pair[name] for name in ("busbw_gbs", "busbw_low_gbs", "busbw_high_gbs")] == pytest.approx(
        [327.2, 322.1, 328.7], abs=0.05
    )
    assert pair["run"] == "20261121T065941Z-vm-978211"


def test_a_failed_point_has_a_row_with_its_reason_and_no_figure() -> None:
    row = rows(hostile_run())[-1]
    assert row["failure"] == 'no answer for 30 s, "x" | y'
    assert (row["seconds"], row["busbw_gbs"], row["trials"], row["stop"]) == (None, None, 0, "failed")
