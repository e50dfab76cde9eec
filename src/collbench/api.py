"""collbench from Python: choose GPUs inside a training program, and judge saved runs. Documented in docs/python.md."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.model.errors import BackendError, DataCorruption, UsageError
from collbench.model.errors import CollbenchError as Error

if TYPE_CHECKING:
    from collbench.analysis.diagnose import Verdict
    from collbench.analysis.select import Selection
    from collbench.analysis.tiers import LinkRanking
    from collbench.model.run import Run

__all__ = ["Error", "check", "load", "rank", "select"]

_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED [cuda.h]: nobody in this process has called cuInit
_ERRORS: dict[int, type[Error]] = {1: BackendError, 4: DataCorruption}


def select(
    k: int,
    *,
    run: str | os.PathLike[str] | None = None,
    exclude: Iterable[int | str] = (),
    allow_busy: bool = False,
    verify: bool | None = None,
    size: int | str | None = None,
    fresh: bool = False,
) -> Selection:
    """Choose this machine's best `k` GPUs, set CUDA_VISIBLE_DEVICES to them, and return them with the reasons.

    The options are those of `collbench select`: `run` a run file to choose from, `exclude` indices or UUIDs, `verify`
    None where the choice matters, `size` in bytes or as "64M". Call it before CUDA starts in this process. What has to
    be measured, a child process measures. Raises Error; where it raises, the environment is untouched.
    """
    _check_alone()
    _check_cuda_is_down()
    words = ["select", str(k), "--format", "json", "--backend", "cuda"]
    words += [] if run is None else ["--from", os.fspath(run)]
    excluded = ",".join(map(str, exclude))
    words += ["--exclude", excluded] if excluded else []
    words += ["--allow-busy"] * allow_busy + ["--fresh"] * fresh
    words += [] if verify is None else ["--verify" if verify else "--no-verify"]
    words += [] if size is None else ["--size", str(_bytes(size))]
    selection = _parse(_collbench(words))
    os.environ.update(selection.environment)
    return selection


def load(path: str | os.PathLike[str]) -> Run:
    """Return the run in a file that collbench saved, of any machine. Raises Error."""
    from collbench.runfile import run_file

    return run_file.load(Path(path))


def rank(
    run: Run,
    operation: str = "allreduce",
    size: int | str | None = None,
    *,
    variant: str = "plain",
    numa_node: int | None = None,
) -> LinkRanking | None:
    """Return a run's links in tiers: directed ones of a copy, pairs of a collective; None where none was measured.

    `operation` and `variant` are words of docs/run-file.md, `size` is in bytes or as --sizes has it ("64M"), None for
    the largest. `numa_node` is of the host memory in host copies, where the run has several. Raises Error, also for a
    size at which links were not measured while they were at others.
    """
    from collbench.analysis.tiers import rank_links
    from collbench.model.operations import Operation, Variant, Work
    from collbench.model.units import format_size

    _check_run(run, "rank")
    wanted = None if size is None else _bytes(size)
    try:
        work = Work(Operation(operation), Variant(variant), numa_node)
    except ValueError as error:
        raise UsageError(f"cannot rank: {error}; docs/run-file.md lists operations and variants") from None
    cells = [found.cell for found in run.measured(work.variant) if found.cell.work == work]
    sizes = {cell.size_bytes for cell in cells if len(cell.members) <= 2}  # a communicator of more is no link
    if not sizes:
        return None
    if wanted is not None and wanted not in sizes:
        there = ", ".join(map(format_size, sorted(sizes)))
        raise UsageError(f"cannot rank {work} at {format_size(wanted)}: the run has {there}")
    return rank_links(run, work, max(sizes) if wanted is None else wanted)


def check(run: Run) -> tuple[Verdict, ...]:
    """Return what is wrong or worth knowing about a run's machine, as `collbench check` prints it. Raises Error."""
    from collbench.analysis.diagnose import judge

    _check_run(run, "check")
    return judge(run)


def _check_run(given: object, what: str) -> None:
    """Raise UsageError for what is no run: most often the name of its file."""
    from collbench.model.run import Run

    if not isinstance(given, Run):
        advice = "collbench.load returns one"
        if isinstance(given, str | os.PathLike):
            advice = f"write collbench.{what}(collbench.load({os.fspath(given)!r}))"
        raise UsageError(f"cannot {what} a {type(given).__name__}: it is no run; {advice}")


def _bytes(size: object) -> int:
    """Return a size in bytes, given as a number of them or in words. Raises UsageError."""
    from collbench.model.units import parse_size

    if isinstance(size, str):
        return parse_size(size)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UsageError(f"size {size!r} is not a number of bytes: write 67108864 or '64M'")
    return size


def _check_alone() -> None:
    """Raise UsageError in one of several processes, which would each choose for themselves, and be one another's load.

    In one of them CUDA_VISIBLE_DEVICES would come too late for the others, too.
    """
    from collbench.distributed.launchers import find_place

    place = find_place(os.environ)
    if place is not None:
        raise UsageError(
            f"collbench.select was called in one of {place.world_size} processes that {place.launcher} started, and "
            "each would choose for itself: choose before they start, with 'collbench train' or 'collbench select'"
        )


def _check_cuda_is_down() -> None:
    """Raise UsageError where CUDA has started here: it reads CUDA_VISIBLE_DEVICES only then."""
    who = _cuda_user()
    if who:
        raise UsageError(
            f"collbench.select came too late: {who} in this process, and CUDA reads CUDA_VISIBLE_DEVICES only when it "
            "starts; call it before anything uses a GPU"
        )


def _cuda_user() -> str:
    """Return who started CUDA in this process, as a clause; "" where nobody did.

    torch.cuda.is_available() may have: then the driver knows, and torch does not. RTLD_NOLOAD looks at the driver only
    if it is loaded, and asking it how many devices there are starts nothing.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "torch has started CUDA"
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return ""
    status = driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    return "" if status == _NOT_INITIALIZED else "CUDA has started"


def _collbench(words: list[str]) -> str:
    """Return what the program prints, run in a child process. Raises Error with its line."""
    command = [sys.executable, "-P", "-m", "collbench", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    told = done.stderr.strip().splitlines() or [f"'{' '.join(command)}' ended with status {done.returncode}"]
    raise _ERRORS.get(done.returncode, UsageError)(told[-1].removeprefix("collbench: "))


def _parse(text: str) -> Selection:
    from collbench.analysis.select import Selection
    from collbench.runfile.codec import build

    try:
        selection: Selection = build(Selection, json.loads(text), "selection")
    except ValueError as error:
        raise BackendError(f"'collbench select' answered what cannot be read: {error}; report this") from error
    return selection
