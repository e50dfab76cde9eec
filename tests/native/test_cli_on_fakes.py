"""The whole command line on simulated GPUs: real extension, real NVML binding, no GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from collbench.machine.kernel import usable_nodes
from tests.cli.program import on_gpus
from tests.native.fakes import Fakes

_MIB = 2**20
_FREE_FOR_COPIES = 258 * _MIB
_QUICK = ("--sizes", "16K", "--verbose", "--output", "run.json")


def _run_file(tmp_path: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads((tmp_path / "run.json").read_text())
    return run


def _seconds(run: dict[str, Any], operation: str, members: list[int], size: int, variant: str = "plain") -> set[float]:
    """Return the distinct batch times of one data point."""
    for measurement in run["measurements"]:
        point = {"operation": operation, "members": members, "size_bytes": size, "variant": variant, "numa_node": None}
        if measurement["point"] == point | {"registration": "none", "skew": None}:
            return {round(s, 12) for sample in measurement["samples"] for s in sample["seconds"]}
    raise AssertionError(f"{operation} on {members} at {size} was not measured")


def test_pairs_measures_every_link_ranks_the_slow_pair_last_and_saves_the_times_that_the_gpus_took(
    fakes: Fakes, tmp_path: Path
) -> None:
    done = on_gpus(fakes, ("pairs", "--backend", "cuda", *_QUICK), rate="100,1-3=10", lag="0,2=1e-6")

    assert done.code == 0, done.stderr
    assert "backend   cuda" in done.stdout
    assert "4 × Fake GPU (sim)" in done.stdout
    assert "NCCL      2.28.9" in done.stdout
    assert "verified  all of the bytes moved" in done.stdout
    assert "GPU1  NV18  X     NV18  NV18" in done.stdout
    order = [line.split()[1] for line in done.stdout.splitlines() if line[:1].isdigit() and "-" in line.split()[1]]
    assert len(order) == 6
    assert order[-1] == "GPU1-GPU3"
    best = next(line for line in done.stdout.splitlines() if line.startswith("best 2"))
    assert not ("GPU1" in best and "GPU3" in best)
    run = _run_file(tmp_path)
    assert (run["backend"], run["complete"], run["skipped"]) == ("cuda", True, [])
    # 1 µs, and 16,384 bytes at 100 or 10 GB/s; kernels reach 0.9 of it.
    assert _seconds(run, "ce-write", [0, 1], 16384) == {1.16384e-6}
    assert _seconds(run, "ce-read", [3, 1], 16384) == {2.6384e-6}
    assert _seconds(run, "sm-write", [1, 0], 16384) == {1.182044e-6}
    # 5 µs, as much traffic for a pair's all-reduce, and 1 µs more where GPU 2 lags.
    assert _seconds(run, "allreduce", [0, 1], 16384) == {5.16384e-6}
    assert _seconds(run, "broadcast", [0, 2], 16384) == {6.16384e-6}


_SIZE = 65536
_HOST = ("copies", "--backend", "cuda", "--sizes", "64K", "--devices", "0,2", "--verbose", "--output", "run.json")
_HOST_PATTERNS = "host,host-both-ways,host-all,host-all-both-ways,local"


@pytest.mark.skipif(len(usable_nodes()) > 1, reason="host copies are timed for each NUMA node of this machine")
def test_host_copies_are_timed_isolated_and_concurrently(fakes: Fakes, tmp_path: Path) -> None:
    rates = {"host_rate": "50,2=40", "to_host_rate": "25,2=20", "local_rate": 1000, "free": _FREE_FOR_COPIES}
    done = on_gpus(fakes, (*_HOST, "--patterns", _HOST_PATTERNS), **rates)
    assert done.code == 0, done.stderr
    run = _run_file(tmp_path)
    points = {(m["point"]["operation"], m["point"]["variant"], *m["point"]["members"]) for m in run["measurements"]}
    for operation in ("h2d-ce", "d2h-ce", "h2d-sm", "d2h-sm"):
        assert {("host", 0), ("host-both-ways", 1), ("host-all", 0, 1), ("host-all-both-ways", 1, 0)} <= {
            point[1:] for point in points if point[0] == operation
        }
    # 1 µs, and 64 KiB at 50 and 25 GB/s in and out, on the second GPU at 40 and 20; none has the other's time.
    for variant, first, second in (
        ("host", [0], [1]),
        ("host-both-ways", [0], [1]),
        ("host-all", [0, 1], [1, 0]),
        ("host-all-both-ways", [0, 1], [1, 0]),
    ):
        for operation, members, gbs in (
            ("h2d-ce", first, 50), ("d2h-ce", first, 25), ("h2d-ce", second, 40), ("d2h-ce", second, 20),
        ):  # fmt: skip
            (seconds,) = _seconds(run, operation, members, _SIZE, variant)
            assert seconds == pytest.approx(1e-6 + _SIZE / gbs / 1e9, rel=1e-6), (variant, operation, members)
    assert _seconds(run, "ce-write", [0], _SIZE, "local") == {1.065536e-06}
    assert "host      both at once: h2d 100%, d2h 100%; both ways h2d 100%, d2h 100% of isolated" in done.stdout
    assert not any(measurement["samples"][0]["concurrent"] for measurement in run["measurements"])


@pytest.mark.skipif(len(usable_nodes()) > 1, reason="host copies are timed for each NUMA node of this machine")
def test_a_host_copy_that_outlasts_the_load_beside_it_fails_by_name_and_the_others_are_measured(
    fakes: Fakes, tmp_path: Path
) -> None:
    arguments = ("copies", "--backend", "cuda", "--sizes", "64K", "--devices", "0,2", "--output", "run.json")
    settings = {"host_rate": "50,2=10", "free": _FREE_FOR_COPIES}
    done = on_gpus(fakes, (*arguments, "--patterns", "host,host-all"), **settings)

    assert done.code == 1, done.stderr
    assert done.stdout.splitlines()[0] == "FAILED: GPU2: 4 data points, error"
    assert "h2d-ce host-all of 64K on GPU2-GPU0 failed: three times the load on GPU0 ended" in " ".join(
        done.stdout.split()
    )
    run = _run_file(tmp_path)
    failed = {(m["point"]["operation"], *m["point"]["members"]) for m in run["measurements"] if m["failure"]}
    assert failed == {(operation, 1, 0) for operation in ("h2d-ce", "d2h-ce", "h2d-sm", "d2h-sm")}
    assert not [m for m in run["measurements"] if not m["failure"] and not m["samples"]]
    assert {m["failure"]["cause"] for m in run["measurements"] if m["failure"]} == {"load ended first"}
    assert len(done.lines("+context")) == 2  # one worker


def test_chosen_devices_are_found_by_uuid_whatever_cudas_order(fakes: Fakes, tmp_path: Path) -> None:
    plan = {"CUDA_VISIBLE_DEVICES": "2,1,0", "COLLBENCH_NCCL": str(fakes.nccl)}
    command = [sys.executable, "-m", "collbench", "pairs", "--backend", "cuda", "--devices", "0,2", *_QUICK]
    free = 1282 * _MIB  # two GPUs leave room for fewer communicators
    done = fakes.run(command, plan, memory=4096 * _MIB, free=free, rate="100,0-2=50")
    run = _run_file(tmp_path)

    assert done.code == 0, done.stderr
    assert [device["index"] for device in run["devices"]] == [0, 2]
    assert run["machine"]["gpus"] == 4
    # 16,384 bytes at 50 GB/s: only that pair is so slow.
    assert _seconds(run, "ce-write", [0, 1], 16384) == {1.32768e-6}
    assert done.lines("copy ") == [
        line for line in done.lines("copy ") if " from 0 to 2 " in line or " 2 to 0 " in line
    ]


def test_reads_by_kernels_that_a_cache_would_serve_are_skipped(fakes: Fakes, tmp_path: Path) -> None:
    done = on_gpus(fakes, ("pairs", "--backend", "cuda", *_QUICK), gpus=2, l2=60 * 10**6)
    assert done.code == 0, done.stderr
    assert "are free for a buffer, too little compared with the cache of the reading device" in done.stdout
    assert {m["point"]["operation"] for m in _run_file(tmp_path)["measurements"]} == {
        *("ce-write", "ce-read", "sm-write", "allreduce", "broadcast")
    }


def test_a_wrong_byte_ends_the_run_with_the_link_and_exit_status_4(fakes: Fakes, tmp_path: Path) -> None:
    done = on_gpus(fakes, ("pairs", "--backend", "cuda", *_QUICK), corrupt_copy="700:17:2>1")

    assert done.code == 4
    assert "wrong data" in done.stderr
    assert "GPU2 → GPU1" in done.stderr
    assert "byte 17" in done.stderr
    run = _run_file(tmp_path)
    assert run["complete"] is False
    assert run["skipped"][-1]["wrong"]["members"] == [2, 1]  # also in the run file


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        pytest.param(
            {"corrupt_collective": "4:3:2"}, "GPU2 among GPU0, GPU1, GPU2, GPU3", id="a wrong element, with its GPU"
        ),
        pytest.param({"stale": "previous"}, "", id="earlier results"),
    ],
)
def test_wrong_data_of_a_collective_ends_the_run_with_exit_status_4(
    fakes: Fakes, fault: dict[str, object], where: str
) -> None:
    done = on_gpus(fakes, ("allreduce", "--backend", "cuda", *_QUICK), **fault)

    assert done.code == 4
    assert "wrong data: allreduce" in done.stderr
    assert where in done.stderr


def test_a_refused_peer_access_costs_its_link_and_is_the_first_line(fakes: Fakes, tmp_path: Path) -> None:
    arguments = ("pairs", "--backend", "cuda", "--sizes", "16K", "--output", "run.json")
    done = on_gpus(fakes, arguments, gpus=3, refuse_peer="0,1>2=719")

    assert done.code == 3, done.stderr  # NVML calls the access possible, too: a contradiction
    # Written by GPU1, or read by it, by either engine.
    assert done.stdout.splitlines()[0] == "FAILED: GPU1-GPU2: 4 data points, P2P refused by the driver"
    reason = "the driver refused the peer access that it had called possible: cuCtxEnablePeerAccess(GPU 1 for memory of"
    assert reason in done.stdout.replace("\n", " ")
    run = _run_file(tmp_path)
    assert run["complete"] is True
    refused = {(skip["kind"], skip["work"]["operation"], *skip["members"]) for skip in run["skipped"]}
    assert refused == {
        ("peer access refused", f"{engine}-{way}", *link)
        for engine in ("ce", "sm")
        for way, link in (("write", (1, 2)), ("read", (2, 1)))
    }
    assert not [measurement for measurement in run["measurements"] if measurement["failure"]]
    for operation, members in (("ce-write", [2, 1]), ("sm-read", [1, 2]), ("allreduce", [1, 2]), ("ce-read", [0, 2])):
        assert _seconds(run, operation, members, 16384), (operation, members)


def test_a_driver_without_devices_is_one_clear_line(fakes: Fakes, tmp_path: Path) -> None:
    no_device = ",".join(f"cuDeviceGetCount:100:{n}" for n in (1, 2, 3))
    done = on_gpus(fakes, ("pairs", "--backend", "cuda", *_QUICK), fail=no_device)

    assert done.code in (1, 2)
    assert "NO_DEVICE" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "run.json").exists()


def test_closing_waits_until_the_worker_has_ended(fakes: Fakes) -> None:
    """Otherwise `collbench pairs && collbench train` may take the ending worker for another user's job."""
    script = """
        import os
        from collbench.measurement.backends import factory as opening
        from collbench.measurement.plan import Request
        opened = opening.open_backend(Request(backend="cuda"))
        workers = opened.backend.process_ids
        opened.close()
        report(workers=len(workers), left=[worker for worker in workers if os.path.exists(f"/proc/{worker}")])
    """
    reported = fakes.script(script, memory=4096 * _MIB, free=2306 * _MIB).reported

    assert (reported["workers"], reported["left"]) == (1, [])


def test_a_run_records_the_variables_of_cuda(fakes: Fakes, tmp_path: Path) -> None:
    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "CUDA_VISIBLE_DEVICES": "0,1", "CUDA_HOME": "/home/somebody"}
    done = on_gpus(fakes, ("allreduce", "--backend", "cuda", *_QUICK), variables, gpus=2)
    assert done.code == 0, done.stderr
    run = _run_file(tmp_path)
    assert run["settings"]["environment"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert "CUDA_HOME" not in run["settings"]["environment"]
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in done.stdout
