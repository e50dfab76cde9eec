"""Faults while measuring: each costs its data point, the sweep goes on, and the saved run reports it."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Program, on_gpus, one_line
from tests.native.fakes import Fakes, Outcome

# Two GPUs: every step has one link, so that a failed one is not tried again link by link.
_TWO = ("pairs", "--devices", "0,1", "--sizes", "1K", "--seed", "1", "-o", "run.json")
# Without collectives CUDA's own needs are all that must be left, and the buffers stay small.
_FOR_COPIES = (256 + 2) * 2**20
_KILLED, _SEGFAULT = int(signal.SIGKILL), int(signal.SIGSEGV)


def _measure(fakes: Fakes, *arguments: str, **settings: object) -> Outcome:
    return on_gpus(fakes, arguments or _TWO, gpus=2, **settings)


@pytest.fixture(scope="module")
def late(built_fakes: Fakes, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Which copy of a healthy worker comes after warming up and before the end."""
    healthy = replace(built_fakes, place=tmp_path_factory.mktemp("healthy"))
    return len(_measure(healthy).lines("cuMemcpyPeerAsync")) * 3 // 4


def _failed(tmp_path: Path) -> list[dict[str, Any]]:
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["complete"] is True
    return [measurement for measurement in run["measurements"] if measurement["stop"] == "failed"]


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ({"stuck": "{}={}"}, 4, "hang: no answer within"),
        ({"interrupt": "{}={}", "signal": _SEGFAULT}, 1, "the worker process died (signal 11, SIGSEGV)"),
        ({"fail": "{}:700:{}"}, 1, "cuMemcpyPeerAsync"),
    ],
    ids=["a call that never returns", "a segfault", "a sticky error"],
)
def test_a_fault_costs_its_point_and_is_on_the_page(
    fakes: Fakes, program: Program, tmp_path: Path, late: int, fault: dict[str, object], status: int, message: str
) -> None:
    settings = {name: str(value).format("cuMemcpyPeerAsync", late) for name, value in fault.items()}
    done = _measure(fakes, **settings, once=tmp_path / "once")

    assert done.code == status
    assert done.stdout.startswith("FAILED: GPU1→GPU0: 1 data point, ")
    assert one_line(done.stderr) == done.stdout.splitlines()[0]
    (failed,) = _failed(tmp_path)
    assert failed["point"]["operation"] in ("ce-write", "ce-read")
    assert failed["failure"]["kind"] in ("hang", "crash", "error")
    assert message in done.stdout
    shown = program("show", str(tmp_path / "run.json"))
    assert shown.status == 0
    assert done.stdout.startswith(shown.out)


@pytest.mark.parametrize("nth", [1, 40])
def test_a_step_that_began_before_a_stopped_host_had_queued_it_is_measured_again(
    fakes: Fakes, tmp_path: Path, nth: int
) -> None:
    """A blocking kernel waits for 4 s: whoever stops all processes for longer has broken no GPU."""
    done = _measure(fakes, block_expires=nth)
    assert done.code == 0, done.stderr
    assert _failed(tmp_path) == []


def test_a_fault_of_concurrent_links_costs_nothing_where_each_link_works_by_itself(
    fakes: Fakes, tmp_path: Path
) -> None:
    arguments = ("pairs", "--quick", "--operations", "copy", "--sizes", "1K", "--seed", "1")
    late = len(on_gpus(fakes, (*arguments, "-o", "healthy.json")).lines("cuMemcpyPeerAsync")) * 3 // 4
    settings = {"interrupt": f"cuMemcpyPeerAsync={late}", "signal": _KILLED, "once": tmp_path / "once"}
    done = on_gpus(fakes, (*arguments, "-o", "run.json"), None, **settings)

    assert done.code == 0, done.stderr
    assert _failed(tmp_path) == []


def test_an_nccl_that_does_not_start_costs_only_collectives(fakes: Fakes, tmp_path: Path) -> None:
    done = _measure(fakes, fail="ncclCommInitRank:2:1")

    assert done.code == 1, done.stderr
    failed = _failed(tmp_path)
    assert {measurement["point"]["operation"] for measurement in failed} == {"allreduce", "broadcast"}
    causes = {(measurement["failure"]["because"] or measurement["failure"])["cause"] for measurement in failed}
    assert causes == {"no NCCL communicator"}
    assert "unhandled system error" in done.stdout


def test_when_every_point_fails_it_ends_with_a_page_one_line_and_a_file(fakes: Fakes, tmp_path: Path) -> None:
    arguments = ("pairs", "--devices", "0,1", "--operations", "copy", "--sizes", "1K", "-o", "run.json")
    done = _measure(fakes, *arguments, fail="cuEventRecord:700:1", free=_FOR_COPIES)

    assert done.code == 1
    assert done.stdout.startswith("FAILED: GPU")
    reported = one_line(done.stderr)
    assert reported.startswith("measuring stops: 4 data points in a row failed; last error, GPU")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in reported
    assert "saved as run.json" in reported
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["complete"] is False
    assert {measurement["stop"] for measurement in run["measurements"]} == {"failed"}


def test_the_only_point_that_fails_is_no_success(fakes: Fakes) -> None:
    arguments = ("allreduce", "--devices", "0,1", "--sizes", "1K", "--output", "run.json")
    done = _measure(fakes, *arguments, fail="ncclCommInitRank:2:1")

    assert done.code == 1
    assert done.stdout.startswith("FAILED: GPU0-GPU1: 1 data point, error\n")
    assert one_line(done.stderr).startswith("nothing could be measured: GPU0-GPU1: ")
    assert "unhandled system error" in done.stderr


def test_the_process_that_prints_the_page_never_loads_cuda_or_nccl(fakes: Fakes) -> None:
    script = """
        from collbench.cli import main
        sys.argv = ["collbench", *json.loads(os.environ["WORDS"])]
        status = main()
        mapped = open("/proc/self/maps").read()
        libraries = ("libcuda.so", "libnccl.so", "libnvidia-ml.so")
        report(status=status, loaded=[name for name in libraries if name in mapped])
    """
    extra = {"WORDS": json.dumps(_TWO), "COLLBENCH_NCCL": str(fakes.nccl)}
    reported = fakes.script(script, extra, gpus=2, free=(256 + 1024 + 2) * 2**20, memory=4 * 2**30).reported
    assert reported == {"status": 0, "loaded": ["libnvidia-ml.so"]}
