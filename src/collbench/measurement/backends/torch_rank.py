"""A worker's side of torch_process.py: one rank joins the others and answers its parent until one of them is gone.

Started as `… -m MODULE FD RANK WORLD_SIZE BACKEND DEVICE FILE [HOST PORT PREFIX]`: FD is its end of the pipe, BACKEND
cuda or host, DEVICE the GPU's number among those that CUDA shows, or the core. The ranks meet in the open FILE, or in
the TCPStore at HOST. `gloo_worker` is such a module, and annexes have others.
"""

from __future__ import annotations

import os
import pathlib
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from collbench.machine import lifeline
from collbench.measurement.backends.torch_process import Joined
from collbench.model.errors import DataCorruption, MachineError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # dist.Store, whose name the types of torch.distributed lack


def _file_store(file: str, ranks: int) -> Store:
    """Return a store for ranks that share an open file, by its descriptor."""
    return dist.FileStore(f"/proc/self/fd/{file}", ranks)  # type: ignore[attr-defined]  # absent from __all__


def _tcp_store(host: str, port: str, prefix: str) -> Store:
    """Return the part called `prefix` of the store that another process serves at this address."""
    store = dist.TCPStore(host, int(port), is_master=False)  # type: ignore[attr-defined]  # likewise
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def joined(backend: str) -> Joined:
    """Return what this process has loaded."""
    release = str(torch.__version__)  # a plain one: unpickling torch's own kind of string would import torch
    if backend != "cuda":
        return Joined(release)
    nccl: Any = torch.cuda.nccl  # without types
    version = ".".join(map(str, nccl.version()))
    maps = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    path = next((line.split(maxsplit=5)[-1] for line in maps if "libnccl.so" in line), "")
    return Joined(release, version, path)


def run(arguments: list[str], make_rank: Callable[[int, int, Any], object], open_device: Callable[..., object]) -> None:
    """Join the world, and call methods of a rank until the parent closes the pipe, or is gone.

    `open_device` gets the backend and the device's number, `make_rank` the rank, the number of ranks and the device.
    What a method returns is the answer; if it raises DataCorruption or MachineError, the parent raises that, and may go
    on asking.
    """
    lifeline.leave_signals_to_parent()
    descriptor, rank, ranks = map(int, arguments[:3])
    backend, number = arguments[3], int(arguments[4])
    # This process may end at any moment, also in a collective. It ends by os._exit: FileStore's destructor would try to
    # remove its file, or abort where it cannot.
    lifeline.leave_with_parent(descriptor)
    if backend != "cuda":
        os.sched_setaffinity(0, {number})  # before there are other threads, which inherit the core
        torch.set_num_threads(1)
    device = open_device(backend, number)
    pipe: Connection[Any, Any] = Connection(descriptor)
    try:
        store = _tcp_store(*arguments[6:9]) if arguments[6:] else _file_store(arguments[5], ranks)
        # The groups that are timed are made of it; its own communicator is never used, so NCCL never starts for it.
        name = "nccl" if backend == "cuda" else "gloo"
        dist.init_process_group(name, store=store, rank=rank, world_size=ranks)
        pipe.send(joined(backend))
        made = make_rank(rank, ranks, device)
        while True:
            method, given = pipe.recv()
            try:
                answer = getattr(made, method)(*given)
            except (DataCorruption, MachineError) as error:
                answer = error
            pipe.send(answer)
    except (EOFError, ConnectionError):
        os._exit(0)  # at once, with all that is open: the driver takes back what CUDA and NCCL hold
    except BaseException:  # noqa: BLE001  # the parent reads the traceback's last line
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: NCCL's threads would wait for a rank that is gone
