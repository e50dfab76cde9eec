from dataclasses import replace

import pytest

from collbench.model.operations import COLLECTIVES, Operation, Variant
from collbench.model.run import Chosen, DataPoint, Measurement, Run, StopReason
from collbench.report.text.collectives import collectives_page
from collbench.report.text.measured import page
from tests.builders import GIB, gpus, in_words, left_out, measured, run_of, shared, throttled
from tests.report.pages import text

MIB = 2**20
FOUR = (0, 1, 2, 3)


def at(size: int, microseconds: float, launch: float | None = None, trials: int = 5) -> Measurement:
    """Return an all-reduce over four GPUs at the time that nccl-tests printed (tests/data/h200x4)."""
    gbs = size / microseconds / 1e3
    return measured(Operation.ALLREDUCE, FOUR, gbs, size, trials, None if launch is None else launch * 1e-6)


def after_header(run: Run) -> str:
    return text(page(run)).split("\n\n", 1)[1]


def test_without_a_launch_loop_or_enough_batches_a_column_is_left_out() -> None:
    shown = after_header(run_of(gpus(4), [at(MIB, 19.06, trials=2)], command=("allreduce",)))
    assert "launch" not in shown
    assert rows(shown) == [
        ["size", "count", "time", "µs", "algbw", "busbw", "GB/s", "wrong"],
        ["1M", "262144", "19.06", "55.01", "82.52", "0"],
    ]


def rows(shown: str) -> list[list[str]]:
    """Return the words of the first table's lines, its head first."""
    lines = shown.split("\n")[1:]
    return [
        line.replace(" B ", "B ").split()
        for line in lines[: next(i for i, line in enumerate(lines) if line.startswith("time:"))]
    ]


# Words as nccl-tests' doc/PERFORMANCE.md has the factors; counts as its GetCollByteCount has them for 1 MiB of float32
# on four ranks.
@pytest.mark.parametrize(
    ("operation", "factor", "busbw", "count", "title"),
    [
        (Operation.ALLREDUCE, "2(n-1)/n", "300.00", "262144", "float32, sum"),
        (Operation.BROADCAST, "1", "200.00", "262144", "float32, root 0 (GPU0)"),
        (Operation.REDUCE, "1", "200.00", "262144", "float32, sum, root 0 (GPU0)"),
        (Operation.ALLGATHER, "(n-1)/n", "150.00", "65536", "float32"),
        (Operation.REDUCESCATTER, "(n-1)/n", "150.00", "65536", "float32, sum"),
        (Operation.ALLTOALL, "(n-1)/n", "150.00", "65536", "float32"),
        (Operation.SENDRECV, "1", "200.00", "262144", "float32"),
        (Operation.GATHER, "(n-1)/n", "150.00", "65536", "float32, root 0 (GPU0)"),
        (Operation.SCATTER, "(n-1)/n", "150.00", "65536", "float32, root 0 (GPU0)"),
    ],
)
def test_every_collective_says_its_factor_and_what_a_size_is(
    operation: Operation, factor: str, busbw: str, count: str, title: str
) -> None:
    shown = after_header(run_of(gpus(4), [measured(operation, FOUR, 200.0, MIB)], command=(operation.value,)))
    assert shown.startswith(f"{operation} over GPU0, GPU1, GPU2, GPU3 (4 ranks): {title}\n")
    assert rows(shown)[1] == ["1M", count, "5.24", "200.00", busbw, f"{busbw}-{busbw}", "0"]
    assert f"\nbusbw = algbw × {factor}; " in shown
    assert ("all ranks' blocks together" in shown) == (factor == "(n-1)/n")


def test_the_root_is_named_by_rank_and_device() -> None:
    run = run_of(gpus(4), [measured(Operation.REDUCE, (2, 3), 200.0, MIB)], command=("reduce",))
    run.settings = replace(run.settings, root=1, redop="max", dtype="bfloat16")
    assert after_header(run).startswith("reduce over GPU2, GPU3 (2 ranks): bfloat16, max, root 1 (GPU3)\n")


@pytest.mark.parametrize(("dtype", "count"), [("bfloat16", "524288"), ("float64", "131072"), ("int8", "1048576")])
def test_the_count_is_in_elements(dtype: str, count: str) -> None:
    run = run_of(gpus(4), [at(MIB, 19.06)], command=("allreduce",))
    run.settings = replace(run.settings, dtype=dtype, redop="max")
    shown = after_header(run)
    assert rows(shown)[1][1] == count
    assert f": {dtype}, max\n" in shown


def in_place(measurement: Measurement) -> Measurement:
    measurement.point = replace(measurement.point, variant=Variant.IN_PLACE)
    return measurement


def test_in_place_has_rows_of_its_own_below_out_of_place() -> None:
    points = [in_place(at(MIB, 18.0)), at(MIB, 20.0), in_place(at(8, 8.0)), at(8, 9.0)]
    table = rows(after_header(run_of(gpus(4), points, command=("allreduce", "--in-place"))))
    assert table[0][:3] == ["size", "in", "place"]
    assert [(row[0], row[1] == "yes", row[-5]) for row in table[1:]] == [
        ("8B", False, "9.00"),
        ("8B", True, "8.00"),
        ("1M", False, "20.00"),
        ("1M", True, "18.00"),
    ]


@pytest.mark.parametrize("operation", [Operation.ALLTOALL, Operation.SENDRECV])
def test_what_cannot_be_verified_in_place_is_not_called_right(operation: Operation) -> None:
    points = [measured(operation, FOUR, 200.0, MIB), in_place(measured(operation, FOUR, 200.0, MIB))]
    table = rows(after_header(run_of(gpus(4), points, command=(operation.value,))))
    assert [row[-1] for row in table[1:]] == ["0", "-"]


def test_unverified_data_is_not_called_right() -> None:
    measurement = at(MIB, 19.06)
    measurement.wrong = None
    assert rows(after_header(run_of(gpus(4), [measurement], command=("allreduce",))))[1][-1] == "-"


def test_what_nccl_chose_stands_beside_its_size() -> None:
    run = run_of(gpus(4), [at(8, 8.94), at(MIB, 19.06)], command=("allreduce",))
    run.chosen = [
        Chosen(Operation.ALLREDUCE, 4, MIB, "RING", "LL128", 24),
        Chosen(Operation.ALLREDUCE, 2, 8, "RING", "SIMPLE", 1),
    ]
    table = rows(after_header(run))
    assert table[0][-3:] == ["algo", "proto", "ch"]
    assert table[1][-3:] == ["-", "-", "-"]
    assert table[2][-3:] == ["RING", "LL128", "24"]


def test_a_failed_point_is_a_row_and_says_why_below() -> None:
    lost = Measurement(
        DataPoint(Operation.ALLREDUCE, FOUR, 8), [], StopReason.FAILED, failure=in_words("hang: no answer in 5 s")
    )
    shown = after_header(run_of(gpus(4), [at(MIB, 19.06), lost], command=("allreduce",)))
    assert rows(shown)[1] == ["8B", "2", "-", "-", "-", "-", "-", "failed"]
    assert ": allreduce at 8 B: hang: no answer in 5 s\n" in shown
    assert "\npoints    2 data points: 1 converged, 1 failed\n" in shown


def test_a_flagged_point_shows_its_flags_shortly() -> None:
    measurement = at(MIB, 19.06)
    flags = (throttled(1, "SW thermal slowdown"), shared(0))
    measurement.samples[2] = replace(measurement.samples[2], flags=flags)
    table = rows(after_header(run_of(gpus(4), [at(8, 8.94), measurement], command=("allreduce",))))
    assert table[0][-1] == "flags"
    assert table[1][-1] == "0"
    assert table[2][-2:] == ["throttled,", "shared"]


@pytest.mark.parametrize("operation", COLLECTIVES)
def test_a_page_of_ordinary_sizes_fits_80_columns(operation: Operation) -> None:
    points = [measured(operation, FOUR, 200.0, size, launch=1e-5) for size in (8, MIB, GIB)]
    shown = after_header(run_of(gpus(4), points, command=(operation.value,)))
    assert max(map(len, shown.split("\n"))) <= 80


def test_what_was_skipped_is_said() -> None:
    run = run_of(gpus(4), [at(MIB, 19.06)], command=("allreduce",))
    run.skipped = [left_out("collectives of 1 bytes: smaller than one float32")]
    assert after_header(run).endswith("skipped   collectives of 1 bytes: smaller than one float32\n")


@pytest.mark.parametrize(
    ("command", "first"),
    [
        (("pairs", "-o", "x.json"), "labels"),
        ((), "labels"),
        (("allreduce",), "allreduce over"),
        (("broadcast",), "allreduce over"),
    ],
)
def test_the_page_is_that_of_the_command_which_measured(command: tuple[str, ...], first: str) -> None:
    assert after_header(run_of(gpus(4), [at(MIB, 19.06)], command=command)).startswith(first)


def test_nothing_measured_is_a_header() -> None:
    run = run_of(gpus(2), [], command=("allreduce",))
    assert text(collectives_page(run)).count("\n") == 5
