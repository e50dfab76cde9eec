"""What a network is to communication: its tensors in the order of forward, grouped into the units that FSDP gathers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """A part that is computed, and by FSDP gathered, as one.

    `tensors` are parameters of each tensor, in the order that the module registers them; `work` is the multiply-adds of
    its forward for a token or an image, attention's scores left out: only its share of the whole counts.
    """

    tensors: tuple[int, ...]
    work: float

    @property
    def parameters(self) -> int:
        """How many parameters it has."""
        return sum(self.tensors)


@dataclass(frozen=True, slots=True)
class Network:
    """A network as data: `first` (embeddings, stem), `blocks`, `last` (final norm, head), and the `source` of that.

    First and last are FSDP's root unit. A head that is tied to the embeddings counts once, in `first`, though `last`
    holds its work: its gradient is complete only at the end of backward. `assumed` are sentences about what is guessed.
    """

    name: str
    first: Unit
    blocks: tuple[Unit, ...]
    last: Unit
    source: str
    assumed: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units in the order of forward."""
        return (self.first, *self.blocks, self.last)

    @property
    def parameters(self) -> int:
        """How many parameters it has."""
        return sum(unit.parameters for unit in self.units)

    @property
    def root_parameters(self) -> int:
        """How many parameters FSDP's root unit holds: all that lies in no block."""
        return self.first.parameters + self.last.parameters
