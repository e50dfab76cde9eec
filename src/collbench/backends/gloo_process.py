"""The gloo workers' tasks: a step as a task, and its timeout. The parent process may lack torch."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from collbench.backends.gloo_tasks import DTYPE_BYTES, REDOPS, Task
from collbench.backends.protocol import Step
from collbench.backends.torch_process import TorchProcess, start, worker_environment
from collbench.model.capabilities import HOST
from collbench.model.errors import UsageError
from collbench.model.operations import Variant

# Silence for longer than the work could ever take, plus this many seconds, is a hang. Generous: `import torch` alone
# takes 3 s, and tens of seconds from a cold network disk.
TIMEOUT_S = 60.0

# The slowest all-reduce to wait for, in B/s. Loopback TCP on one shared core still gives ten times as much.
_SLOWEST_RATE = 20e6


def spawn(
    rank: int, cores: Sequence[int], folder: pathlib.Path, meeting: Sequence[str] = (), interface: str = "lo"
) -> TorchProcess:
    """Start the worker of one rank, on `cores[rank]`; it answers once when it has met the others.

    They meet in `folder`, or at `meeting`: host, port and prefix of a TCPStore. `interface` is the network to use
    where the user has not chosen one.
    """
    arguments = (rank, len(cores), cores[rank], folder, *meeting)
    environment = worker_environment(interface)
    return start(
        "collbench.backends.gloo_worker", arguments, rank, folder, environment, ("gloo worker", "on core", cores[rank])
    )


def task_of(step: Step) -> Task:
    """Return the step as a task of the workers. Raises UsageError for what gloo cannot do exactly."""
    if not step.operation.is_collective:
        raise UsageError(f"gloo does collectives, not {step.operation}")
    if missing := HOST.lacks(step.operation):
        raise UsageError(f"the host backend cannot time {step.operation}: {missing}")
    if not step.work.verifiable:
        raise UsageError(f"gloo does {step.operation} out of place only: leave out the option for in place")
    if step.dtype not in DTYPE_BYTES:
        raise UsageError(f"gloo has no {step.dtype}: choose one of {', '.join(DTYPE_BYTES)}")
    if step.operation.reduces and step.redop not in REDOPS:
        raise UsageError(f"gloo cannot reduce by {step.redop}: choose one of {', '.join(REDOPS)}")
    return Task(
        operation=step.operation.value,
        groups=step.groups,
        count=_count(step),
        iterations=step.iterations,
        batches=step.batches,
        warmup=step.warmup,
        dtype=step.dtype,
        redop=step.redop,
        root=step.root,
        in_place=step.variant is Variant.IN_PLACE,
        verify=step.verify,
        blocks=tuple(tuple(block // DTYPE_BYTES[step.dtype] for block in row) for row in step.blocks),
    )


def _count(step: Step) -> int:
    """Return the message in elements. Raises UsageError if it holds no whole number of them, or of equal blocks."""
    width = DTYPE_BYTES[step.dtype]
    count, rest = divmod(step.size_bytes, width)
    if rest or not count:
        raise UsageError(
            f"{step.size_bytes} B is not a whole number of {step.dtype} elements: use a multiple of "
            f"{width} B, or --dtype uint8"
        )
    ranks = len(step.groups[0])
    if step.operation.shares and count % ranks:
        raise UsageError(f"{step.size_bytes} B is not a whole block of {step.dtype} for each of {ranks} ranks")
    return count


def expected_seconds(step: Step) -> float:
    """Return how long a step may take on the slowest machine, in seconds."""
    messages = step.iterations * (step.batches + step.warmup) + 1
    return messages * step.size_bytes * max(map(len, step.groups)) / _SLOWEST_RATE
