"""The rank side: it has one device (a GPU or a core) on a host, and answers rank 0's requests one by one."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, cast

from collbench import __version__
from collbench.machine import kernel
from collbench.machine.kernel import available_bytes, read
from collbench.machine.launchers import LaunchEnvironment
from collbench.machine.nccl import configured
from collbench.machine.nvml import Nvml
from collbench.measurement.backends.child_process import TorchWorkers
from collbench.measurement.backends.factory import ObservedGpus, here
from collbench.measurement.backends.host import TIMEOUT_S, check, expected_seconds, start_workers
from collbench.measurement.backends.isolated import IsolatedBackend
from collbench.measurement.backends.protocol import BackendFacts, Call, NcclWorld, Open, Step, Timing
from collbench.model.errors import BackendError, CollbenchError, MachineError, UsageError
from collbench.model.run import Device, Flag, Health, Machine, NetworkPort, Path
from collbench.ranks.connection import Rank0Connection
from collbench.ranks.messages import Abandon, Alive, BadMessage, Done, Introduction, Leave, Opening, Order, Reply
from collbench.ranks.ports import read_counted_ports
from collbench.ranks.store import Store, interface_of, prefix


class RankWorker(ABC):
    """One rank's device. Errors are CollbenchErrors; after any error but DataCorruption it must be opened again.

    Rank 0 calls the methods in messages.METHODS. Groups are of positions in `devices`. A subclass overrides the
    methods whose default does not apply to it.
    """

    devices: tuple[Device, ...] = ()

    def meet(self, devices: tuple[Device, ...]) -> None:
        """Keep the devices of all ranks; worlds are opened of some of them. Only once: a thousand make 0.3 MB."""
        self.devices = devices

    @abstractmethod
    def introduce(self) -> Introduction:
        """Return this host and device. Raises MachineError, UsageError."""

    @abstractmethod
    def open(self, opening: Opening) -> BackendFacts:
        """Open the device for a new world, in place of the one before."""

    @abstractmethod
    def time(self, step: Step) -> Timing:
        """Time the step; groups without this rank have no seconds."""

    @abstractmethod
    def paths(self, devices: tuple[Device, ...]) -> tuple[Path, ...]:
        """Return the paths between devices of this host, by their indices here; none if it is not reported."""

    @abstractmethod
    def interrupt(self) -> None:
        """End the step that another thread waits for: it fails at once."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

    def make_id(self) -> str:
        """Return what the ranks of a new world must share to find each other; "" if they need nothing."""
        return ""

    def reserve(self, largest_bytes: int) -> None:  # noqa: B027
        """Make room for messages of up to `largest_bytes`."""

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:  # noqa: B027
        """Start to create the communicators of these groups; all ranks create the same ones in the same order."""

    def health(self) -> tuple[Health, ...]:
        """Return the device's state now; none if it is not reported."""
        return ()

    def ports(self) -> tuple[NetworkPort, ...]:
        """Return the ports of the InfiniBand and RoCE cards that this rank's container shows."""
        return read_counted_ports(pathlib.Path("/"))

    def flags(self) -> tuple[Flag, ...]:
        """Return what is wrong with the device."""
        return ()


def _introduction(backend: str, device: Device, machine: Machine, shown: int = 0) -> Introduction:
    own = host_identity(os.environ)
    ours = __version__
    return Introduction(own.name, own.key, own.network, backend, ours, device, machine, own.boot, shown)


# A rank with a GPU: NVML in this process, CUDA and NCCL in a worker process that may crash.


class CudaRankWorker(RankWorker):
    """One GPU: the LOCAL_RANK-th that CUDA shows to this process, or the only one."""

    def __init__(
        self,
        launch: LaunchEnvironment,
        store: Store,
        nccl_path: str | None,
        registrations: int = 0,
    ) -> None:
        """Start the worker, which takes a moment, and wait for nothing. Raises MachineError without a driver."""
        self._registrations = registrations
        self._launch, self._store, self._nccl_path = launch, store, nccl_path
        self._stack = ExitStack()
        self._backend = IsolatedBackend()
        self._backend.start()
        try:
            self._nvml = self._stack.enter_context(Nvml())
        except BaseException:
            self._backend.reap()
            raise
        self._gpu: ObservedGpus | None = None  # this rank's, once it has introduced itself
        self._used = False  # the worker has opened a world; it cannot leave it

    def introduce(self) -> Introduction:
        """Return this host and the rank's GPU. Raises UsageError if there are more ranks than GPUs."""
        device = self._own(self._backend.list_gpus())
        self._gpu = ObservedGpus(self._nvml, (device,), lambda: self._backend.process_ids)
        return _introduction("cuda", device, here(self._nvml), len(self._nvml.devices()))

    def make_id(self) -> str:
        """Return NCCL's id as hexadecimal digits; the worker that makes it listens for the other ranks."""
        self._need_unused_worker()
        return self._backend.unique_id(self._nccl_path).hex()

    def open(self, opening: Opening) -> BackendFacts:
        """Open the GPU and join NCCL's world, whose id is in the store under the opening's key."""
        self._need_unused_worker()
        self._used = True
        unique_id = bytes.fromhex(self._store.read(opening.key))
        world = NcclWorld(opening.positions, opening.index, unique_id)
        opening_gpu = Open(self.devices, self._nccl_path, True, world=world, registrations=self._registrations)
        self._backend.open(opening_gpu)
        return self._backend.facts

    def reserve(self, largest_bytes: int) -> None:
        """Allocate the buffers."""
        self._backend.reserve(largest_bytes)

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Start making communicators; all ranks make the same ones in the same order."""
        self._backend.prepare(groups)

    def time(self, step: Step) -> Timing:
        """Time the step in the worker, which is ended by any failure."""
        return self._backend.time(step)

    def paths(self, devices: tuple[Device, ...]) -> tuple[Path, ...]:
        """Return what NVML says of the paths; nothing if this rank's container shows it fewer GPUs."""
        with suppress(MachineError):
            return self._nvml.paths(devices)
        return ()

    def health(self) -> tuple[Health, ...]:
        """Return the GPU's state; of the processes on it, our worker is not counted."""
        return self._gpu.health() if self._gpu else ()

    def flags(self) -> tuple[Flag, ...]:
        """Return what is wrong with the GPU, as NVML reported a moment ago."""
        return self._gpu.flags((0,)) if self._gpu else ()

    def interrupt(self) -> None:
        """Kill the worker: the thread that waits for its answer gets an error at once."""
        for process_id in self._backend.process_ids:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)

    def close(self) -> None:
        """End the worker and NVML."""
        self._backend.reap()
        self._stack.close()

    def _need_unused_worker(self) -> None:
        if self._used or not self._backend.process_ids:
            self._backend.reap()  # else the new worker would find the GPU's memory still taken
            self._backend, self._used = IsolatedBackend(), False
            self._backend.start()

    def _own(self, visible: tuple[str, ...]) -> Device:
        """Return the GPU of this rank among the UUIDs that CUDA shows, in its order. Raises UsageError."""
        if len(visible) > 1 and self._launch.local_rank >= len(visible):
            raise UsageError(
                f"{self._launch.launcher} started {self._launch.local_size} processes for {len(visible)} GPUs: start "
                "one process for each GPU, or check what CUDA_VISIBLE_DEVICES hides"
            )
        uuid = visible[self._launch.local_rank] if len(visible) > 1 else "".join(visible)
        for device in self._nvml.devices():
            if device.uuid == uuid:
                return device
        raise MachineError("CUDA shows no GPU that NVML knows to this process: check CUDA_VISIBLE_DEVICES and MIG mode")


# A rank with a CPU core: one gloo worker, which finds the others through the store that all ranks share.

# Buffers a rank may hold of the largest message: sent, received, random data, and gloo's own.
_BUFFERS = 6


class HostRankWorker(RankWorker):
    """One core: the LOCAL_RANK-th that this process may use; ranks share cores if there are more ranks than cores."""

    def __init__(self, launch: LaunchEnvironment, timeout_s: float = TIMEOUT_S) -> None:
        """Start nothing yet; `timeout_s` is how long silence may last beyond the expected work, in seconds."""
        self._launch, self._timeout_s = launch, timeout_s
        reach = sorted(os.sched_getaffinity(0))
        self._core = reach[launch.local_rank % len(reach)]
        self._worker: TorchWorkers | None = None
        self._positions: tuple[int, ...] = ()

    def introduce(self) -> Introduction:
        """Return this host and the rank's core."""
        return _introduction("host", kernel.core_device(self._core), here())

    def open(self, opening: Opening) -> BackendFacts:
        """Start the worker and wait until it has met all others."""
        self.close()
        self._positions = opening.positions
        self._worker = start_workers(
            {opening.index: self._core},
            len(opening.positions),
            (self._launch.master_addr, str(self._launch.master_port), f"{prefix(self._launch)}/{opening.key}"),
            (interface_of(opening.address) if opening.address else "") or "lo",
        )
        self._worker.join(self._timeout_s)
        here_too = max(1, self._launch.local_size)
        return BackendFacts((), available_bytes() // 2 // (_BUFFERS * here_too))

    def time(self, step: Step) -> Timing:
        """Time the step in the worker. Raises UsageError, DataCorruption, BackendError."""
        if self._worker is None:
            raise BackendError(f"{step.work} before the gloo worker was started")
        check(step)
        timing: Timing
        (timing,) = self._worker.ask(self._timeout_s + expected_seconds(step), "time", step, self._positions)
        return timing

    def paths(self, devices: tuple[Device, ...]) -> tuple[Path, ...]:
        """Return the paths between cores."""
        return kernel.core_paths(devices)

    def interrupt(self) -> None:
        """Kill the worker: the thread that waits for its answer gets an error at once."""
        worker = self._worker
        if worker is not None:
            worker.interrupt()

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


# The rank's loop: it answers rank 0's calls one by one, and listens for Abandon and Leave at any time.

# Rank 0 counts a rank as lost after several of these without a message.
ALIVE_EVERY_S = 2.0


class Rank0Failed(BackendError):
    """Rank 0 has failed, and reports it itself."""


def serve(rank_0: Rank0Connection, rank_worker: RankWorker, alive_every_s: float = ALIVE_EVERY_S) -> bool:
    """Answer requests until rank 0 sends Leave (returns True) or exits (False). Closes the worker.

    Raises Rank0Failed if rank 0 says so.
    """
    with ThreadPoolExecutor(1) as worker:
        server = _Server(rank_0, rank_worker, worker, alive_every_s)
        try:
            while True:
                match server.next_order():
                    case None:
                        return False
                    case Leave(failure):
                        if failure:
                            raise Rank0Failed(failure)
                        return True
                    case Abandon():
                        pass  # it crossed our answer: nothing to abandon
                    case call:
                        server.work(call)
        finally:
            worker.submit(rank_worker.close)


class _Server:
    """What a rank needs to answer rank 0."""

    def __init__(
        self, rank_0: Rank0Connection, rank_worker: RankWorker, worker: ThreadPoolExecutor, alive_every_s: float
    ) -> None:
        self._rank_0, self._rank_worker, self._worker, self._alive_every_s = rank_0, rank_worker, worker, alive_every_s
        self._next: Order | None = None  # it arrived during another request
        self._hung_up = False

    def next_order(self) -> Order | None:
        """Return rank 0's next request, None if rank 0 has exited."""
        if self._next is not None:
            order, self._next = self._next, None
            return order
        if self._hung_up:
            return None
        try:
            return self._rank_0.recv()
        except (EOFError, OSError, BadMessage):  # a bad message: the connection is unusable
            self._hung_up = True
            return None

    def work(self, call: Call) -> None:
        """Answer one call in another thread, while this thread listens for Abandon."""
        done, notify_done = socket.socketpair()
        with done, notify_done:
            answer = self._worker.submit(_answer, self._rank_worker, call)
            answer.add_done_callback(lambda _answer: notify_done.send(b"."))
            self._wait_until(done)
            done.recv(1)
        self._send(answer.result())

    def _wait_until(self, done: socket.socket) -> None:
        """Return when the request is answered, and send Alive meanwhile; any order that arrives earlier ends it."""
        polled: list[Any] = [done, self._rank_0]
        abandoned = False
        while done not in (readable := cast("list[object]", wait(polled, self._alive_every_s))):
            if self._rank_0 in readable:
                order = self.next_order()
                abandoned = True
                if not isinstance(order, Abandon):
                    self._next, polled = order, [done]
            if abandoned:
                self._rank_worker.interrupt()  # repeatedly: the worker may just be starting
            if self._rank_0 in polled:
                self._send(Alive())

    def _send(self, message: Reply | Alive) -> None:
        with suppress(OSError):  # rank 0 is gone, as the next order will show
            try:
                self._rank_0.send(message)
            except ValueError as error:  # NaN, for example: rank 0 would wait forever
                self._rank_0.send(BackendError(f"an answer that cannot be sent: {error}"))


def _answer(rank_worker: RankWorker, call: Call) -> Reply:
    """Return the answer; an error becomes an answer."""
    try:
        value = getattr(rank_worker, call.method)(*call.arguments)
        return Done(call.method, value, rank_worker.flags() if call.method == "time" else ())
    except CollbenchError as error:
        return error
    except Exception as error:  # noqa: BLE001  # rank 0 would wait forever; it says which rank met what
        return BackendError(f"{type(error).__name__}: {error}")


# Which processes share a host: NCCL compares a hash of one string of each [src/misc/utils.cc, getHostHashOnce].

# What an id must be like to stand for the host in tables and sentences.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}")
_MAX_BYTES = 1023  # NCCL compares no more of the string


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """This process's host."""

    name: str  # what people call it
    key: str  # processes with the same key share a host for NCCL
    # The same where loopback joins two processes, which the key does not say: NCCL_HOSTID may make several hosts of one
    # network namespace, or one host of several.
    network: str
    boot: str = ""  # the kernel's boot id, "" if unknown


def host_identity(environment: Mapping[str, str], root: pathlib.Path = pathlib.Path("/")) -> HostIdentity:
    """Return the host that NCCL takes this process to be on; `root` holds proc/ and etc/.

    NCCL_HOSTID where it is set, even to nothing, in the environment or in nccl.conf; else host name and boot id.
    """
    named, boot = socket.gethostname(), (read(root / "proc/sys/kernel/random/boot_id").split() or [""])[0]
    host_id = environment.get("NCCL_HOSTID")
    if host_id is None:
        host_id = next((value for _, name, value in configured(root, environment) if name == "NCCL_HOSTID"), None)
    key = os.fsencode(f"{named}{boot}" if host_id is None else host_id)[:_MAX_BYTES]
    return HostIdentity(
        name=host_id if host_id is not None and _NAME.fullmatch(host_id) else named,
        key=os.fsdecode(key),
        network=f"{boot}/{_network_namespace(root)}",
        boot=boot,
    )


def _network_namespace(root: pathlib.Path) -> int:
    try:
        return (root / "proc/self/ns/net").stat().st_ino
    except OSError:
        return 0
