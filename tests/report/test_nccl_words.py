"""nccl-tests' words for operations, types, numbers and devices, as our text prints them."""

from dataclasses import replace

import pytest

from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Device, Machine, Measurement, Run, Sample
from collbench.report.nccl_tests import lines
from tests.builders import gpus, measured, run_of
from tests.report.recorded import OPERATIONS

MIB = 2**20
FOUR = (0, 1, 2, 3)


def one_row(run: Run) -> list[str]:
    (row,) = (line.split() for line in lines(run) if line[:1] == " ")
    return row


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
    run = run_of(gpus(4), [measured(OPERATIONS[f"{operation}_perf"], FOUR, 100.0, MIB)], command=("x",))
    run.settings = replace(run.settings, redop="max", root=2)
    assert one_row(run)[:9] == ["1048576", count, "float", redop, root, "10.49", "100.00", busbw, "0"]
    assert f"# Collective test starting: {operation}_perf" in lines(run)


@pytest.mark.parametrize(
    ("dtype", "count", "name"),
    [  # test_typenames in src/common.cu
        ("int8", "1048576", "int8"),
        ("uint8", "1048576", "uint8"),
        ("int32", "262144", "int32"),
        ("uint32", "262144", "uint32"),
        ("int64", "131072", "int64"),
        ("uint64", "131072", "uint64"),
        ("float16", "524288", "half"),
        ("float32", "262144", "float"),
        ("float64", "131072", "double"),
        ("bfloat16", "524288", "bfloat16"),
        ("float8_e4m3fn", "1048576", "f8e4m3"),
        ("float8_e5m2", "1048576", "f8e5m2"),
    ],
)
def test_types_have_its_names(dtype: str, count: str, name: str) -> None:
    run = run_of(gpus(4), [measured(Operation.ALLREDUCE, FOUR, 100.0, MIB)])
    run.settings = replace(run.settings, dtype=dtype)
    assert one_row(run)[:3] == ["1048576", count, name]


@pytest.mark.parametrize(
    ("microseconds", "printed"),
    [  # the first two are recorded; the others follow printf's %*.2f, %*.1f, %*.0f and %*.1e
        (9.341, "     9.34"),
        (12410.62, "  12410.6"),
        (9999.99, "  9999.99"),
        (123456.78, "   123457"),
        (9999999.4, "  9999999"),
        (12345678.0, "  1.2e+07"),
    ],
)
def test_times_lose_decimals_before_they_outgrow_their_column(microseconds: float, printed: str) -> None:
    sample = Sample((microseconds * 1e-6,), 1, concurrent=False)
    run = run_of(gpus(2), [Measurement(DataPoint(Operation.ALLREDUCE, (0, 1), 8), [sample])])
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
    run = run_of((device, gpus(2)[1]), [measured(Operation.ALLREDUCE, (0, 1), 100.0, MIB)])
    run.machine = Machine(machine, "Linux", "CPU")
    assert line in lines(run)
