"""Open the backend of a name, with the facts about its machine. No backend is substituted silently."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, TypeAlias

from collbench.machine import device_names
from collbench.machine.device_names import NAME, ORDER, visible
from collbench.machine.health import HealthWatch, Occupants
from collbench.measurement.backends.protocol import Open, Opened
from collbench.model.errors import MachineError
from collbench.model.run import CUDA, HOST, SIM, Device, Health, Machine, Path, capabilities, is_simulated

if TYPE_CHECKING:
    from collbench.machine.nvml import Nvml
    from collbench.measurement.backends.protocol import BackendFacts
    from collbench.measurement.backends.sim import SimBackend
    from collbench.measurement.plan import Request
    from collbench.sim.fabrics import Fabric


# What is on the machine, before anything is chosen: this starts NVML once (0.1 s), and not CUDA (0.5 s).


@dataclass(frozen=True, slots=True)
class Present:
    """The devices that this process may use, in nvidia-smi's order, and their NVML state.

    `hidden` are GPUs that CUDA_VISIBLE_DEVICES hides from this process, and `mig` those in MIG mode, which are not
    among `devices`: their instances have no P2P. `states` are those of all GPUs by UUID; none of our processes is on
    them yet.
    """

    backend: str
    devices: tuple[Device, ...]
    hidden: tuple[Device, ...] = ()
    mig: tuple[Device, ...] = ()
    driver: str = ""
    states: Mapping[str, Health] = field(default_factory=dict)

    @property
    def every(self) -> tuple[Device, ...]:
        """All GPUs that CUDA sees, including those in MIG mode, in nvidia-smi's order."""
        return tuple(sorted(self.devices + self.mig, key=lambda device: device.index))

    @property
    def among(self) -> str:
        """Return what limits the choice, as a clause: "among the 2 that CUDA_VISIBLE_DEVICES shows"; "" for nothing."""
        return f"among the {len(self.devices) + len(self.mig)} that {NAME} shows" if self.hidden else ""


def look(name: str, fabric: str | None = None) -> Present:
    """Return the backend's devices here, or those of a machine to simulate; "auto" considers only GPUs.

    Raises MachineError, and UsageError for MIG.
    """
    if is_simulated(name):
        return _look_simulated(fabric)
    if name == HOST.name:
        return Present(HOST.name, present_devices(name))
    setting = os.environ.get(NAME)
    try:
        present = _look()
    except MachineError as error:
        if name == "cuda":
            raise
        raise _no_gpu(error.problem) from error
    if not present.devices and not present.mig:
        hides = f"{NAME}='{setting}' hides every GPU from this process"
        raise _no_gpu(hides if setting is not None else "the NVIDIA driver shows no GPU to this process")
    return present


def may_use(every: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return those of NVML's GPUs that CUDA shows to this process, in their order.

    Starts CUDA only if nothing else knows. Raises UsageError for MIG devices, MachineError.
    """
    allowed = visible(every, os.environ.get(NAME), os.environ.get(ORDER))
    if allowed is not None:
        return allowed
    from collbench.measurement.backends.cuda import list_gpus  # late: the extension

    shown = list_gpus()
    return tuple(device for device in every if device.uuid in shown)


def _look() -> Present:
    from collbench.machine.nvml import Nvml  # late, as everywhere below: simulations have none

    with Nvml() as nvml:
        every = nvml.devices()
        seen = may_use(every)
        mig = tuple(device for device in seen if nvml.in_mig_mode(device))
        states = {device.uuid: nvml.health(device) for device in every}
        return Present(
            backend="cuda",
            devices=tuple(device for device in seen if device not in mig),
            hidden=tuple(device for device in every if device not in seen),
            mig=mig,
            driver=nvml.driver_version(),
            states={uuid: replace(state, others_memory=state.memory_used) for uuid, state in states.items()},
        )


def _no_gpu(why: str) -> MachineError:
    return MachineError(f"no GPU to use: {why}; write --backend host for CPU cores with gloo")


# From a backend's name to an open backend with the facts about its machine. Nothing is substituted silently.


Choice: TypeAlias = Callable[[tuple[Device, ...]], tuple[Device, ...]]  # may drop some of the devices


_NVML = ExitStack()


def resolve(name: str) -> tuple[str, str | None]:
    """Return the backend that `name` selects, and the reason to print if "auto" finds no GPU.

    A GPU that the kernel shows but the driver's libraries do not is an error on opening: using cores would hide it.
    """
    if name != "auto":
        return name, None
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return "host", "CUDA_VISIBLE_DEVICES hides every GPU from this process"
    from collbench.machine import kernel  # late: simulations need no machine

    if kernel.has_gpu_files():  # NVML can start later, beside CUDA in the worker: each takes 0.1 to 0.2 s
        return "cuda", None
    from collbench.machine.nvml import Nvml

    try:
        # Left open, because it takes 0.1 s to start again.
        if _NVML.enter_context(Nvml()).devices():
            return "cuda", None
        reason = "the NVIDIA driver shows no GPU to this process"
    except MachineError as error:
        reason = error.problem
    return "host", reason


def present_devices(name: str, fabric: str | None = None) -> tuple[Device, ...]:
    """Return the devices that the backend may use, in nvidia-smi's order, subject to CUDA_VISIBLE_DEVICES."""
    row = capabilities(name)
    if row.simulated:
        return _look_simulated(fabric).devices
    if row.cores:
        from collbench.machine import kernel  # late, as below: simulations have no cores

        return kernel.core_devices()
    from collbench.machine.nvml import Nvml

    with Nvml() as nvml:
        return may_use(nvml.devices())


def open_backend(request: Request) -> Opened:
    """Open the request's backend on its devices. Raises UsageError, MachineError."""
    return _OPENERS[capabilities(request.backend).name](request)


def simulated(fabric: str | None) -> Fabric:
    """Return the machine to simulate, by name or file; by default one on which the choice of GPUs matters.

    A file is read once, and again only if it changed. Raises UsageError.
    """
    name, identity = fabric or "dgx-1v", None
    with suppress(OSError, ValueError):  # a shipped one, or a name that loading refuses
        status = FilePath(name).stat()
        identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return _loaded(name, identity)


@lru_cache(maxsize=1)
def _loaded(name: str, _identity: tuple[int, ...] | None) -> Fabric:
    from collbench.sim import fabrics  # late: simulations are rare

    return fabrics.load(name)


def _look_simulated(fabric: str | None) -> Present:
    from collbench.sim import network

    machine = simulated(fabric)
    devices = network.devices(machine)
    states = {device.uuid: state for device, state in zip(devices, network.health(machine), strict=True)}
    return Present(SIM.name, devices, states=states)


def open_simulated(fabric: Fabric, wanted: str | None, seed: int, fewest: int = 2) -> Opened:
    """Open the sim backend on the devices of a fabric that `wanted` names. A seed draws the same samples again."""
    backend = simulated_backend(fabric, wanted, seed, fewest=fewest)
    return Opened(
        backend,
        machine=backend.machine(),
        paths=backend.paths(),
        health=backend.health,
        flags=backend.flags,
        environment=backend.environment(),
        clock=backend.clock,
        close=backend.close,
    )


def simulated_backend(
    fabric: Fabric, wanted: str | None, seed: int, chosen: Choice = tuple, fewest: int = 2
) -> SimBackend:
    """Return the sim backend on the devices of a fabric that are `chosen` of those that `wanted` names."""
    from collbench.measurement.backends.sim import SimBackend
    from collbench.sim.network import devices

    every = devices(fabric)
    devices_taken = chosen(choose_devices(every, wanted, fewest, simulated=True))
    return SimBackend(fabric, seed, tuple(map(every.index, devices_taken)))


def here(nvml: Nvml | None = None) -> Machine:
    """Return what is known of this host, with what NVML knows of its driver and GPUs."""
    from collbench.machine import kernel

    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    machine = Machine(hostname=socket.gethostname(), system=system, cpu=kernel.cpu_model())
    if nvml is None:
        return machine
    return replace(
        machine,
        driver=nvml.driver_version(),
        cuda=nvml.cuda_version(),
        virtualization=nvml.virtualization(),
    )


class ObservedGpus:
    """GPUs to measure as NVML reports them, without what our own processes do on them."""

    def __init__(self, nvml: Nvml, devices: tuple[Device, ...], our_processes: Callable[[], Collection[int]]) -> None:
        """Read what is on the GPUs now, before our own processes open them."""
        self._nvml, self._devices = nvml, devices
        self._occupants = Occupants([nvml.processes(device) for device in devices], our_processes)
        self._memory_before = [nvml.memory_used(device) for device in devices]
        self.flags = HealthWatch(devices, lambda: [nvml.glance(device) for device in devices], self._occupants).flags

    def health(self) -> tuple[Health, ...]:
        """Return the devices' current state, by position."""
        return tuple(
            replace(
                self._nvml.health(device),
                processes=self._occupants.others(position, self._nvml.processes(device)),
                others_memory=self._memory_before[position],
            )
            for position, device in enumerate(self._devices)
        )


def choose_devices(
    present: tuple[Device, ...], wanted: str | None, fewest: int = 2, *, simulated: bool = False
) -> tuple[Device, ...]:
    """Return those of the present devices that `wanted` names, at least `fewest`. Raises UsageError."""
    devices = device_names.select(present, wanted)
    withheld = "" if len(devices) >= fewest or simulated else _withheld(len(present))
    hidden = NAME in os.environ
    device_names.check_enough(devices, present, fewest, hidden=hidden, simulated=simulated, withheld=withheld)
    return devices


def _withheld(present: int) -> str:
    """Return how many GPUs the driver does not show, and how to get them; "" if CUDA_VISIBLE_DEVICES may hide them."""
    from collbench.machine import kernel  # late: only what is refused needs it
    from collbench.machine.nvml import Nvml

    if NAME not in os.environ:
        return kernel.withheld(present, os.environ)
    if kernel.STEP_GPUS in os.environ:  # srun sets both
        with suppress(MachineError), Nvml() as nvml:
            return kernel.withheld(len(nvml.devices()), os.environ)
    return ""


def _open_sim(request: Request) -> Opened:
    return open_simulated(simulated(request.fabric), request.devices, request.seed, request.fewest_devices)


def _open_host(request: Request) -> Opened:
    from collbench.machine import kernel
    from collbench.measurement.backends.host import HostBackend

    devices = choose_devices(kernel.core_devices(), request.devices)
    backend = HostBackend(devices)
    return Opened(backend, machine=here(), paths=kernel.core_paths(devices), close=backend.close)


def _open_cuda(request: Request) -> Opened:
    """Let the worker start CUDA and NCCL while this process queries NVML; this process never loads CUDA."""
    from collbench.measurement.backends.isolated import IsolatedBackend

    with ExitStack() as stack:
        backend = IsolatedBackend()
        backend.start()
        # This waits, because the next command (`pairs && train`) might take the ending worker for another user's.
        stack.callback(backend.reap)
        from collbench.machine.nvidia_smi import LiveTools
        from collbench.machine.nvml import Nvml

        tools = stack.enter_context(LiveTools())
        nvml = stack.enter_context(Nvml())  # once: each start of it takes 0.1 s
        present = nvml.devices()
        visible = backend.list_gpus()
        shown = tuple(device for device in present if device.uuid in visible)
        devices = choose_devices(shown, request.devices, request.fewest_devices)
        gpus = ObservedGpus(nvml, devices, lambda: backend.process_ids)
        registrations = len(request.registrations)
        backend.open(Open(devices, request.nccl, bool(request.collectives), registrations=registrations))
        machine, paths = here(nvml), nvml.paths(devices)
        import collbench.measurement.sweep  # noqa: F401 - numpy, which takes as long to load as the GPUs to open

        facts = backend.facts  # waits for CUDA and NCCL; nvidia-smi has answered by then
        return Opened(
            backend,
            machine=replace(
                machine,
                nccl=facts.nccl,
                nccl_path=facts.nccl_path,
                kernel_image=facts.kernel_image,
                multicast=facts.multicast,
                gpus=len(present),
            ),
            paths=tools.with_reports(devices, _with_peers(paths, facts)),
            health=gpus.health,
            flags=gpus.flags,
            close=stack.pop_all().close,
        )


# By the names of the table of backends.
_OPENERS: dict[str, Callable[[Request], Opened]] = {CUDA.name: _open_cuda, HOST.name: _open_host, SIM.name: _open_sim}


def _with_peers(paths: tuple[Path, ...], facts: BackendFacts) -> tuple[Path, ...]:
    """Return the paths with whether CUDA lets both devices reach each other's memory."""
    if not facts.peers:
        return paths
    pairs = ((path, *path.devices) for path in paths)
    return tuple(replace(path, cuda_peers=facts.peers[a][b] and facts.peers[b][a]) for path, a, b in pairs)
