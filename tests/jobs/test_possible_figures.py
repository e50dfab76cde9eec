"""Every figure on the page of an imported job is possible, whatever its traces lack: jobs that are made by chance."""

from __future__ import annotations

import io
import json
import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from collbench.jobs import job_file
from collbench.jobs.calls import report
from collbench.jobs.page import answers, as_json, page
from collbench.jobs.traces.folding import job_of
from collbench.jobs.traces.formats import parse

OPERATIONS = ("allreduce", "_allgather_base", "_reduce_scatter_base", "broadcast", "send", "recv", "all_to_all")
LITTLE = 2e-9  # s: a file has ns


def members_of(rank: int, ranks: int, group: str) -> list[int]:
    """Return the ranks of a group of all ranks, of neighbors, or of every second one."""
    if group == "all" or ranks == 2:
        return list(range(ranks))
    return [rank // 2 * 2, rank // 2 * 2 + 1] if group == "tp" else [rank % 2, rank % 2 + 2]


class Made:
    """The traces of a job: late ranks, clocks apart, kernels of groups that overlap, losses, kernels that were lost."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.ranks, self.kept = rng.choice([2, 4]), rng.choice([1, 1, 0.95, 0.5])
        self.marks = rng.random() < 0.7
        self.events: list[list[Any]] = [[] for _ in range(self.ranks)]
        self.free: dict[tuple[int, str], float] = defaultdict(float)  # when a rank's stream of a group is free
        self.late = [rng.choice([0, 0, rng.uniform(0, 500)]) for _ in range(self.ranks)]
        self.ahead = [rng.choice([0, rng.uniform(-200, 200)]) for _ in range(self.ranks)]  # of the GPU's clock
        clocks = [rng.choice([0, rng.uniform(-1e9, 1e9)]) for _ in range(self.ranks)]
        calls = [(rng.choice(OPERATIONS), rng.choice(["all", "tp", "dp"])) for _ in range(rng.randint(1, 5))]
        moment = 2e9
        for step in range(rng.randint(3, 14)):
            losses = [("allreduce", "all")] if step % 5 == 4 else []
            moment = self._step(step, moment, calls + losses) + rng.uniform(0, 300)
        for own, clock in zip(self.events, clocks, strict=True):
            for event in own:
                event["ts"] = round(event["ts"] + clock, 3)

    def _add(self, rank: int, name: str, start: float, lasted: float, category: str, **arguments: Any) -> None:
        thread = 1 if category in {"cpu_op", "user_annotation"} else 7
        event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "ts": start, "dur": lasted}
        self.events[rank].append({**event, "args": arguments})

    def _step(self, step: int, moment: float, calls: list[tuple[str, str]]) -> float:
        """Add a step from a moment on, and return when it ends."""
        rng, ends = self.rng, moment
        hosts = [moment + late * rng.random() for late in self.late]
        free = list(hosts)  # when each rank's GPU has computed what it was given
        for rank, start in enumerate(hosts):
            if self.marks:
                self._add(rank, f"ProfilerStep#{step}", start, 50.0, "user_annotation")
        for operation, group in calls:
            reached = []
            for rank in range(self.ranks):
                lasted = rng.uniform(5, 200)
                kind = rng.choice(["kernel"] * 9 + ["gpu_memcpy"])
                self._add(rank, "gemm", free[rank], lasted * rng.uniform(0.3, 1), kind, device=0)
                free[rank] += lasted
                reached.append(max(free[rank], self.free[rank, group]))
            moving = rng.uniform(3, 80)
            for rank in range(self.ranks):
                members = members_of(rank, self.ranks, group)
                end = max(reached[member] for member in members) + moving
                self.free[rank, group], ends = end, max(ends, end)
                hosts[rank] = max(hosts[rank] + 3, reached[rank] - rng.choice([3, 50]))
                self._call(
                    rank, operation, members, hosts[rank], (reached[rank] + self.ahead[rank], end - reached[rank])
                )
        return max([ends, *free])

    def _call(self, rank: int, operation: str, members: list[int], host: float, kernel: tuple[float, float]) -> None:
        number, peer = len(self.events[rank]) + 1, (members.index(rank) + 1) % len(members)
        about: dict[str, Any] = {
            "External id": number,
            "Collective name": operation,
            "dtype": "Float",
            "Group size": len(members),
        }
        about |= {"In msg nelems": 256, "Out msg nelems": 256, "Process Group Name": str(members)}
        about |= {"Process Group Ranks": str(members), "In split size": "[]", "Out split size": "[]"}
        about |= {"Dst Rank": peer, "Src Rank": peer}
        self._add(rank, "record_param_comms", host, 2.0, "cpu_op", **about)
        if self.rng.random() < self.kept:
            about = {"External id": number, "correlation": 10**6 + number, "device": 0}
            self._add(rank, "ncclDevKernel_X_RING_LL(", *kernel, "kernel", **about)

    def traces(self) -> list[bytes]:
        """Return the files, of which one may be missing."""
        files = [
            json.dumps({"traceEvents": own, "distributedInfo": {"rank": rank, "world_size": self.ranks}}).encode()
            for rank, own in enumerate(self.events)
        ]
        if self.rng.random() < 0.25:
            files.pop(self.rng.randrange(self.ranks))
        return files


def in_order(*seconds: float | None) -> bool:
    """True if no known figure is above one that follows."""
    known = [second for second in seconds if second is not None]
    return all(low <= high + LITTLE for low, high in pairwise(known))


@pytest.mark.parametrize("seeds", [range(15), range(15, 30)], ids=str)
def test_no_part_is_more_than_its_whole(seeds: range) -> None:
    for seed in seeds:
        traces = [parse(io.BytesIO(file), f"{number}.json") for number, file in enumerate(Made(seed).traces())]
        job = job_of(traces)
        assert job_file.loads(job_file.dumps(job), "job") == job, seed
        found = report(job)
        assert found is not None
        assert [*page(found)]
        assert "NaN" not in "".join(answers(found))
        shown = as_json(found)
        by_rank = {row["rank"]: row for row in shown["ranks"]}
        for row in shown["ranks"]:
            assert in_order(0.0, row["waiting_seconds"], row["kernels_seconds"], row["step_seconds"]), (seed, row)
        for call in shown["calls"]:
            kernel, transfer, exposed = (call[f"{name}_seconds"] for name in ("kernel", "transfer", "exposed"))
            waits = call["exposed_waiting_seconds"]
            assert in_order(transfer, kernel), (seed, call)
            assert in_order(0.0, waits, exposed, kernel), (seed, call)
            assert waits is None or in_order(waits, kernel - transfer), (seed, call)
        for gpu in shown["gpu"]:
            row = by_rank[gpu["rank"]]
            parts = [gpu[f"{name}_seconds"] for name in ("compute", "exposed", "copies", "idle")]
            assert sum(parts) == pytest.approx(gpu["step_seconds"]), (seed, gpu)
            assert min(parts) >= 0.0, (seed, gpu)
            assert in_order(gpu["overlapped_seconds"], gpu["compute_seconds"]), (seed, gpu)
            assert in_order(0.0, gpu["exposed_waiting_seconds"], gpu["exposed_seconds"]), (seed, gpu)
            if not gpu["whole"]:
                assert row["step_seconds"] is None or gpu["step_seconds"] == pytest.approx(row["step_seconds"]), seed
                assert in_order(gpu["exposed_seconds"], row["kernels_seconds"]), (seed, gpu, row)
                assert in_order(gpu["exposed_waiting_seconds"], row["waiting_seconds"]), (seed, gpu, row)
