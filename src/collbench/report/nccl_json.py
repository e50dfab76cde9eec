"""A run as nccl-tests' JSON, version 3 (its -J), without the environment, which is the user's own business.

Keys, nesting and types are its: flags and verdicts are strings ("true"), so is `root`, six characters wide.
Source: nccl-tests 2.19.6, src/util.cu.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from collbench.model import Run
from collbench.report import nccl_words as words
from collbench.report.nccl_words import Half, Row, Table

_VERSION = 3
_Json = dict[str, Any]


def dumps(run: Run) -> str:
    """Return the JSON text: times in µs, rates in GB/s, times of day in UTC. Of several communicators all rows follow.

    `experiment_name` then says whose a row is. Raises UsageError without collectives.
    """
    found = words.tables(run)
    started = datetime.fromisoformat(run.started)
    document = {
        "version": _VERSION,
        "start_time": _clock(started),
        "args": ["collbench", *run.settings.command],
        "nccl_version": _version_code(run.machine.nccl),
        "config": _config(run, found),
        "results": [_result(run, table, row, many=len(found) > 1) for table in found for row in table.rows],
        "out_of_bounds": {
            "count": sum(table.errors for table in found),
            "okay": _flag(words.healthy(run, found)),
        },
        "average_bus_bandwidth": {"bandwidth": round(words.average_busbw(found), 6), "okay": "unchecked"},
        "errors": [*(failure for table in found for failure in table.failures), *_beyond(found)],
        "end_time": _clock(started + timedelta(seconds=run.seconds)),
    }
    return json.dumps(document) + "\n"


def _beyond(found: tuple[Table, ...]) -> Iterator[str]:
    yield from (f"IMPOSSIBLE: {beaten}" for table in found for beaten in table.impossible)


def _config(run: Run, found: tuple[Table, ...]) -> _Json:
    asked = words.settings(run, found[0])
    step, kind = asked.step
    return {
        "nthreads": asked.threads,
        "ngpus": 1,
        "minimum_bytes": asked.smallest,
        "maximum_bytes": asked.largest,
        f"step_{kind}": step,
        "warmup_iters": asked.warmup,
        "iterations": asked.iterations,
        "aggregated_iterations": 1,
        "validation": asked.validation,
        "graph": asked.graph,
        "blocking_collectives": _flag(False),
        "per_iter_timing": _flag(False),
        "per_iter_skip": 0,
        "parallel_init": _flag(False),
        "devices": [_device(run, table, rank) for table in found for rank in range(len(table.members))],
    }


def _device(run: Run, table: Table, rank: int) -> _Json:
    device = run.devices[table.members[rank]]
    return {
        "rank": rank,
        "group": table.group,
        "pid": 0,
        "hostname": words.hostname(run, device),
        "device": device.index,
        "device_hex": words.pci_address(device),
        "device_info": device.name,
    }


def _result(run: Run, table: Table, row: Row, *, many: bool) -> _Json:
    tags = " ".join(run.devices[member].tag for member in table.members)
    return {
        "size": row.size_bytes,
        "count": row.count,
        "type": row.dtype,
        "redop": row.redop,
        "root": f"{row.root:6d}",
        "out_of_place": _half(row.out_of_place),
        "in_place": _half(row.in_place),
        "actual_iterations": row.iterations,
        "experiment_name": f"{table.program} {tags}" if many else "",
    }


def _half(half: Half | None) -> _Json | None:
    if half is None:
        return None
    return {
        "time": round(half.microseconds, 6),
        "alg_bw": round(half.algbw, 6),
        "bus_bw": round(half.busbw, 6),
        "nwrong": None if half.wrong is None else float(half.wrong),
    }


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _clock(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _version_code(version: str) -> int:
    """Return NCCL's own number of its version, 22809 for "2.28.9", 0 where there is none [nccl.h, NCCL_VERSION]."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        return 0
    major, minor, patch = (int(part) for part in match.groups())
    return (major * 1000 + minor * 100 if (major, minor) <= (2, 8) else major * 10000 + minor * 100) + patch
