"""Reads collbench's run files (docs/run-file.md) as JSON, so that files of any version can be read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

# Operation, with its variant if that is neither plain nor host; members, or the GPU for host patterns; size in bytes.
Key = tuple[str, tuple[int, ...], int]
_ALL = ("host-all", "host-all-both-ways")
# The peers have no in-place, both-ways or fan copies in these parts.
_COMPARABLE = ("plain", "host", "host-both-ways", *_ALL, "local")


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds per iteration of a data point: the median trial's (collectives: graph replay), and the launch loop's."""

    seconds: float
    launch_seconds: float | None


@dataclass(frozen=True, slots=True)
class RunFile:
    """One run: its data points, NCCL's version, its seconds by phase, and `timed`, the seconds inside timed regions."""

    points: dict[Key, Times]
    nccl: str
    seconds: float
    phases: dict[str, float]
    timed: float


def load(path: Path) -> RunFile:
    """Read a run file. Raises OSError, ValueError or KeyError for a file that is not one."""
    run = json.loads(path.read_text(encoding="utf-8"))
    phases = {name: float(seconds) for name, seconds in run.get("phases", {}).items()}
    return RunFile(
        points=dict(_points(run)),
        nccl=run["machine"].get("nccl", ""),
        seconds=float(run["seconds"]),
        phases={name: seconds for name, seconds in phases.items() if name != "timed"},
        timed=phases.get("timed") or _estimate(run),
    )


def _points(run: dict[str, Any]) -> list[tuple[Key, Times]]:
    points = []
    for measurement in run["measurements"]:
        point, samples = measurement.get("point") or measurement["cell"], measurement["samples"]  # "cell" in version 1
        variant, members = point.get("variant", "plain"), tuple(point["members"])
        if not samples or variant not in _COMPARABLE or not _is_local(run, point, variant):
            continue
        launches = [s["launch_seconds"] for s in samples if s.get("launch_seconds") is not None]
        times = Times(
            seconds=median(median(sample["seconds"]) for sample in samples),
            launch_seconds=median(launches) if launches else None,
        )
        name = point["operation"] if variant in ("plain", "host") else f"{point['operation']} {variant}"
        points.append(((name, members[:1] if variant in _ALL else members, point["size_bytes"]), times))
    return points


def _is_local(run: dict[str, Any], point: dict[str, Any], variant: str) -> bool:
    """Return whether host memory is on the GPU's own NUMA node, as nvbandwidth's is."""
    node = point.get("numa_node")
    gpu_node = None if variant in _ALL else run["devices"][point["members"][0]].get("numa_node")
    return node is None or node == gpu_node


def _estimate(run: dict[str, Any]) -> float:
    """Return seconds inside timed regions, for a file without that phase.

    Pairs that were busy at the same time shared one region: with n devices, n // 2 of them (a directed link, too).
    """
    concurrent_pairs = max(1, len(run["devices"]) // 2)
    return float(
        sum(
            sample["iterations"] * sum(sample["seconds"]) / (concurrent_pairs if sample["concurrent"] else 1)
            for measurement in run["measurements"]
            for sample in measurement["samples"]
        )
    )
