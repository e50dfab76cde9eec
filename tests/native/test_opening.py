"""The extension finds, refuses and names the NVIDIA libraries that it opens at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.fakes import Fakes, build_without

# The first and the last of their tables.
_DRIVER_SYMBOLS = ("cuInit", "cuGraphDestroy")
_NCCL_SYMBOLS = ("ncclGetVersion", "ncclGroupEnd")


def test_without_a_driver_the_import_works_and_the_first_call_says_what_is_missing(
    fakes: Fakes, tmp_path: Path
) -> None:
    script = "report(**failure(native.list_gpus))"
    reported = fakes.script(script, {"LD_LIBRARY_PATH": str(tmp_path)}).reported

    assert reported["kind"] == "LibraryError"
    assert reported["text"].startswith("no NVIDIA driver: libcuda.so.1")


@pytest.mark.parametrize("symbol", _DRIVER_SYMBOLS)
def test_an_old_driver_is_refused_by_the_function_that_it_lacks(fakes: Fakes, tmp_path: Path, symbol: str) -> None:
    build_without(fakes, tmp_path, "libcuda.so.1", [symbol])

    reported = fakes.script("report(**failure(native.list_gpus))", {"LD_LIBRARY_PATH": str(tmp_path)}).reported

    assert reported["kind"] == "LibraryError"
    assert f"libcuda.so.1 has no function {symbol}: it is too old" in reported["text"]


def test_a_driver_that_does_not_start_is_an_error_and_is_tried_again_at_the_next_call(fakes: Fakes) -> None:
    script = "report(first=failure(native.list_gpus), then=len(native.list_gpus()))"
    reported = fakes.script(script, fail="cuInit:100:1", gpus=3).reported

    assert reported["first"]["kind"] == "CudaError"
    assert reported["first"]["text"] == (
        "the NVIDIA driver does not start: cuInit(0): CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"
    )
    assert reported["then"] == 3


def test_an_error_that_the_driver_cannot_name_still_shows_the_call(fakes: Fakes) -> None:
    reported = fakes.script("report(**failure(native.list_gpus))", fail="cuDeviceGetCount:12345:1").reported

    assert reported["text"].startswith("cuDeviceGetCount(&count): unknown error (no description) at gpus.cpp:")


def test_gpus_are_listed_with_their_identity_in_cuda_order(fakes: Fakes) -> None:
    script = "report(found=native.list_gpus())"
    visible = {"CUDA_VISIBLE_DEVICES": "2,GPU-fa4e00,GPU-fa4e03-is-none,1"}

    assert fakes.script(script, visible).reported["found"] == [
        "GPU-fa4e0200-0000-0000-0000-000000000002",
        "GPU-fa4e0000-0000-0000-0000-000000000000",
    ]


@pytest.mark.parametrize(
    ("title", "ptx", "fail", "text"),
    [
        ("it cannot be read", "BAD", "", "CUDA_ERROR_INVALID_IMAGE"),
        ("a kernel lacks", "PTX.replace('.entry verify(', '(')", "", "CUDA_ERROR_NOT_FOUND (named symbol not found)"),
        ("the second GPU refuses it", "PTX", "cuModuleLoadData:200:2", "CUDA_ERROR_INVALID_IMAGE"),
    ],
)
def test_kernels_that_do_not_load_are_an_error(fakes: Fakes, title: str, ptx: str, fail: str, text: str) -> None:
    settings = {"fail": fail} if fail else {}
    done = fakes.script(f"report(**failure(open_gpus, 2, ptx={ptx})); gc.collect()", **settings)

    assert done.reported["kind"] == "LibraryError", title
    assert done.reported["text"].startswith("the driver does not load collbench's kernels: cuModule"), title
    assert text in done.reported["text"], title
    assert done.leaks() == [], title


@pytest.mark.parametrize(
    ("title", "settings", "path", "text"),
    [
        ("a path where nothing is", {}, "/nowhere/libnccl.so.2", "NCCL cannot be opened at /nowhere/libnccl.so.2: "),
        ("no path, none loaded", {}, "", "no NCCL is loaded in this process"),
        ("a version without split", {"nccl": 21703}, None, "is version 2.17.3: collbench needs 2.18 or newer"),
        ("a version in the old form", {"nccl": 2804}, None, "is version 2804: collbench needs 2.18 or newer"),
    ],
)
def test_an_nccl_that_cannot_be_used_is_refused(
    fakes: Fakes, title: str, settings: dict[str, int], path: str | None, text: str
) -> None:
    nccl_path = str(fakes.nccl) if path is None else path
    reported = fakes.script(f"report(**failure(native.Nccl, {nccl_path!r}))", **settings).reported

    assert reported["kind"] == "LibraryError", title
    assert text in reported["text"], title


@pytest.mark.parametrize("symbol", _NCCL_SYMBOLS)
def test_an_nccl_is_refused_by_the_function_that_it_lacks(fakes: Fakes, tmp_path: Path, symbol: str) -> None:
    build_without(fakes, tmp_path, "libnccl.so.2", [symbol])

    reported = fakes.script(f"report(**failure(native.Nccl, {str(tmp_path / 'libnccl.so.2')!r}))").reported

    assert reported["kind"] == "LibraryError"
    assert f"libnccl.so.2 has no function {symbol}" in reported["text"]


def test_the_nccl_that_is_already_loaded_is_found_again(fakes: Fakes) -> None:
    script = """
        first = native.Nccl(os.environ["NCCL"])
        again = native.Nccl("")
        report(version=again.version, path=again.path)
    """
    reported = fakes.script(script, nccl=22803).reported

    assert reported == {"version": 22803, "path": str(fakes.nccl)}


def test_the_driver_starts_before_the_worker_is_asked_for_anything(fakes: Fakes) -> None:
    script = """
        import time
        from collbench.measurement.backends.isolated import IsolatedBackend
        backend = IsolatedBackend()
        backend.start()
        deadline = time.monotonic() + 30
        while not os.path.exists(os.environ["FAKE_LOG"]) and time.monotonic() < deadline:
            time.sleep(0.01)
        backend.reap()
    """
    assert fakes.script(script).lines("cuInit")


# The fake's calls wait for each other: side by side, or the test fails.
@pytest.mark.parametrize(
    ("title", "calls"),
    [
        ("NCCL's library and the contexts", "cuDevicePrimaryCtxRetain=2,dlopen=1"),
        ("NCCL's start and the buffers", "ncclCommInitRank=2,cuMemAlloc_v2=1"),
        ("NCCL's start and host memory that copies will read and write", "ncclCommInitRank=2,pinned buffer=1"),
    ],
)
def test_what_takes_long_is_opened_side_by_side(fakes: Fakes, title: str, calls: str) -> None:
    script = """
        from collbench.measurement.backends import factory
        from collbench.measurement.plan import Request
        from collbench.model.operations import Operation, Variant, Work
        works = (Work(Operation.ALLREDUCE),)
        opened = factory.open_backend(Request(backend="cuda", nccl=os.environ["NCCL"], collectives=works))
        for operation in (Operation.H2D_CE, Operation.D2H_CE, Operation.D2H_SM):
            assert all(opened.backend.can_run(Work(operation, Variant.HOST), (gpu,)) is None for gpu in range(2))
        opened.backend.reserve(1024)
        opened.backend.prepare(((0, 1),))
        opened.backend.ready()
        opened.close()
    """
    done = fakes.script(script, gpus=2, memory=2**32, free=1282 * 2**20, meet=calls)
    assert len(done.lines("meeting ")) >= 3, title


@pytest.mark.parametrize(
    ("title", "settings", "largest", "pinned"),
    [
        ("slow", {"slow": "pinned buffer=0.5"}, 1024, 4),
        # Opening pins 3 times: the second of the buffers fails.
        ("one is refused at first, and made by the copy that needs it", {"fail": "cuMemHostAlloc:2:5"}, 1024, 1),
        ("for large messages by the copies that need it, or the first step would wait for all", {}, 2**28 + 1, 0),
    ],
)
def test_no_step_runs_while_host_memory_is_pinned(
    fakes: Fakes, title: str, settings: dict[str, str], largest: int, pinned: int
) -> None:
    script = f"""
        from collbench.measurement.backends.cuda import CudaBackend, list_gpus
        from collbench.measurement.backends.protocol import Open, Step
        from collbench.model.operations import Operation, Variant, Work
        from collbench.model.run import Device
        backend = CudaBackend(Open(tuple(Device(at, uuid, "GPU") for at, uuid in enumerate(list_gpus()))), None)
        host = [Work(operation, Variant.HOST) for operation in (Operation.H2D_CE, Operation.D2H_CE)]
        copies = [(work, (gpu,)) for work in host for gpu in range(2)]
        assert not any(backend.can_run(*copy) for copy in copies)
        backend.reserve({largest})
        for work, members in ((Work(Operation.CE_WRITE), (0, 1)), *copies):
            backend.time(Step(work, (members,), 1024, 1, 1))
    """
    done = fakes.script(script, gpus=2, memory=2**33, **settings)
    lines = [line for line in done.log if line.startswith(("copy memcpy", "+pinned"))]
    first = next(number for number, line in enumerate(lines) if line.startswith("copy"))

    assert len([line for line in lines[:first] if line.startswith("+pinned")]) - 3 == pinned, title
    assert len([line for line in lines if line.startswith("+pinned")]) - 3 == 4, title


def test_the_kernels_of_all_gpus_are_loaded_at_once(fakes: Fakes) -> None:
    done = fakes.script("native.Gpus(list(range(4)), PTX)", meet="cuModuleLoadData=4")

    assert len(done.lines("+module ")) == 4
