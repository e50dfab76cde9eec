"""A run of collectives in nccl-tests' terms: its words, its rows, and the settings that its headers name.

Source of every word and rule: nccl-tests 2.19.6, src/common.cu, src/util.cu and each operation's own file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from collbench.dtypes import DTYPE_BYTES
from collbench.errors import UsageError
from collbench.machine.impossible import Impossible, by_cell
from collbench.model import Cell, Device, Measurement, Run, Sample
from collbench.operations import Operation, Variant
from collbench.stats import summarize

PROGRAMS = {
    Operation.ALLREDUCE: "all_reduce_perf",
    Operation.BROADCAST: "broadcast_perf",
    Operation.REDUCE: "reduce_perf",
    Operation.ALLGATHER: "all_gather_perf",
    Operation.REDUCESCATTER: "reduce_scatter_perf",
    Operation.ALLTOALL: "alltoall_perf",
    Operation.SENDRECV: "sendrecv_perf",
    Operation.GATHER: "gather_perf",
    Operation.SCATTER: "scatter_perf",
}
# The types that it names otherwise than we do [src/common.cu, test_typenames].
_TYPES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
# In place their ranks overwrite what others still read, so neither tool checks it [src/alltoall.cu:44, sendrecv.cu:34].
_UNCHECKED_IN_PLACE = (Operation.ALLTOALL, Operation.SENDRECV)
# Its defaults, and ours where the command did not say otherwise: -n 20, -w 1 [src/common.cu].
_ITERATIONS, _WARMUP = 20, 1
_ONE_SIZE_STEP = 2**20  # what it prints as the step where there is one size


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a row, out of place or in place: microseconds, GB/s, and wrong elements (None: unchecked).

    `loop` is True where the time is that of the ungraphed launch loop.
    """

    microseconds: float
    algbw: float
    busbw: float
    wrong: int | None
    loop: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. A half is None where it was not measured; `iterations` were timed as blocks, in all."""

    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    out_of_place: Half | None
    in_place: Half | None
    iterations: int

    @property
    def halves(self) -> tuple[Half, ...]:
        """The halves that were measured."""
        return tuple(half for half in (self.out_of_place, self.in_place) if half is not None)


@dataclass(frozen=True, slots=True)
class Table:
    """One communicator's rows, as one run of an nccl-tests program prints them. `group` counts communicators.

    `impossible` has a line for each cell with figures that beat what the hardware carries.
    """

    operation: Operation
    members: tuple[int, ...]
    group: int
    rows: tuple[Row, ...]
    failures: tuple[str, ...]
    flags: tuple[str, ...]
    impossible: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """The name of the program that measures this operation."""
        return PROGRAMS[self.operation]

    @property
    def errors(self) -> int:
        """How many halves held wrong elements: what it counts as values out of bounds [src/common.cu:478]."""
        return sum(bool(half.wrong) for row in self.rows for half in row.halves)


@dataclass(frozen=True, slots=True)
class Settings:
    """What its header says of a run; `step` is (2, "factor"), or (bytes, "bytes"), 0 bytes where sizes are a list."""

    threads: int
    smallest: int
    largest: int
    step: tuple[int, str]
    warmup: int
    iterations: int
    validation: int
    graph: int


def tables(run: Run) -> tuple[Table, ...]:
    """Return the run's communicators, in the file's order. Times are the launch loop's, microseconds.

    Where the run's command has -G they are those of the graph replay. Raises UsageError for a run without collectives.
    """
    found: dict[tuple[Operation, tuple[int, ...]], list[Measurement]] = {}
    for measurement in run.measurements:
        if measurement.cell.operation.is_collective:
            found.setdefault((measurement.cell.operation, measurement.cell.members), []).append(measurement)
    if not found:
        raise UsageError(
            "the nccl-tests format has rows for collectives, and this run holds none: show it without --format"
        )
    beaten = by_cell(run)
    return tuple(_table(run, group, found[key], beaten) for group, key in enumerate(found))


def settings(run: Run, table: Table) -> Settings:
    """Return what nccl-tests' header says: sizes from the table, -n, -w and -G from the command that measured."""
    sizes = [row.size_bytes for row in table.rows]
    return Settings(
        threads=1 if run.settings.processes > 1 else len(table.members),
        smallest=sizes[0],
        largest=sizes[-1],
        step=_step(sizes),
        warmup=_asked(run, "-w", "--warmup_iters", _WARMUP),
        iterations=_asked(run, "-n", "--iters", _ITERATIONS),
        validation=int(any(half.wrong is not None for row in table.rows for half in row.halves)),
        graph=_graph(run),
    )


def healthy(run: Run, found: tuple[Table, ...]) -> bool:
    """Return whether every value is right, no cell failed, no figure is impossible, and no row is missing."""
    return run.complete and not any(table.errors or table.failures or table.impossible for table in found)


def average_busbw(found: tuple[Table, ...]) -> float:
    """Return the mean busbw over all sizes and both halves, GB/s, 0 without any: the figure that parsers look for."""
    rates = [half.busbw for table in found for row in table.rows for half in row.halves]
    return sum(rates) / len(rates) if rates else 0.0


def hostname(run: Run, device: Device) -> str:
    """Return the short name of the device's host: nccl-tests cuts it at the first dot."""
    return (device.host or run.machine.hostname).partition(".")[0]


def pci_address(device: Device) -> str:
    """Return "0000:1b:00" of "00000000:1B:00.0", "none" for a device that is not on the PCI bus."""
    match = re.fullmatch(r"0*([0-9a-f]{4,}):([0-9a-f]{2}):([0-9a-f]{2})\.[0-9a-f]", device.pci_bus_id.lower())
    return f"{match[1]}:{match[2]}:{match[3]}" if match else "none"


def _table(run: Run, group: int, found: list[Measurement], beaten: Mapping[Cell, Impossible]) -> Table:
    sizes: dict[int, dict[Variant, Measurement]] = {}
    for measurement in sorted(found, key=lambda m: m.cell.size_bytes):
        sizes.setdefault(measurement.cell.size_bytes, {})[measurement.cell.variant] = measurement
    return Table(
        operation=found[0].cell.operation,
        members=found[0].cell.members,
        group=group,
        rows=tuple(_row(run, list(halves.values())) for halves in sizes.values()),
        failures=tuple(f"{_place(m)}: {' '.join(m.failure.split())}" for m in found if m.failure),
        flags=tuple(_flags(run, found)),
        impossible=tuple(_beyond(m, beaten[m.cell]) for m in found if m.cell in beaten),
    )


def _row(run: Run, found: list[Measurement]) -> Row:
    cell, wanted = found[0].cell, run.settings
    halves = {measurement.cell.variant: _half(run, measurement) for measurement in found}
    # sendrecv prints the reduction that was asked for, though it has none [src/sendrecv.cu:120].
    reduces = cell.operation.reduces or cell.operation is Operation.SENDRECV
    ranks = len(cell.members) if cell.operation.shares else 1
    return Row(
        size_bytes=cell.size_bytes,
        count=cell.size_bytes // DTYPE_BYTES[wanted.dtype] // ranks,
        dtype=_TYPES.get(wanted.dtype, wanted.dtype),
        redop=wanted.redop if reduces else "none",
        root=wanted.root if cell.operation.rooted else -1,
        out_of_place=halves.get(Variant.PLAIN),
        in_place=halves.get(Variant.IN_PLACE),
        iterations=sum(sample.iterations * len(sample.seconds) for m in found for sample in m.samples),
    )


def _half(run: Run, measurement: Measurement) -> Half | None:
    if not measurement.samples:
        return None
    looped = [_as_looped(sample) for sample in measurement.samples if sample.launch_seconds and not _graph(run)]
    summary = summarize(replace(measurement, samples=looped or measurement.samples))
    in_place = measurement.cell.variant is Variant.IN_PLACE
    unchecked = measurement.failure or (in_place and measurement.cell.operation in _UNCHECKED_IN_PLACE)
    return Half(
        microseconds=summary.seconds * 1e6,
        algbw=summary.algbw,
        busbw=summary.busbw,
        wrong=None if unchecked else measurement.wrong,
        loop=bool(looped),
    )


def _as_looped(sample: Sample) -> Sample:
    """Return the sample with the launch loop's time as its only block."""
    return replace(sample, seconds=(sample.launch_seconds or 0.0,))


def _flags(run: Run, found: list[Measurement]) -> Iterator[str]:
    """Yield each thing that was wrong with the machine, and the cells that were measured meanwhile."""
    places: dict[str, dict[str, None]] = {}
    for measurement in found:
        for flag in (flag for sample in measurement.samples for flag in sample.flags):
            places.setdefault(flag.words(run.devices), {})[_place(measurement)] = None
    yield from (f"{flag}: {', '.join(cells)}" for flag, cells in places.items())


def _beyond(measurement: Measurement, one: Impossible) -> str:
    told = f"{one.rate_gbs:.2f} GB/s where the {one.capacity.part} carries {one.capacity.gbs:.2f}"
    return f"{_place(measurement)}: {told}, {one.blocks} of {one.of} times"


def _place(measurement: Measurement) -> str:
    return f"{measurement.cell.size_bytes} {'in' if measurement.cell.variant is Variant.IN_PLACE else 'out of'} place"


def _step(sizes: list[int]) -> tuple[int, str]:
    if len(sizes) < 2:
        return _ONE_SIZE_STEP, "bytes"
    factors = {large // small if large % small == 0 else 0 for small, large in pairwise(sizes)}
    if len(factors) == 1 and min(factors) > 1:
        return factors.pop(), "factor"
    steps = {large - small for small, large in pairwise(sizes)}
    return (steps.pop() if len(steps) == 1 else 0), "bytes"


def _graph(run: Run) -> int:
    return _asked(run, "-G", "--cudagraph", 0)


def _asked(run: Run, short: str, long: str, default: int) -> int:
    """Return the number that the command gave for an option, as "-n 20", "-n20", "--iters 20" or "--iters=20"."""
    words = run.settings.command
    for place, word in enumerate(words):
        if word in (short, long) and place + 1 < len(words):
            value = words[place + 1]
        elif word.startswith(f"{long}="):
            value = word.partition("=")[2]
        elif word.startswith(short):
            value = word.removeprefix(short)
        else:
            continue
        default = int(value) if value.isdecimal() else default
    return default
