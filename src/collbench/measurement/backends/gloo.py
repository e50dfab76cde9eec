"""Collectives between CPU cores over gloo: one worker process per rank, and their parent, which never loads torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collbench.measurement.backends.protocol import Step, Timing
from collbench.measurement.backends.torch_process import TorchWorkers, need_torch, worker_environment
from collbench.model.capabilities import HOST
from collbench.model.errors import DataCorruption, UsageError, WrongData
from collbench.model.units import DTYPE_BYTES

# What gloo has of our types [torch 2.13 ProcessGroupGloo.cpp, GENERATE_ALL_TYPES]: not int16, not float8.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8")
# No avg: gloo lacks it, torch divides a sum afterwards on the caller's thread.
REDOPS = ("sum", "prod", "min", "max")
# Silence for longer than the work could ever take, plus this many seconds, is a hang. Generous: `import torch` alone
# takes 3 s, and tens of seconds from a cold network disk.
TIMEOUT_S = 60.0
# The slowest all-reduce to wait for, in B/s. Loopback TCP on one shared core still gives ten times as much.
_SLOWEST_RATE = 20e6


@dataclass(frozen=True, slots=True)
class GlooTimes:
    """One rank's answer to a Step: seconds per iteration of each batch, () if the rank is in none of the groups.

    `waits` are its seconds in the barrier before each batch. `wrong` is the first wrong element: its byte offset in the
    message, the expected and the found value.
    """

    seconds: tuple[float, ...] = ()
    waits: tuple[float, ...] = ()
    wrong: tuple[int, float, float] | None = None


def check(step: Step) -> None:
    """Raise UsageError for a step that gloo cannot do exactly."""
    if not step.work.operation.is_collective:
        raise UsageError(f"gloo does collectives, not {step.work.operation}")
    if not step.work.verifiable:
        raise UsageError(f"gloo does {step.work.operation} out of place only: leave out the option for in place")
    if step.dtype not in DTYPES:
        raise UsageError(f"gloo has no {step.dtype}: choose one of {', '.join(DTYPES)}")
    if step.work.operation.reduces and step.redop not in REDOPS:
        raise UsageError(f"gloo cannot reduce by {step.redop}: choose one of {', '.join(REDOPS)}")
    width, ranks = DTYPE_BYTES[step.dtype], len(step.groups[0])
    count, rest = divmod(step.size_bytes, width)
    if rest or not count:
        raise UsageError(
            f"{step.size_bytes} B is not a whole number of {step.dtype} elements: use a multiple of "
            f"{width} B, or --dtype uint8"
        )
    if step.work.operation.shares and count % ranks:
        raise UsageError(f"{step.size_bytes} B is not a whole block of {step.dtype} for each of {ranks} ranks")


def expected_seconds(step: Step) -> float:
    """Return how long a step may take on the slowest machine, in seconds."""
    messages = step.iterations * (step.batches + step.warmup) + 1
    return messages * step.size_bytes * max(map(len, step.groups)) / _SLOWEST_RATE


def corruption(step: Step, rank: int, times: GlooTimes) -> DataCorruption | None:
    """Return the error for the rank's wrong element, None if all were right."""
    if times.wrong is None:
        return None
    offset, expected, received = times.wrong
    members = next(group for group in step.groups if rank in group)
    found_by_first = (rank, *(member for member in members if member != rank))
    return DataCorruption(wrong=WrongData(step.work, step.size_bytes, found_by_first, None, offset, expected, received))


def start_workers(
    cores: Mapping[int, int], ranks: int, meeting: Sequence[str] = (), interface: str = "lo"
) -> TorchWorkers:
    """Start the gloo workers of some of the `ranks`, rank r pinned to `cores[r]`, and return at once.

    They meet in a file of theirs, or at `meeting`: host, port and prefix of a TCPStore. `interface` is the network to
    use where the user has not chosen one.
    """
    module, environment = "measurement.backends.gloo_worker", worker_environment(interface)
    return TorchWorkers(module, HOST.name, cores, ranks, environment, meeting, by_core=True)


class GlooWorld:
    """One gloo rank per core: rank r is pinned to `cores[r]`, so ranks are the backend's positions.

    The workers start with the first collective. They end with `close()`, with any failure, or with this process.
    """

    def __init__(self, cores: Sequence[int], timeout_s: float = TIMEOUT_S) -> None:
        """Start nothing yet. `timeout_s` is how long silence may last beyond the expected work, in seconds."""
        self._cores = dict(enumerate(cores))
        self._timeout_s = timeout_s
        self._workers: TorchWorkers | None = None

    def time(self, step: Step) -> Timing:
        """Time one collective on each of the step's groups, concurrently; every element is verified.

        Raises UsageError for what gloo lacks, MachineError without torch, DataCorruption for a wrong element and
        BackendError, which names the core, for a worker that died or hangs. After an error the workers have exited;
        the next call starts new ones.
        """
        check(step)
        try:
            if self._workers is None:
                need_torch("collectives on the host backend need")
                self._workers = start_workers(self._cores, len(self._cores))
                self._workers.join(self._timeout_s)
            # Each worker gets the step: all must take part in making a process group, whether they are in it or not.
            return timing_of(step, self._workers.ask(self._timeout_s + expected_seconds(step), "time", step))
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    def close(self) -> None:
        """End the workers; does nothing the second time."""
        if self._workers is not None:
            self._workers.kill()
            self._workers = None


def timing_of(step: Step, ranks: Sequence[GlooTimes]) -> Timing:
    """Return the slowest rank's time of each batch of each group. Raises DataCorruption for a wrong element."""
    for rank, times in enumerate(ranks):
        if error := corruption(step, rank, times):
            raise error
    batches_of = [zip(*(ranks[rank].seconds for rank in group), strict=True) for group in step.groups]
    return Timing(seconds=tuple(tuple(map(max, batches)) for batches in batches_of))
