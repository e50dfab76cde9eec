"""Whichever call fails, the error names it, and everything that was made is released."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.native.fakes import Fakes

_HEADERS = Path(__file__).parents[2] / "csrc"
# All that a session does, each call at least twice.
_EVERYTHING = """
def everything():
    native.list_gpus(), native.list_gpus()
    gpus = open_gpus(2)
    gpus.free_bytes()
    copies(gpus, [(0, 1)], blocks=2)
    held = session(gpus)
    try:
        for group in ([0, 1], [1, 0], [1], [0]):
            collective(held, [group])
            collective(held, [group], broadcast=True)
    finally:
        held.close()
say(**failure(everything))
gc.collect()
"""
# Called where nobody could be told (releases), to describe another error, or with a meaning of their own.
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
}
_SPECIAL = {
    "cuInit",  # test_opening.py
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuCtxEnablePeerAccess",  # test_copying.py: no error
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


def test_nothing_fails_and_nothing_leaks_when_no_call_fails(fakes: Fakes, tmp_path: Path) -> None:
    done = fakes.script(_EVERYTHING, tmp_path)

    assert done.said == {"kind": "none"}
    assert done.leaks() == []
    assert len(done.lines("+comm")) == len(done.lines("-comm"))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("function", _failing("driver.hpp"))
def test_a_failing_driver_call_is_named_and_leaks_nothing(
    fakes: Fakes, tmp_path: Path, function: str, nth: int
) -> None:
    done = fakes.script(_EVERYTHING, tmp_path, fail=f"{function}:719:{nth}")

    assert done.said["kind"] == "CudaError"
    assert re.fullmatch(
        rf"{function}\(.*\): CUDA_ERROR_LAUNCH_FAILED \(unspecified launch failure\) at \w+\.[ch]pp:\d+",
        done.said["text"],
    )
    assert done.leaks() == []
    assert len(done.lines("+comm")) == len(done.lines("-comm"))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("function", [name for name in _failing("nccl.hpp") if name != "ncclCommInitAll"])
def test_a_failing_nccl_call_is_named_with_its_last_error_and_leaks_nothing(
    fakes: Fakes, tmp_path: Path, function: str, nth: int
) -> None:
    done = fakes.script(_EVERYTHING, tmp_path, fail=f"{function}:2:{nth}")

    assert done.said["kind"] == "NcclError"
    assert re.fullmatch(
        rf"{function}(\(.*\))?: unhandled system error \(the test wants this call to fail\) at \w+\.[ch]pp:\d+",
        done.said["text"],
    )
    assert done.leaks() == []


def test_nccl_that_does_not_start_is_named_with_its_last_error(fakes: Fakes, tmp_path: Path) -> None:
    done = fakes.script(_EVERYTHING, tmp_path, fail="ncclCommInitAll:2:1")

    assert done.said["text"].startswith("ncclCommInitAll(")
    assert "unhandled system error (the test wants this call to fail) at communicators.cpp:" in done.said["text"]
    assert done.leaks() == []


@pytest.mark.parametrize("function", sorted(_RELEASES))
def test_a_failing_release_is_not_an_error(fakes: Fakes, tmp_path: Path, function: str) -> None:
    done = fakes.script(_EVERYTHING, tmp_path, fail=f"{function}:719:1")

    assert done.said == {"kind": "none"}
    assert function in done.log


@pytest.mark.parametrize("failing", ["cuEventRecord:719:2", "cuMemcpyPeerAsync:719:3", "cuLaunchKernel:719:5"])
def test_the_same_gpus_measure_again_after_a_copy_failed(fakes: Fakes, tmp_path: Path, failing: str) -> None:
    script = """
        gpus = open_gpus(2)
        say(first=failure(copies, gpus, [(0, 1)])["kind"], then=copies(gpus, [(0, 1)]))
        del gpus; gc.collect()
    """
    done = fakes.script(script, tmp_path, fail=failing)

    assert done.said["first"] == "CudaError"
    assert len(done.said["then"][0]) == 1
    assert done.leaks() == []
