#!/usr/bin/env python3
"""Times the calls that open GPUs: driver, NVML and NCCL's library, each number of GPUs in processes of its own.

    python benchmarks/driver_calls.py [--gpus 2,3,4] [--repeats N]

The calls are those of collbench's worker, in its order: contexts and modules of all GPUs at once, peer access of one
pair after the other. They are called through ctypes, so that none of collbench's code is timed. It prints the WAITS of
map_time.py: seconds of one call, and of all of them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from statistics import median
from typing import IO, Any, cast

GIB = 2**30


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call lasts."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def called(function: Any, *arguments: object) -> None:
    """Call a function of the driver. Raises SystemExit for an error."""
    if error := function(*arguments):
        raise SystemExit(f"{function.__name__}: error {error}")


def seconds_of_calls(gpus: int) -> dict[str, list[float]]:
    """Open so many GPUs in this process; return the seconds of each call, and of all that run at once together."""
    from collbench.machine.nccl import find_nccl
    from collbench.measurement.backends.cuda import shipped_ptx

    driver, ptx, found = ctypes.CDLL("libcuda.so.1"), shipped_ptx(), dict[str, list[float]]()
    devices = [ctypes.c_int(ordinal) for ordinal in range(gpus)]
    contexts = [ctypes.c_void_p() for _ in devices]
    modules = [ctypes.c_void_p() for _ in devices]

    def retain(ordinal: int) -> float:
        return timed(lambda: called(driver.cuDevicePrimaryCtxRetain, ctypes.byref(contexts[ordinal]), devices[ordinal]))

    def load(ordinal: int) -> float:
        called(driver.cuCtxSetCurrent, contexts[ordinal])
        return timed(lambda: called(driver.cuModuleLoadData, ctypes.byref(modules[ordinal]), ptx))

    def at_once(name: str, call: Callable[[int], float]) -> None:
        with ThreadPoolExecutor(gpus) as threads:
            begin = time.perf_counter()
            found[name] = list(threads.map(call, range(gpus)))
            found[f"{name}, all at once"] = [time.perf_counter() - begin]

    def possible(user: int, owner: int) -> float:
        answer = ctypes.c_int()
        return timed(lambda: called(driver.cuDeviceCanAccessPeer, ctypes.byref(answer), devices[user], devices[owner]))

    def enable(user: int, owner: int) -> float:
        called(driver.cuCtxSetCurrent, contexts[user])
        return timed(lambda: called(driver.cuCtxEnablePeerAccess, contexts[owner], 0))

    def allocate(ordinal: int) -> float:
        memory = ctypes.c_uint64()
        called(driver.cuCtxSetCurrent, contexts[ordinal])
        return timed(lambda: called(driver.cuMemAlloc_v2, ctypes.byref(memory), ctypes.c_size_t(GIB)))

    found["cuInit"] = [timed(lambda: called(driver.cuInit, 0))]
    for ordinal, device in enumerate(devices):
        called(driver.cuDeviceGet, ctypes.byref(device), ordinal)
    at_once("cuDevicePrimaryCtxRetain", retain)
    at_once("cuModuleLoadData", load)
    pairs = list(permutations(range(gpus), 2))
    found["cuDeviceCanAccessPeer"] = [possible(*pair) for pair in pairs]
    found["cuCtxEnablePeerAccess"] = [enable(*pair) for pair in pairs]
    found["cuMemAlloc of 1 GiB"] = [allocate(ordinal) for ordinal in range(gpus) for _ in range(3)]
    found["nvmlInitWithFlags"] = [timed(_start_nvml)]
    found["dlopen"] = [timed(lambda: find_nccl(os.environ.get("COLLBENCH_NCCL")))]
    return found


def _start_nvml() -> None:
    import pynvml

    pynvml.nvmlInit()


def in_a_process(gpus: int) -> dict[str, list[float]]:
    """Return what a process of its own finds, and how long it needs to leave the GPUs."""
    words = [sys.executable, __file__, "--of", str(gpus)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        line = cast("IO[str]", process.stdout).readline()
        leaving = timed(process.wait)
    if not line:
        raise SystemExit(f"{' '.join(words)} failed")
    found: dict[str, list[float]] = json.loads(line)
    return found | {"leaving": [leaving]}


def lines(runs: Iterable[dict[str, list[float]]]) -> list[str]:
    """Return a line for each kind of call, with medians over processes."""
    every = list(runs)
    rows = []
    for name in every[0]:
        calls = [second for one in every for second in one[name]]
        whole = median(sum(one[name]) for one in every)
        figures = f"one {median(calls):8.4f} s, longest {max(calls):8.4f} s, all {whole:8.4f} s"
        rows.append(f"    {name:<38} {len(every[0][name]):4} calls, {figures}")
    return rows


def main() -> None:
    """Print the seconds of all calls on each number of GPUs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", default="2,3,4", metavar="LIST", help="how many, of the first ones")
    parser.add_argument("--repeats", type=int, default=2, metavar="N")
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of:
        print(json.dumps(seconds_of_calls(options.of)), flush=True)
        os._exit(0)  # as the worker does, with all that is open
    for gpus in map(int, options.gpus.split(",")):
        print(f"{gpus} GPUs", *lines([in_a_process(gpus) for _ in range(options.repeats)]), sep="\n", flush=True)


if __name__ == "__main__":
    main()
