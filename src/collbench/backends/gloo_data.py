"""What gloo ranks send, and what must arrive: small integers, so that every reduction is exact in every dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from collbench.backends.gloo_messages import Task, Wrong

# Rank r's data is one random sequence from element r × this on: ranks differ, and no stretch of memory repeats
# another. Prime, so that no swap of aligned blocks or ranks goes unseen.
_RANK_SHIFT = 4099

# Elements made and compared at a time: they stay in cache, and a message costs no second message of memory.
_WINDOW = 2**18

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}

# What a reduction in place does not carry away when it is repeated; minimum and maximum keep any result.
_NEUTRAL = {"sum": 0, "prod": 1}


class Message:
    """What the rank at `position` of `members` ranks holds before the task's collective, and must hold after it.

    The timed iterations repeat in place, and a copy of fresh input would be timed with them. So for them the data is
    `steady`: zeros to be summed and ones to be multiplied; all else repeats unharmed with the data it has.
    """

    def __init__(self, task: Task, position: int, members: int) -> None:
        self._count = task["count"]
        self._dtype: torch.dtype = getattr(torch, task["dtype"])
        self._redop = task["redop"] if task["operation"] == "allreduce" else ""
        self._position = position
        self._senders = range(members) if self._redop else (task["root"],)
        self._base = _random_base(self._count + members * _RANK_SHIFT)

    def fill(self, tensor: torch.Tensor, *, steady: bool) -> None:
        """Write what this rank puts in."""
        for start, stop in self._windows():
            tensor[start:stop] = self._contribution(self._position, start, stop, steady=steady)

    def first_wrong(self, tensor: torch.Tensor, *, steady: bool) -> Wrong | None:
        """Return the first element that is not what all ranks' contributions make, or None."""
        for start, stop in self._windows():
            parts = (self._contribution(sender, start, stop, steady=steady) for sender in self._senders)
            expected = functools.reduce(_COMBINE.get(self._redop, torch.add), parts)
            if not torch.equal(tensor[start:stop], expected):
                at = int((tensor[start:stop] != expected).nonzero()[0])
                return (start + at) * tensor.element_size(), float(expected[at]), float(tensor[start + at])
        return None

    def _windows(self) -> Iterator[tuple[int, int]]:
        return ((start, min(start + _WINDOW, self._count)) for start in range(0, self._count, _WINDOW))

    def _contribution(self, sender: int, start: int, stop: int, *, steady: bool) -> torch.Tensor:
        """Return elements [start, stop) of what the rank at position `sender` puts in.

        1 … 8, so that 15 ranks sum to no more than int8 holds; 1 or 2 to be multiplied, whose products are powers of
        two: exact in floats, and equal modulo 2^bits in integers.
        """
        if steady and self._redop in _NEUTRAL:
            return torch.full((stop - start,), _NEUTRAL[self._redop], dtype=self._dtype)
        shift = sender * _RANK_SHIFT
        values = self._base[shift + start : shift + stop]
        return ((values & 1 if self._redop == "prod" else values) + 1).to(self._dtype)


def _random_base(length: int) -> torch.Tensor:
    """Return `length` or a few more uint8 values 0 … 7, the same in every process: eight from each random word."""
    words = torch.empty(length // 8 + 1, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(length))
    return words.view(torch.uint8).bitwise_and_(7)
