"""Every command on a machine with one GPU: what needs no second GPU is measured, the rest is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collbench.machine.kernel import usable_nodes
from tests.cli.program import on_gpus
from tests.native.fakes import Fakes, Outcome

_FREE = 1282 * 2**20
_ONE_NODE = pytest.mark.skipif(len(usable_nodes()) > 1, reason="host copies are timed for each NUMA node")


def _collbench(fakes: Fakes, *arguments: str, **settings: object) -> Outcome:
    return on_gpus(fakes, arguments, **{"gpus": 1, "free": _FREE} | settings)


def _measured(tmp_path: Path) -> dict[tuple[str, str], set[float]]:
    """Return the distinct batch times of each operation and variant, all of which are on the only GPU."""
    run: dict[str, Any] = json.loads((tmp_path / "run.json").read_text())
    assert len(run["devices"]) == 1
    assert run["complete"]
    assert {tuple(measurement["point"]["members"]) for measurement in run["measurements"]} == {(0,)}
    times: dict[tuple[str, str], set[float]] = {}
    for measurement in run["measurements"]:
        seconds = {round(s, 12) for sample in measurement["samples"] for s in sample["seconds"]}
        times.setdefault((measurement["point"]["operation"], measurement["point"]["variant"]), set()).update(seconds)
    return times


@_ONE_NODE
def test_host_and_local_copies_take_the_times_of_the_only_gpu(fakes: Fakes, tmp_path: Path) -> None:
    arguments = ("copies", "--patterns", "host,local", "--sizes", "64K", "-o", "run.json")
    done = _collbench(fakes, *arguments, host_rate=50, to_host_rate=25, local_rate=1000)
    assert done.code == 0, done.stderr
    times = _measured(tmp_path)
    assert {variant for _, variant in times} == {"host", "local"}
    # 1 µs, and 64 KiB at 50 and 25 GB/s; within the memory at 1,000.
    assert list(times["h2d-ce", "host"]) == pytest.approx([1e-6 + 65536 / 50e9])
    assert list(times["d2h-ce", "host"]) == pytest.approx([1e-6 + 65536 / 25e9])
    assert times["ce-write", "local"] == {1.065536e-6}
