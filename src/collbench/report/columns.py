"""The columns of a run's rows: names with units, types and meanings (docs/columns.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from collbench.model.operations import Variant

Value = str | int | float | bool | None
Row = dict[str, Value]


class Type(StrEnum):
    """The type of a column's values: an empty field is unknown, or does not apply."""

    TEXT = "text"
    WHOLE = "whole number"
    REAL = "number"
    YES_NO = "true or false"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, which ends in its unit, its type, and its meaning."""

    name: str
    type: Type
    meaning: str


def with_interval(name: str, meaning: str) -> tuple[Column, Column, Column]:
    """Return the columns of a figure and of its interval's ends, as the annexes' `Figure.columns` fills them."""
    return (
        Column(name, Type.REAL, meaning),
        Column(f"{name}_low", Type.REAL, f"{meaning}; its 95% interval, from"),
        Column(f"{name}_high", Type.REAL, f"{meaning}; to"),
    )


# What all rows of a run share.
ORIGIN = (
    Column("run", Type.TEXT, "the run: its start, host and seed"),
    Column("started", Type.TEXT, "when the run began, ISO 8601, UTC"),
    Column("collbench", Type.TEXT, "the version that measured"),
    Column("backend", Type.TEXT, "cuda, host, or sim: a machine that was only simulated"),
    Column("fabric", Type.TEXT, "the simulated machine's name; empty for a real one"),
    Column("hostname", Type.TEXT, "the machine"),
    Column("driver", Type.TEXT, "NVIDIA driver"),
    Column("cuda", Type.TEXT, "the newest CUDA that the driver supports"),
    Column("nccl", Type.TEXT, "version of the NCCL that was timed"),
    Column("nvls", Type.TEXT, "NVLink SHARP: on, off, possible or unknown"),
    Column("environment", Type.TEXT, "the variables of NCCL, CUDA and torch that were set, as a shell writes them"),
    Column("command", Type.TEXT, "the command line after collbench"),
    Column("complete", Type.YES_NO, "the run finished"),
)
# The single launches of a data point.
_LAUNCHES = (
    Column("launches", Type.WHOLE, "single launches that were timed (--latency)"),
    Column(
        "transfer_p50_seconds",
        Type.REAL,
        "s; of single launches, from the last rank's arrival to the last rank's finish: the median",
    ),
    Column("transfer_p95_seconds", Type.REAL, "s; the 95th percentile, empty where the launches are too few"),
    Column("transfer_p99_seconds", Type.REAL, "s; the 99th percentile, likewise"),
    Column("transfer_max_seconds", Type.REAL, "s; the longest"),
    Column("waited_p50_seconds", Type.REAL, "s; from the first rank's arrival to the last rank's finish: the median"),
    Column("waited_p99_seconds", Type.REAL, "s; the 99th percentile"),
    Column("waited_max_seconds", Type.REAL, "s; the longest"),
    Column("late", Type.TEXT, "the ranks that arrived significantly late, the latest first, comma-separated"),
)
# A run of any other command: a row for each data point.
COLUMNS = (
    *ORIGIN,
    Column("operation", Type.TEXT, "what was timed (run-file.md)"),
    Column("variant", Type.TEXT, f"how it ran: {', '.join(Variant)}"),
    Column("numa_node", Type.WHOLE, "NUMA node of the host memory, for host copies"),
    Column("registration", Type.TEXT, "registered memory of a collective: none, buffer, window"),
    Column("skew", Type.TEXT, "block sizes of alltoallv: uniform, zipf:1.2:7, or the matrix"),
    Column("imbalance", Type.REAL, "bytes of the busiest rank / bytes of the mean rank, for alltoallv"),
    Column("world_size", Type.WHOLE, "number of ranks of a collective"),
    Column("members", Type.TEXT, "the devices in the data point's order, comma-separated: GPU0,GPU1"),
    Column("source", Type.TEXT, "source of a copy between two devices or between a device and the host"),
    Column("destination", Type.TEXT, "its destination"),
    Column("gpu_names", Type.TEXT, "the product names of the devices, each once, comma-separated"),
    Column("gpu_uuids", Type.TEXT, "the UUIDs of the devices, comma-separated"),
    Column("label", Type.TEXT, "nvidia-smi's label of the path between two members"),
    Column("theory_gbs", Type.REAL, "GB/s; the limit of that path in one direction"),
    Column("dtype", Type.TEXT, "element type of a collective"),
    Column("redop", Type.TEXT, "reduction operation"),
    Column("root", Type.WHOLE, "rank of the root of a rooted collective"),
    Column("size_bytes", Type.WHOLE, "bytes; the message size as nccl-tests defines it"),
    Column("seconds", Type.REAL, "s; one iteration, median of the trials"),
    Column(
        "launch_seconds", Type.REAL, "s; one call of the ungraphed launch loop, mean of the ranks, median of the trials"
    ),
    Column("algbw_gbs", Type.REAL, "GB/s; bytes of all messages over the time"),
    Column("busbw_gbs", Type.REAL, "GB/s; algbw × the factor of the operation"),
    Column("busbw_low_gbs", Type.REAL, "GB/s; the 95% interval of busbw, from"),
    Column("busbw_high_gbs", Type.REAL, "GB/s; to"),
    Column("trials", Type.WHOLE, "how often the data point was measured"),
    Column("batches", Type.WHOLE, "timed batches of iterations, of all trials"),
    Column("concurrent", Type.YES_NO, "other, disjoint devices were measured at the same time"),
    Column("stop", Type.TEXT, "why the measurement ended"),
    Column("flags", Type.TEXT, "flags of the devices during the measurement, each once, separated by semicolons"),
    Column("limit_gbs", Type.REAL, "GB/s; the hardware's limit for this data point; empty where not known"),
    Column("impossible", Type.WHOLE, "timed batches above 1.02 × that limit: their times are wrong"),
    Column("failure", Type.TEXT, "why the data point failed; such a row may have no figures"),
    Column("wrong", Type.WHOLE, "elements that failed verification; empty where nothing was verified"),
    *_LAUNCHES,
)
