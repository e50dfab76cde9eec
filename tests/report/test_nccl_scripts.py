"""Our nccl-tests text against what published scripts search it for: their patterns and column numbers alone."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from collbench.report.nccl_tests import lines
from tests.builders import left_out, throttled
from tests.report.recorded import RECORDINGS, read, run_of

MIB = 2**20


def awk_last(text: str) -> float:
    """FlagOpen/FlagPerf, base/toolkits/interconnect-MPI_intraserver/dcu/BW/main.sh: grep '# Avg bus bandwidth', $NF."""
    (line,) = (line for line in text.splitlines() if "# Avg bus bandwidth" in line)
    return float(line.split()[-1])


def reframe(text: str) -> float:
    """eth-cscs/cscs-reframe-tests, checks/containers/container_engine/xccl_tests.py: sanity, then performance."""
    assert re.search(r"Out of bounds values\s*:\s*0\s*OK", text)
    match = re.search(r"Avg bus bandwidth\s*:\s*(?P<gbs>\S+)", text)
    assert match
    return float(match["gbs"])


def azure(text: str) -> float:
    """Azure/azurehpc-health-checks, customTests/azure_nccl_allreduce.nhc: the sixth word of the first such line."""
    before, line = next((index, line) for index, line in enumerate(text.splitlines()) if "bandwidth" in line)
    assert "FAILED" not in "\n".join(text.splitlines()[: before + 1])
    return float(line.split()[5])


def superbench(text: str, *, in_place: bool = False) -> dict[int, tuple[float, ...]]:
    """microsoft/superbenchmark, micro_benchmarks/cuda_nccl_bw_performance.py: columns are counted from a row's end."""
    printed = text.splitlines()
    first = max(index for index, line in enumerate(printed) if "out-of-place" in line)
    last = max(index for index, line in enumerate(printed) if "Out of bounds values" in line)
    inside = printed[first + 1 : last]
    heads = next(line for line in inside if "time" in line and "busbw" in line)[1:].split()
    figures = {}
    for columns in (line.split() for line in inside):
        if re.match(r"\d+", columns[0]):
            seek = heads[::-1].index if in_place else lambda name: len(heads) - 1 - heads.index(name)
            positions = [-1 - seek(name) for name in ("time", "algbw", "busbw")]
            figures[int(columns[heads.index("size")])] = tuple(float(columns[index]) for index in positions)
    return figures


ROWS = {8: (8.94, 0.0, 0.0), MIB: (19.06, 55.01, 82.52)}  # of tests/data/h200x4/all_reduce_perf-4-ranks.txt
IN_PLACE = {8: (8.12, 0.0, 0.0), MIB: (19.44, 53.93, 80.90)}


@pytest.fixture
def printed() -> str:
    """Two recorded rows as we print them, with every note that there is."""
    recording = read(next(path for path in RECORDINGS if path.stem == "all_reduce_perf-4-ranks"))
    run = run_of(replace(recording, rows=tuple(row for row in recording.rows if int(row[0]) in ROWS)))
    run.measurements[0].samples[0] = replace(run.measurements[0].samples[0], flags=(throttled(0, "low bandwidth"),))
    run.skipped = [left_out("sizes 4G: bandwidth FAILED")]
    return "\n".join(lines(run))


def test_superbench_reads_the_rows(printed: str) -> None:
    assert superbench(printed) == ROWS
    assert superbench(printed, in_place=True) == IN_PLACE


@pytest.mark.parametrize("script", [awk_last, reframe, azure])
def test_scripts_read_the_average(printed: str, script: Callable[[str], float]) -> None:
    assert script(printed) == pytest.approx((82.52 + 80.90) / 4, abs=0.005)


def test_scripts_read_the_recorded_text_alike() -> None:
    text = "\n".join(read(next(path for path in RECORDINGS if path.stem == "all_reduce_perf-4-ranks")).lines)
    assert awk_last(text) == reframe(text) == azure(text) == 119.917
    assert superbench(text)[MIB] == ROWS[MIB]
