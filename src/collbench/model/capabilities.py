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
    # Its devices are CPU cores and its collectives gloo's, which times no single launches and verifies every result, so
    # none in place that is undefined; else GPUs, whose links and ports have known limits.
    cores: bool
    nccl: bool  # its collectives are NCCL's, which heeds NCCL_* variables
    # This machine's NVIDIA driver reports its devices: their health, the driver's version, CUDA's; and
    # CUDA_VISIBLE_DEVICES chooses among them.
    nvml: bool
    largest_bytes: int  # of the sizes that are measured by default
    largest_pattern_bytes: int  # of copies in all patterns by default


CUDA = Capabilities(
    name="cuda",
    simulated=False,
    cores=False,
    nccl=True,
    nvml=True,
    largest_bytes=2**30,
    largest_pattern_bytes=512 * 2**20,
)
HOST = Capabilities(
    name="host",
    simulated=False,
    cores=True,
    nccl=False,
    nvml=False,
    largest_bytes=64 * 2**20,  # larger ones take cores minutes
    largest_pattern_bytes=64 * 2**20,
)
SIM = Capabilities(
    name="sim",
    simulated=True,
    cores=False,
    nccl=False,
    nvml=False,
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
