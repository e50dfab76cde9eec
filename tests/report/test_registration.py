"""What a page says of three kinds of memory side by side."""

from __future__ import annotations

import random
from dataclasses import replace

from collbench.model.operations import Operation, Registration
from collbench.model.run import Measurement
from collbench.report import nccl_tests
from collbench.report.rows import rows
from collbench.report.text.measured import page
from tests.builders import GIB, gpus, measured, run_of
from tests.report.pages import text

NONE, BUFFER, WINDOW = Registration
MIB = 2**20
# Of 2 × H200, NCCL 2.28.9, by nccl-tests: µs by size.
_TIMES = {
    (64 * 1024): (12.1, 12.2, 12.0),
    2 * MIB: (29.8, 31.0, 20.7),
    4 * MIB: (36.0, 36.2, 30.0),
    16 * MIB: (78.5, 75.1, 79.3),
    GIB: (3254.0, 3256.0, 4188.0),
}


def points(size: int, times: tuple[float, ...]) -> list[Measurement]:
    made = []
    for kind, microseconds in zip(Registration, times, strict=True):
        noise = random.Random(f"{size} {kind}")
        rates = [size / microseconds / 1e3 * noise.lognormvariate(0, 0.01) for _ in range(7)]
        measurement = measured(Operation.ALLREDUCE, (0, 1), rates, size, launch=microseconds * 1e-6)
        made.append(replace(measurement, point=replace(measurement.point, registration=kind)))
    return made


RUN = run_of(gpus(2), [one for size, times in _TIMES.items() for one in points(size, times)], command=("allreduce",))


def test_the_page_says_which_memory_wins_where() -> None:
    shown = text(page(RUN))
    begin = shown.index("allreduce over")
    assert shown[begin : shown.index("\n\n", shown.index("size  none"))] == (
        "allreduce over GPU0, GPU1 (2 ranks): float32, sum\n"
        "memory    none, buffer, window tie at 64K\n"
        "memory    window wins from 2M to 4M, 1.45x at 2M (1.42-1.47)\n"
        "memory    buffer wins at 16M, 1.03x at 16M (1.03-1.04)\n"
        "memory    none, buffer tie at 1G, 1.27x over window at 1G (1.26-1.28)\n"
        "\n"
        "size  none µs  buffer µs  window µs  none GB/s  buffer GB/s  window GB/s       fastest\n"
        "64K     11.98      12.16      12.02       5.47         5.39         5.45           tie\n"
        "2M      29.67      31.15      20.55      70.68        67.32       102.06        window\n"
        "4M      35.96      36.18      29.82     116.65       115.92       140.67        window\n"
        "16M     78.05      75.82      79.54     214.96       221.29       210.93        buffer\n"
        "1G    3251.53    3259.22    4151.54     330.23       329.45       258.64  none, buffer"
    )


def test_rows_and_nccl_tests_keep_kinds_apart() -> None:
    kinds = [(row["size_bytes"], row["registration"]) for row in rows(RUN)]
    assert len(kinds) == len({*kinds}) == 15
    (one,) = nccl_tests.communicators(RUN)
    assert [*one.rows] == [*_TIMES]
    assert [round(half.microseconds, 1) for half in one.halves][:2] == [12.1, 29.8]
