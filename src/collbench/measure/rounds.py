"""Pairs in rounds: every pair of devices once, disjoint pairs together."""

from __future__ import annotations

import random
from collections.abc import Sequence

Pair = tuple[int, int]


def pair_rounds(n: int) -> list[list[Pair]]:
    """Return the circle method's rounds over devices 0 … n−1: n−1 rounds of n/2 pairs, or n rounds when n is odd.

    Each pair is (low, high). In an odd round one device rests.
    """
    seats: list[int | None] = [*range(n), *([None] if n % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        meetings = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in meetings if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]  # the first sits still, the others move on
    return rounds


def relabelled(rounds: Sequence[Sequence[Pair]], n: int, rng: random.Random) -> list[list[Pair]]:
    """Return the rounds with the devices renamed at random, so that a pair meets other neighbours in each pass."""
    names = rng.sample(range(n), n)
    return [[(min(names[a], names[b]), max(names[a], names[b])) for a, b in pairs] for pairs in rounds]
