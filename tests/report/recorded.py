"""Recorded output of nccl-tests, and the run of ours that should print the very same rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from collbench.model.operations import Operation, Variant
from collbench.model.run import CommandKind, DataPoint, Device, Machine, Measurement, Run, Sample, Settings, StopReason
from collbench.report import nccl_tests

Row = tuple[str, ...]
DATA = Path(__file__).parent.parent / "data"
RECORDINGS = sorted(DATA.rglob("*_perf*.txt"))

OPERATIONS = {
    "all_reduce_perf": Operation.ALLREDUCE,
    "broadcast_perf": Operation.BROADCAST,
    "reduce_perf": Operation.REDUCE,
    "all_gather_perf": Operation.ALLGATHER,
    "reduce_scatter_perf": Operation.REDUCESCATTER,
    "alltoall_perf": Operation.ALLTOALL,
    "sendrecv_perf": Operation.SENDRECV,
    "gather_perf": Operation.GATHER,
    "scatter_perf": Operation.SCATTER,
}
_TYPES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
# Seconds of a printed time that are tried, from half a unit of its last digit below to half a unit above.
_TRIED = 31


@dataclass(frozen=True)
class Recording:
    """One run of an nccl-tests program: its lines, and of them the rows that hold data, split into columns."""

    program: str
    lines: tuple[str, ...]
    rows: tuple[Row, ...]
    numbers: tuple[tuple[str, int], ...]
    devices: tuple[Device, ...]

    @property
    def ranks(self) -> int:
        return len(self.devices)

    @property
    def flags(self) -> dict[str, int]:
        """The numbers of the line that says what was asked for, by name: "nThread", "iters", …"""
        return dict(self.numbers)

    def figure(self, name: str) -> str:
        """Return what stands behind the colon of a line of the footer."""
        return next(line for line in self.lines if line.startswith(f"# {name}")).partition(":")[2].strip()


def read(path: Path) -> Recording:
    lines = tuple(path.read_text(encoding="utf-8").splitlines())
    header = next(line for line in lines if line.startswith("# nThread"))
    return Recording(
        program=next(line for line in lines if "test starting" in line).split()[-1],
        lines=lines,
        rows=tuple(tuple(line.split()) for line in lines if line[:1] == " "),
        numbers=tuple((name, int(value)) for name, value in re.findall(r"(\w+(?: iters)?):? (\d+)", header)),
        devices=tuple(_device(line) for line in lines if line.startswith("#  Rank")),
    )


def run_of(recording: Recording) -> Run:
    """Return a run whose times lie within the digits that were printed, chosen so that every figure of a row agrees.

    Rows of nothing (0 bytes, which small messages of many ranks are cut to) are left out: ours skips them.
    """
    rows = [row for row in recording.rows if row[0] != "0"]
    return _run(recording, rows, _shares(recording))


@cache
def _shares(recording: Recording) -> tuple[tuple[float, float], ...]:
    """Return for each row's halves where within the printed time's digits to be, from 0 to 1."""
    rows = [row for row in recording.rows if row[0] != "0"]
    runs = [_run(recording, rows, [(step / (_TRIED - 1),) * 2] * len(rows)) for step in range(_TRIED)]
    printed = [[tuple(line.split()) for line in nccl_tests.lines(run) if line[:1] == " "] for run in runs]
    return tuple(
        (_fitting(row[5:8], [p[index][5:8] for p in printed]), _fitting(row[9:12], [p[index][9:12] for p in printed]))
        for index, row in enumerate(rows)
    )


def _fitting(wanted: Row, tried: Sequence[Row]) -> float:
    """Return where within the printed time's digits the three figures come out as recorded; the middle if nowhere."""
    fitting = [index for index, columns in enumerate(tried) if columns == wanted]
    return fitting[len(fitting) // 2] / (_TRIED - 1) if fitting else 0.5


def _run(recording: Recording, rows: Sequence[Row], shares: Sequence[tuple[float, ...]]) -> Run:
    first = rows[0]
    measurements = [
        _measurement(recording, row, variant, row[5 + 4 * half], share[half])
        for row, share in zip(rows, shares, strict=True)
        for half, variant in enumerate((Variant.PLAIN, Variant.IN_PLACE))
    ]
    flags = recording.flags
    return Run(
        backend="cuda",
        version="0.1.0",
        started="2026-01-02T03:04:05Z",
        machine=Machine("vm.example", "Linux", "CPU", nccl="2.28.9", nccl_path="libnccl.so.2"),
        devices=recording.devices,
        paths=(),
        settings=Settings(
            operations=(OPERATIONS[recording.program],),
            sizes=tuple(int(row[0]) for row in rows),
            dtype=_TYPES.get(first[2], first[2]),
            redop=first[3] if first[3] != "none" else "sum",
            trials=1,
            seed=7,
            command=(recording.program, "-w", str(flags["warmup iters"]), "-n", str(flags["iters"])),
            environment={},
            kind=CommandKind.COLLECTIVE,
            iterations=flags["iters"],
            warmup=flags["warmup iters"],
            graph=flags["graph"],
            root=max(0, int(first[4])),
        ),
        measurements=measurements,
        seconds=61.0,
        complete=True,
    )


def _measurement(recording: Recording, row: Row, variant: Variant, time: str, share: float) -> Measurement:
    """Return the half of a row. Its other time, which must not be printed, is 1 s."""
    half_digit = 0.5 * 10.0 ** -len(time.partition(".")[2])
    seconds = (float(time) + (2 * share - 1) * half_digit * 0.999) * 1e-6
    graph = recording.flags["graph"] > 0
    sample = Sample((seconds if graph else 1.0,), 20, concurrent=False, launch_seconds=1.0 if graph else seconds)
    point = DataPoint(OPERATIONS[recording.program], tuple(range(recording.ranks)), int(row[0]), variant)
    return Measurement(point, [sample], StopReason.PRECISION, 0 if recording.flags["validation"] else None)


def _device(line: str) -> Device:
    match = re.fullmatch(r"#  Rank +\d+ Group +\d+ Pid +\d+ on +(\S+) device +(\d+) \[(\S+)\] (.+)", line)
    assert match, line
    index = int(match[2])
    return Device(index, f"GPU-{index}", match[4], pci_bus_id=f"0000{match[3].upper()}.0")
