"""Whichever call fails, the error names it, and everything that was created is released."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.native.fakes import Fakes, Outcome

_HEADERS = Path(__file__).parents[2] / "csrc"
# All that a session does, each call at least twice.
_EVERYTHING = """
def everything():
    native.list_gpus(), native.list_gpus()
    gpus = open_gpus(2)
    gpus.free_bytes()
    copies(gpus, [(0, 1)], batches=2)
    transfers(gpus, [[(-1, 0), (0, -1)]], batches=2)
    transfers(gpus, [[(0, 0)]], batches=2)
    chase(gpus, [(0, 1), (1, -1)], batches=2)
    held = session(gpus)
    try:
        for group in ([0, 1], [1, 0]):
            for operation in OPERATIONS:
                collective(held, [group], operation, iterations=1, in_place=operation == "allgather")
        collective(held, [[1]], launch_iterations=1)
        for registration in ("buffer", "window"):
            collective(held, [[0, 1]], registration=registration, launch_iterations=1)
    finally:
        held.close()
    for world in range(3):
        one = native.Gpus([world % 2], PTX)
        nccl = native.Nccl(os.environ["NCCL"])
        alone = native.Collectives(one, nccl, 0, 1, nccl.unique_id())
        alone.prepare([[0]])
        alone.close()
report(**failure(everything))
gc.collect()
"""
# Errors of these calls are ignored (releases), or the calls describe another error, or their errors have a meaning.
_RELEASES = {
    "cuDevicePrimaryCtxRelease_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuModuleUnload",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "ncclCommAbort",
    "ncclCommDeregister",
    "ncclCommWindowDeregister",
    "ncclMemFree",
}
_SPECIAL = {
    "cuInit",  # test_opening.py
    "cuGetErrorName",
    "cuGetErrorString",
    "cuCtxEnablePeerAccess",  # test_copying.py: some codes are no error
    "cuModuleLoadData",  # test_opening.py: the next image
    "cuModuleGetFunction",
    "ncclGetVersion",  # test_opening.py
    "ncclGetErrorString",
    "ncclGetLastError",
}


def _functions(header: str) -> list[str]:
    """Return the library functions that the extension looks up."""
    return re.findall(r"^  X\((\w+),", (_HEADERS / header).read_text(), re.MULTILINE)


def _failing(header: str) -> list[str]:
    return [name for name in _functions(header) if name not in _RELEASES | _SPECIAL]


def test_nothing_fails_and_nothing_leaks_when_no_call_fails(fakes: Fakes) -> None:
    done = fakes.script(_EVERYTHING)

    assert done.reported == {"kind": "none"}
    assert done.leaks() == []
    assert len(done.lines("+comm")) == len(done.lines("-comm"))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("function", _failing("driver.hpp"))
def test_a_failing_driver_call_is_named_and_leaks_nothing(fakes: Fakes, function: str, nth: int) -> None:
    done = fakes.script(_EVERYTHING, fail=f"{function}:719:{nth}")

    assert done.reported["kind"] == "CudaError"
    assert re.fullmatch(
        rf"{function}\(.*\): CUDA_ERROR_LAUNCH_FAILED \(unspecified launch failure\) at \w+\.[ch]pp:\d+",
        done.reported["text"],
    )
    assert done.leaks() == []
    assert len(done.lines("+comm")) == len(done.lines("-comm"))


@pytest.mark.parametrize("nth", [1, 2])
def test_a_failing_nccl_call_is_named_with_its_last_error_and_leaks_nothing(
    fakes: Fakes, tmp_path: Path, nth: int
) -> None:
    """Some at a time: the ranks that wait for one whose call failed are given up after a second."""

    def failed(function: str) -> Outcome:
        place = tmp_path / function
        place.mkdir()
        return replace(fakes, place=place).script(_EVERYTHING, fail=f"{function}:2:{nth}")

    functions = _failing("nccl.hpp")
    with ThreadPoolExecutor(10) as threads:
        outcomes = list(threads.map(failed, functions))
    for function, done in zip(functions, outcomes, strict=True):
        assert done.reported["kind"] == "NcclError", function
        assert re.fullmatch(
            rf"(rank \d of \d: .* failed: )?{function}(\(.*\))?: unhandled system error "
            r"\(the test wants this call to fail\) at \w+\.[ch]pp:\d+",
            done.reported["text"],
        )
        assert done.leaks() == [], function


@pytest.mark.parametrize("function", sorted(_RELEASES))
def test_a_failing_release_is_not_an_error(fakes: Fakes, function: str) -> None:
    done = fakes.script(_EVERYTHING, fail=f"{function}:719:1")

    assert done.reported == {"kind": "none"}
    assert function in done.log


@pytest.mark.parametrize("failing", ["cuEventRecord:719:2", "cuMemcpyPeerAsync:719:3", "cuLaunchKernel:719:5"])
def test_the_same_gpus_measure_again_after_a_copy_failed(fakes: Fakes, failing: str) -> None:
    script = """
        gpus = open_gpus(2)
        report(first=failure(copies, gpus, [(0, 1)])["kind"], then=copies(gpus, [(0, 1)]))
        del gpus; gc.collect()
    """
    done = fakes.script(script, fail=failing)

    assert done.reported["first"] == "CudaError"
    assert len(done.reported["then"][0]) == 1
    assert done.leaks() == []


@pytest.mark.parametrize(
    # Opening four GPUs launches four kernels; a batch of two links then calls for 6 launches, 12 copies, 6 events and
    # 4 waits, by two threads.
    ("title", "failing", "positions"),
    [
        ("the first call of a batch", "cuLaunchKernel:719:5", {1, 3}),
        ("another launch of it", "cuLaunchKernel:719:6", {0, 1, 2, 3}),
        ("the first call of the second batch", "cuLaunchKernel:719:11", {1, 3}),
        ("a wait", "cuStreamWaitEvent:719:3", {0, 1, 2, 3}),
        ("a copy", "cuMemcpyPeerAsync:719:7", {0, 2}),
        ("a copy of the second batch", "cuMemcpyPeerAsync:719:15", {0, 2}),
        ("an event of the second batch", "cuEventRecord:719:11", {0, 1, 2, 3}),
        # Two copies wake the links. The thread whose copy fails makes no other: the second failure is the other's.
        ("copies of both links", "cuMemcpyPeerAsync:719:3,cuMemcpyPeerAsync:719:3", {0, 2}),
    ],
)
def test_a_call_that_fails_in_one_of_two_links_threads_names_its_gpu_and_ends_both(
    fakes: Fakes, title: str, failing: str, positions: set[int]
) -> None:
    script = """
        gpus = open_gpus(4)
        links = [(0, 1), (2, 3)]
        failed = failure(copies, gpus, links, batches=3)
        held = session(gpus)
        report(failed=failed, then=copies(gpus, links, batches=2), collective=collective(held, [[0, 1], [2, 3]]))
        held.close()
        del held, gpus; gc.collect()
    """
    done = fakes.script(script, fail=failing)

    assert done.reported["failed"]["kind"] == "CudaError", title
    assert done.reported["failed"]["position"] in positions, title
    assert [len(batches) for batches in done.reported["then"]] == [2, 2], title  # and every byte of them was right
    assert [len(batches) for batches in done.reported["collective"][0]] == [1, 1], title
    assert done.leaks() == [], title


def test_a_copy_that_fails_in_a_round_of_its_own_names_its_gpu(fakes: Fakes) -> None:
    reported = fakes.script(
        "report(**failure(copies, open_gpus(2), [(1, 0)]))", fail="cuMemcpyPeerAsync:719:3"
    ).reported

    assert (reported["kind"], reported["position"]) == ("CudaError", 1)
