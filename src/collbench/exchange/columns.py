"""The tidy long form of a run: its columns, with their types, units and meaning. docs/exchange.md shows this table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Type(StrEnum):
    """What a column holds, where it holds anything: an empty field is unknown, or does not apply."""

    TEXT = "text"
    WHOLE = "whole number"
    REAL = "number"
    YES_NO = "true or false"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, which ends in its unit where it has one, its type, and what it means."""

    name: str
    type: Type
    meaning: str


COLUMNS = (
    Column("run", Type.TEXT, "which run: when it began, the host, and the seed"),
    Column("started", Type.TEXT, "when the run began, ISO 8601, UTC"),
    Column("collbench", Type.TEXT, "the version that measured"),
    Column("backend", Type.TEXT, "cuda, host, or sim: a machine that was only simulated"),
    Column("fabric", Type.TEXT, "the simulated machine's name; empty for a real one"),
    Column("hostname", Type.TEXT, "the machine"),
    Column("driver", Type.TEXT, "NVIDIA driver"),
    Column("cuda", Type.TEXT, "the newest CUDA that the driver supports"),
    Column("nccl", Type.TEXT, "version of the NCCL that was timed"),
    Column("nvls", Type.TEXT, "NVLink SHARP: on, off, possible or unknown"),
    Column("environment", Type.TEXT, "the NCCL variables that were set, as a shell writes them"),
    Column("command", Type.TEXT, "the command line after collbench"),
    Column("complete", Type.YES_NO, "the run was finished"),
    Column("operation", Type.TEXT, "what was timed (run-file.md)"),
    Column("variant", Type.TEXT, "how it ran: plain, in-place, both-ways, one-to-all, all-to-one, staged, host"),
    Column("numa_node", Type.WHOLE, "of a host copy the NUMA node of the host memory"),
    Column("world_size", Type.WHOLE, "of a collective its ranks"),
    Column("members", Type.TEXT, "the devices in the cell's order, with commas: GPU0,GPU1"),
    Column("source", Type.TEXT, "of a copy between two devices, or to or from the host, where the bytes come from"),
    Column("destination", Type.TEXT, "and where they go"),
    Column("gpu_names", Type.TEXT, "the members' product names, each once, with commas"),
    Column("gpu_uuids", Type.TEXT, "the members' UUIDs, with commas"),
    Column("label", Type.TEXT, "nvidia-smi's label of the path between two members"),
    Column("theory_gbs", Type.REAL, "GB/s; the limit of that path in one direction"),
    Column("dtype", Type.TEXT, "of a collective its element type"),
    Column("redop", Type.TEXT, "of a reduction its operation"),
    Column("root", Type.WHOLE, "of a rooted collective its root's rank"),
    Column("size_bytes", Type.WHOLE, "bytes; the message size as nccl-tests defines it"),
    Column("seconds", Type.REAL, "s; one iteration, median of the visits"),
    Column("launch_seconds", Type.REAL, "s; one call of the ungraphed launch loop, median of the visits"),
    Column("algbw_gbs", Type.REAL, "GB/s; bytes of all messages over the time"),
    Column("busbw_gbs", Type.REAL, "GB/s; algbw by the operation's factor"),
    Column("busbw_low_gbs", Type.REAL, "GB/s; the 95 % interval of busbw, from"),
    Column("busbw_high_gbs", Type.REAL, "GB/s; to"),
    Column("visits", Type.WHOLE, "how often the cell was measured"),
    Column("blocks", Type.WHOLE, "timed blocks of all visits"),
    Column("concurrent", Type.YES_NO, "other, disjoint devices were busy at the same time"),
    Column("stop", Type.TEXT, "why it was not measured further"),
    Column("flags", Type.TEXT, "what was wrong with the devices meanwhile, each once, with semicolons"),
    Column("limit_gbs", Type.REAL, "GB/s; what the hardware carries of this cell at most; empty where not known"),
    Column("impossible", Type.WHOLE, "timed blocks beyond 1.02 × that limit: their figures are wrong"),
    Column("failure", Type.TEXT, "why the cell was given up; such a row may have no figures"),
    Column("wrong", Type.WHOLE, "elements that failed verification; empty where nothing was verified"),
)
