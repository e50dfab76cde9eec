"""The host's lane of a training step: how far it has launched the kernels that the GPU will run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collbench.cost.model import Network, Unit
from collbench.cost.strategies import FORWARD_SHARE
from collbench.errors import UsageError

# A place in the step (share of the GPU's compute), and the share of the host's time after which all before is launched.
Knot = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Phases:
    """The host's time in forward, backward and optimizer, in any unit: only their ratios count."""

    forward: float
    backward: float
    optimizer: float

    @property
    def total(self) -> float:
        """The sum, in the same unit."""
        return self.forward + self.backward + self.optimizer

    @property
    def shares(self) -> tuple[float, float, float]:
        """The same with a sum of 1."""
        return self.forward / self.total, self.backward / self.total, self.optimizer / self.total


_PHASES = ("forward", "backward", "optimizer")
_MOST = 1e9  # a sum of such numbers is still finite
# Where nobody timed the host: as the GPU, and nothing hides behind an optimizer of which nothing is known.
AS_THE_GPU = Phases(FORWARD_SHARE, 1 - FORWARD_SHARE, 0.0)
ASSUMED_OF_HOST = (
    "the GPU runs nothing before the host has launched it, each layer in a share of its tensors; the host begins with "
    "the GPU, waits for no kernel, and the step ends when both have",
    "the optimizer's own time on the GPU is counted to backward",
)
NO_PHASES = (
    "the host takes 1/3 of its time for forward, 2/3 for backward and none for the optimizer; --host-phases tells"
)


@dataclass(frozen=True, slots=True)
class Host:
    """A host that may hold the GPU: `gpu_seconds` is the step if it did not; `knots` are its pace, ascending.

    The last knot is the end of backward; what is left of the host's time launches the optimizer.
    """

    gpu_seconds: float
    knots: tuple[Knot, ...]

    def seconds(self, step: float) -> float:
        """Return the seconds that the host takes to launch a step without communication of so many seconds.

        The most that make the step no longer: where it takes `gpu_seconds` the host never holds the GPU.
        """
        waits = [(step - self.gpu_seconds * (1 - place)) / share for place, share in self.knots if share]
        return max(0.0, min([step, *waits]))


def pace(network: Network, micro_batches: int, phases: Phases) -> tuple[Knot, ...]:
    """Return the knots of a host that launches each unit in a share of its tensors, about as many kernels."""
    forward, backward, _ = phases.shares
    knots, begin = [(0.0, 0.0)], 0.0
    for number in range(micro_batches):
        turn = (number + FORWARD_SHARE) / micro_batches
        middle, end = begin + forward / micro_batches, begin + (forward + backward) / micro_batches
        knots += _stretch(network.units, (knots[-1][0], turn), (begin, middle))
        knots += _stretch(network.units[::-1], (turn, (number + 1) / micro_batches), (middle, end))
        begin = end
    return tuple(knots)


def _stretch(units: Sequence[Unit], places: tuple[float, float], shares: tuple[float, float]) -> Iterator[Knot]:
    """Yield a knot at the end of each unit that computes: place by its work, host's share by its tensors."""
    computing = [unit for unit in units if unit.work]
    work, tensors = (sum(parts) for parts in zip(*((u.work, len(u.tensors)) for u in computing), strict=True))
    done, launched = 0.0, 0
    for unit in computing[:-1]:
        done, launched = done + unit.work, launched + len(unit.tensors)
        place, share = done / work, launched / tensors if tensors else done / work
        yield places[0] + place * (places[1] - places[0]), shares[0] + share * (shares[1] - shares[0])
    yield places[1], shares[1]


def parse_phases(text: str) -> Phases:
    """Return the phases that "12.1,14.3,9.8" are. Raises UsageError."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    # A part of zero would say that no kernel is launched there; the optimizer's may be one.
    if len(found) != len(_PHASES) or not all(0 <= part <= _MOST for part in found) or 0 in found[:2]:
        raise UsageError(
            f"--host-phases '{text}' is not the host's time in {', '.join(_PHASES)}: write 12,14,9, in ms or any unit, "
            "as only their ratios count"
        )
    return Phases(*found)
