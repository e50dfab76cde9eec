"""What a page says of three kinds of memory side by side."""

from __future__ import annotations

import random
from dataclasses import replace

from collbench.model.operations import Operation, Registration
from collbench.model.run import Measurement
from collbench.report import nccl_tests
from collbench.report.rows import rows
from tests.builders import GIB, gpus, measured, run_of

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


def test_rows_and_nccl_tests_keep_kinds_apart() -> None:
    kinds = [(row["size_bytes"], row["registration"]) for row in rows(RUN)]
    assert len(kinds) == len({*kinds}) == 15
    (one,) = nccl_tests.communicators(RUN)
    assert [*one.rows] == [*_TIMES]
    assert [round(half.microseconds, 1) for half in one.halves][:2] == [12.1, 29.8]
