"""What each backend is and can do, by its name, which is all that a saved run has of it."""

from __future__ import annotations

from dataclasses import dataclass

from collbench.model.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """One row of the table of backends. No field has a default: a row that lacks one does not import.

    Code asks for a capability here, and never compares names of backends.
    """

    name: str
    simulated: bool  # its figures are drawn: nothing was measured, and nothing of it is here
    cores: bool  # its devices are CPU cores; else GPUs, whose links and ports have known limits
    nccl: bool  # its collectives are NCCL's, which heeds NCCL_* variables
    gloo: bool  # its collectives are gloo's
    single_launches: bool  # times launches of collectives one by one
    nvml: bool  # this machine's NVIDIA driver reports its devices: their health, the driver's version, CUDA's
    visible: bool  # CUDA_VISIBLE_DEVICES chooses its devices
    undefined_in_place: bool  # times in place also what leaves an undefined result there
    largest_bytes: int  # of the sizes that are measured by default
    largest_pattern_bytes: int  # of copies in all patterns by default


CUDA = Capabilities(
    name="cuda",
    simulated=False,
    cores=False,
    nccl=True,
    gloo=False,
    single_launches=True,
    nvml=True,
    visible=True,
    undefined_in_place=True,
    largest_bytes=2**30,
    largest_pattern_bytes=512 * 2**20,
)
HOST = Capabilities(
    name="host",
    simulated=False,
    cores=True,
    nccl=False,
    gloo=True,
    single_launches=False,
    nvml=False,
    visible=False,
    undefined_in_place=False,  # every result of gloo is verified
    largest_bytes=64 * 2**20,  # larger ones take cores minutes
    largest_pattern_bytes=64 * 2**20,
)
SIM = Capabilities(
    name="sim",
    simulated=True,
    cores=False,
    nccl=False,
    gloo=False,
    single_launches=True,
    nvml=False,
    visible=False,
    undefined_in_place=True,
    largest_bytes=2**30,
    largest_pattern_bytes=512 * 2**20,
)
BACKENDS = {row.name: row for row in (CUDA, HOST, SIM)}


def capabilities(name: str) -> Capabilities:
    """Return what the backend of this name is and can do. Raises UsageError for an unknown name."""
    if name not in BACKENDS:
        raise UsageError(f"backend '{name}' is unknown to this collbench: it knows {', '.join(BACKENDS)}")
    return BACKENDS[name]


def is_simulated(name: str) -> bool:
    """Return whether a word of --backend, "auto" among them, names a machine that is only simulated."""
    return name in BACKENDS and BACKENDS[name].simulated
