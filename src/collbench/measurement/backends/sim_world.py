"""Simulated workers: the place of torch's takes a load that knows, from a fabric, what it would take."""

from __future__ import annotations

from collections.abc import Callable
from math import fsum
from typing import Protocol, TypeVar

from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Choice
from collbench.measurement.backends.protocol import OpenWorkers
from collbench.measurement.backends.sim import SimBackend
from collbench.model.capabilities import SIM
from collbench.sim.fabrics import Fabric


class SimWorld(Protocol):
    """What simulates all ranks of a load."""

    def clock(self) -> float:
        """Return the seconds that all loads so far would have taken."""
        ...


World = TypeVar("World", bound=SimWorld)


def opened(
    fabric_name: str | None,
    wanted: str | None,
    seed: int,
    chosen: Choice,
    make_worlds: Callable[[Fabric, SimBackend], list[World]],
    span_seconds: float,
) -> OpenWorkers[World]:
    """Return the worlds that `make_worlds` makes on the devices of a fabric that are `chosen` of those wanted.

    `span_seconds` are the seconds of a load. Raises UsageError.
    """
    fabric = factory.simulated(fabric_name)
    backend = factory.simulated_backend(fabric, wanted, seed, chosen)
    worlds = make_worlds(fabric, backend)
    return OpenWorkers(
        SIM.name,
        tuple(worlds),
        backend.devices(),
        span_seconds,
        machine=backend.machine(),
        paths=backend.paths(),
        health=backend.health,
        flags=backend.flags,
        environment=backend.environment(),
        clock=lambda: fsum(world.clock() for world in worlds),
    )
