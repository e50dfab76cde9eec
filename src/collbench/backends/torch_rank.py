"""One rank's process with torch.distributed: it joins the others and answers its parent until one of them is gone.

Started as `… -m MODULE FD RANK WORLD_SIZE KIND PLACE FOLDER`: KIND is cuda or host, PLACE the GPU's number among those
that CUDA shows, or the core, FD its end of the pipe. overlap_worker and replay_worker are such modules.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from collbench.backends.torch_process import Joined
from collbench.machine import lifeline

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # as in gloo_worker


Accelerator = TypeVar("Accelerator")


@dataclass(frozen=True, slots=True)
class RankProcess:
    """This process among the ranks, and its pipe to the parent."""

    rank: int
    ranks: int
    pipe: Connection[Any, Any]


def file_store(folder: pathlib.Path, ranks: int) -> Store:
    """Return a store for ranks that share a folder."""
    # Opened here: where the folder is gone, FileStore would wait 300 s for it (gloo_worker.py).
    file = os.open(folder / "rendezvous", os.O_RDWR | os.O_CREAT, 0o600)
    return dist.FileStore(f"/proc/self/fd/{file}", ranks)  # type: ignore[attr-defined]  # absent from __all__


def joined(kind: str) -> Joined:
    """Return what this process has loaded."""
    release = str(torch.__version__)  # a plain one: unpickling torch's own kind of string would import torch
    if kind != "cuda":
        return Joined(release)
    nccl: Any = torch.cuda.nccl  # without types
    version = ".".join(map(str, nccl.version()))
    maps = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    path = next((line.split(maxsplit=5)[-1] for line in maps if "libnccl.so" in line), "")
    return Joined(release, version, path)


def answer(process: RankProcess, answers: Mapping[type, Callable[[Any], object]]) -> None:
    """Answer requests, each by its type, until the pipe closes."""
    while True:
        request = process.pipe.recv()
        process.pipe.send(answers[type(request)](request))


def run(
    arguments: list[str],
    opened: Callable[[str, int], Accelerator],
    serve: Callable[[RankProcess, Accelerator], None],
) -> None:
    """Open the device by its kind and place, join the world, and serve until the parent closes the pipe, or is gone."""
    lifeline.leave_signals_to_parent()
    descriptor, number, ranks = map(int, arguments[:3])
    kind, device, folder = arguments[3], int(arguments[4]), pathlib.Path(arguments[5])

    def clean_up() -> None:
        shutil.rmtree(folder, ignore_errors=True)

    # At any moment, in the middle of a collective too: the parent may be killed before it could clean up.
    lifeline.leave_with_parent(descriptor, clean_up)
    if kind != "cuda":
        os.sched_setaffinity(0, {device})
    accelerator = opened(kind, device)
    pipe: Connection[Any, Any] = Connection(descriptor)
    # The groups that are timed are made of it; its own communicator is never used, so NCCL never starts for it.
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=file_store(folder, ranks), rank=number, world_size=ranks)
    try:
        pipe.send(joined(kind))
        serve(RankProcess(number, ranks, pipe), accelerator)
    except (EOFError, ConnectionError):
        clean_up()
        os._exit(0)  # at once, with all that is open: the driver takes back what CUDA and NCCL hold
    except BaseException:  # noqa: BLE001  # the parent reads the last line of it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: NCCL's threads would wait for a rank that is gone
