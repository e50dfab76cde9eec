"""Our nccl-tests text against nccl-tests' own, line by line, and its words for operations, types and devices."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant, whole_blocks
from collbench.model.run import DataPoint, Device, Machine, Measurement, Run, Sample, StopReason
from collbench.model.units import whole_elements
from collbench.report.nccl_tests import lines
from tests.builders import gpus, in_words, left_out, measured, throttled
from tests.builders import run_of as built
from tests.report.recorded import OPERATIONS, RECORDINGS, read, run_of

MIB = 2**20
FOUR = (0, 1, 2, 3)
OURS = ("# collbench", "# measured", "# time:", "# #wrong:", "# skipped")


def rows(run: Run) -> list[list[str]]:
    return [line.split() for line in lines(run) if line[:1] == " "]


def one_row(run: Run) -> list[str]:
    (row,) = rows(run)
    return row


def layout(printed: list[str]) -> list[str]:
    """Return the lines as both tools should print them: without the process's number and the average's last digits."""
    kept = [line for line in printed if not line.startswith((*OURS, "# nccl-tests version"))]
    kept = [re.sub(r"Pid [ \d]{6}", "Pid      0", line) for line in kept]
    return [re.sub(r"(Avg bus bandwidth    : )[\d.]+", r"\1#", line) for line in kept]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_line_is_the_one_that_nccl_tests_printed(path: Path) -> None:
    recording = read(path)
    theirs = [line for line in recording.lines if line.split()[:1] != ["0"]]
    sizes = [row[0] for row in recording.rows if row[0] != "0"]
    # Its header has the sizes that were asked for, ours those that were measured.
    ends = f"minBytes {sizes[0]} maxBytes {sizes[-1]} "
    theirs = [re.sub(r"minBytes \d+ maxBytes \d+ ", ends, line) for line in theirs]
    ours = lines(run_of(recording))
    assert layout(ours) == layout(theirs)
    average = next(line for line in ours if "Avg" in line).split()[-1]
    kept = len(sizes) / len(recording.rows)  # its average counts rows of nothing as 0 GB/s
    assert float(average) * kept == pytest.approx(float(recording.figure("Avg bus bandwidth")), abs=0.005)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_sizes_are_cut_as_the_recorded_ones(path: Path) -> None:
    recording = read(path)
    operation, asked = OPERATIONS[recording.program], recording.flags["minBytes"]
    for row in recording.rows:
        cut = whole_blocks(asked, recording.ranks) if operation.shares else whole_elements(asked, "float32")
        assert str(cut) == row[0]
        asked *= recording.flags["step"]
    assert recording.flags["step"] > 1


def test_these_recordings_are_there() -> None:
    assert {"all_reduce_perf"} <= {read(path).program for path in RECORDINGS}
    assert {read(path).flags["graph"] for path in RECORDINGS} == {0, 20}


def looped(loops: tuple[float | None, ...], **settings: Any) -> Run:
    """Return an all-reduce whose batches took 10 µs each, and whose launch loops took these seconds, trial by trial."""
    samples = [Sample((1e-5, 1e-5), 20, concurrent=False, launch_seconds=seconds) for seconds in loops]
    measurement = Measurement(DataPoint(Operation.ALLREDUCE, FOUR, MIB), samples, wrong=0)
    run = built(gpus(4), [measurement], command=("allreduce",))
    run.settings = replace(run.settings, **settings)
    return run


@pytest.mark.parametrize(
    ("title", "run", "time", "time_name"),
    [
        ("the launch loop, median of the trials", looped((3e-5, 2e-5, 9e-5)), "30.00", "launch loop"),
        ("with -G the graph replay", looped((3e-5,), graph=20), "10.00", "graph replay"),
        ("whatever the command line says", looped((3e-5,), command=("allreduce", "-G", "20")), "30.00", "launch loop"),
        ("without a launch loop the batches", looped((None, None)), "10.00", "graph replay"),
    ],
)
def test_which_time_is_shown(title: str, run: Run, time: str, time_name: str) -> None:
    assert one_row(run)[5] == time
    (meaning,) = (line for line in lines(run) if line.startswith("# time:"))
    assert time_name in meaning


def point(operation: Operation, variant: Variant, **of: object) -> Measurement:
    measurement = measured(operation, FOUR, 100.0, MIB)
    measurement.point = replace(measurement.point, variant=variant)
    return replace(measurement, **of)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("title", "halves", "columns"),
    [
        (
            "both halves",
            [point(Operation.ALLREDUCE, Variant.PLAIN), point(Operation.ALLREDUCE, Variant.IN_PLACE)],
            ["10.49", "100.00", "150.00", "0", "10.49", "100.00", "150.00", "0"],
        ),
        (
            "not measured in place",
            [point(Operation.ALLREDUCE, Variant.PLAIN)],
            ["10.49", "100.00", "150.00", "0", "N/A", "N/A", "N/A", "N/A"],
        ),
        (
            "measured in place alone",
            [point(Operation.ALLREDUCE, Variant.IN_PLACE)],
            ["N/A", "N/A", "N/A", "N/A", "10.49", "100.00", "150.00", "0"],
        ),
        (
            "not checked",
            [point(Operation.ALLREDUCE, variant, wrong=None) for variant in (Variant.PLAIN, Variant.IN_PLACE)],
            ["10.49", "100.00", "150.00", "N/A", "10.49", "100.00", "150.00", "N/A"],
        ),
        (
            "an all-to-all is not checked in place",
            [point(Operation.ALLTOALL, variant) for variant in (Variant.PLAIN, Variant.IN_PLACE)],
            ["10.49", "100.00", "75.00", "0", "10.49", "100.00", "75.00", "N/A"],
        ),
        (
            "a failed data point",
            [
                point(
                    Operation.ALLREDUCE, Variant.PLAIN, samples=[], stop=StopReason.FAILED, failure=in_words("it hung")
                )
            ],
            ["N/A"] * 8,
        ),
        (
            "wrong data",
            [point(Operation.ALLREDUCE, Variant.PLAIN, wrong=1234567)],
            ["10.49", "100.00", "150.00", "1.23457e+06", "N/A", "N/A", "N/A", "N/A"],
        ),
    ],
)
def test_the_halves_of_a_row(title: str, halves: list[Measurement], columns: list[str]) -> None:
    assert one_row(built(gpus(4), halves))[5:] == columns


@pytest.mark.parametrize(
    ("title", "changed", "complete", "verdict", "note"),
    [
        ("all is well", {}, True, "0 OK", None),
        ("not checked is no fault", {"wrong": None}, True, "0 OK", None),
        ("wrong data", {"wrong": 3}, True, "1 FAILED", None),
        (
            "a data point that failed",
            {"failure": in_words("hung:\n no answer")},
            True,
            "0 FAILED",
            "# failed: 1048576 in place: hung: no",
        ),
        ("rows are missing", {}, False, "0 INTERRUPTED", "# interrupted"),
    ],
)
def test_scripts_take_ok_for_passed(
    title: str, changed: dict[str, object], complete: bool, verdict: str, note: str | None
) -> None:
    run = built(
        gpus(4), [point(Operation.ALLREDUCE, Variant.PLAIN), point(Operation.ALLREDUCE, Variant.IN_PLACE, **changed)]
    )
    run.complete = complete
    printed = lines(run)
    assert f"# Out of bounds values : {verdict}" in printed
    assert note is None or any(line.startswith(note) for line in printed)


def test_a_run_without_collectives_is_refused() -> None:
    with pytest.raises(UsageError, match="this run holds none"):
        lines(built(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)]))


# Words and counts by hand from each operation's *GetCollByteCount and *RunTest: 1 MiB of float among 4 ranks, root 2.
@pytest.mark.parametrize(
    ("operation", "count", "redop", "root", "busbw"),
    [
        ("all_reduce", "262144", "max", "-1", "150.00"),
        ("broadcast", "262144", "none", "2", "100.00"),
        ("reduce", "262144", "max", "2", "100.00"),
        ("all_gather", "65536", "none", "-1", "75.00"),
        ("reduce_scatter", "65536", "max", "-1", "75.00"),
        ("alltoall", "65536", "none", "-1", "75.00"),
        ("sendrecv", "262144", "max", "-1", "100.00"),
        ("gather", "65536", "none", "2", "75.00"),
        ("scatter", "65536", "none", "2", "75.00"),
    ],
)
def test_the_words_of_each_operation(operation: str, count: str, redop: str, root: str, busbw: str) -> None:
    run = built(gpus(4), [measured(OPERATIONS[f"{operation}_perf"], FOUR, 100.0, MIB)], command=("x",))
    run.settings = replace(run.settings, redop="max", root=2)
    assert one_row(run)[:9] == ["1048576", count, "float", redop, root, "10.49", "100.00", busbw, "0"]
    assert f"# Collective test starting: {operation}_perf" in lines(run)


@pytest.mark.parametrize(
    ("dtype", "count", "name"),
    [  # test_typenames in src/common.cu
        ("int8", "1048576", "int8"),
        ("float16", "524288", "half"),
        ("float32", "262144", "float"),
        ("float64", "131072", "double"),
        ("bfloat16", "524288", "bfloat16"),
        ("float8_e4m3fn", "1048576", "f8e4m3"),
    ],
)
def test_types_have_its_names(dtype: str, count: str, name: str) -> None:
    run = built(gpus(4), [measured(Operation.ALLREDUCE, FOUR, 100.0, MIB)])
    run.settings = replace(run.settings, dtype=dtype)
    assert one_row(run)[:3] == ["1048576", count, name]


@pytest.mark.parametrize(
    ("microseconds", "printed"),
    [  # the first two are recorded; the others follow printf's %*.2f, %*.1f, %*.0f and %*.1e
        (9.341, "     9.34"),
        (12410.62, "  12410.6"),
        (123456.78, "   123457"),
        (12345678.0, "  1.2e+07"),
    ],
)
def test_times_lose_decimals_before_they_outgrow_their_column(microseconds: float, printed: str) -> None:
    sample = Sample((microseconds * 1e-6,), 1, concurrent=False)
    run = built(gpus(2), [Measurement(DataPoint(Operation.ALLREDUCE, (0, 1), 8), [sample])])
    (line,) = (line for line in lines(run) if line[:1] == " ")
    assert line[52:61] == printed


@pytest.mark.parametrize(
    ("title", "device", "machine", "line"),
    [
        (
            "a GPU, its host's name cut at the dot",
            Device(3, "GPU-3", "NVIDIA H200", "00000001:1B:00.0"),
            "gpu7.cluster.example",
            "#  Rank  0 Group  0 Pid      0 on       gpu7 device  3 [0001:1b:00] NVIDIA H200",
        ),
        (
            "a GPU of another host",
            Device(0, "GPU-0", "NVIDIA H200", "00000000:1B:00.0", host="node12"),
            "gpu7",
            "#  Rank  0 Group  0 Pid      0 on     node12 device  0 [0000:1b:00] NVIDIA H200",
        ),
        (
            "a CPU core",
            Device(5, "CPU-5", "AMD EPYC"),
            "box",
            "#  Rank  0 Group  0 Pid      0 on        box device  5 [none] AMD EPYC",
        ),
    ],
)
def test_devices(title: str, device: Device, machine: str, line: str) -> None:
    run = built((device, gpus(2)[1]), [measured(Operation.ALLREDUCE, (0, 1), 100.0, MIB)])
    run.machine = Machine(machine, "Linux", "CPU")
    assert line in lines(run)


def test_no_line_of_our_own_has_words_that_scripts_search_for() -> None:
    """Where theirs has not. As published [FlagOpen/FlagPerf, eth-cscs/cscs-reframe-tests, Azure/azurehpc-health-checks,
    microsoft/superbenchmark]: the average is in the first line with "bandwidth", and no FAILED is above it; rows stand
    between the last lines with "out-of-place" and with "Out of bounds values".
    """
    run = looped((3e-5, 2e-5, 9e-5))
    run.measurements[0].samples[0] = replace(run.measurements[0].samples[0], flags=(throttled(0, "low bandwidth"),))
    run.skipped = [left_out("sizes 4G: bandwidth FAILED")]
    printed = lines(run)
    average = next(at for at, line in enumerate(printed) if "bandwidth" in line)
    assert printed[average].startswith("# Avg bus bandwidth")
    assert "FAILED" not in "".join(printed[:average])
    first, last = (max(at for at, line in enumerate(printed) if word in line) for word in ("out-of-place", "Out of b"))
    assert [line[0] for line in printed[first + 3 : last]] == [" "]
