"""Rounds in which all nodes of a cluster are measured at once, in pairs: first at random, then where it is suspicious.

N nodes have N(N-1)/2 pairs. A round measures N/2 of them, so r rounds give each node r measurements, and r is small.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collbench.measure.rounds import Pair, pair_rounds, relabelled

Group = tuple[int, ...]

# The kind of round whose pairs were chosen because both nodes look slow.
AMONG = "among suspects"
# At 2 % noise the mean of eight measurements is known to 0.8 %: a node that is 10 % slow stands out among 128 (the
# simultaneous 95 % quantile is 3.4), and a few slow partners do not matter.
SCREENING = 8
# How often a pair is parted that should not be one: random swaps rarely need more than a few.
_TRIES = 64


@dataclass(frozen=True, slots=True)
class Round:
    """Disjoint pairs that are measured at the same time; a node without a partner rests. `kind` is for people."""

    kind: str
    pairs: tuple[Pair, ...]


def survey(
    nodes: int,
    leaves: Sequence[Group],
    measure: Callable[[Round], object],
    suspects: Callable[[], Sequence[Group] | None],
    more: Callable[[int], bool],
    rng: random.Random,
) -> tuple[Round, ...]:
    """Measure rounds until nothing is suspicious, or `more(rounds made)` says no; return what was measured.

    The screening is made in any case. `leaves` are the switches where they are known: pairs then lie under one leaf and
    apart in turn, which tells a node from its uplink. `suspects()` returns the groups to measure among themselves, none
    of them for pairs at random, or None when all is decided.
    """
    made: list[Round] = []
    for planned in screening(nodes, leaves, rng):
        measure(planned)
        made.append(planned)
    while more(len(made)) and (groups := suspects()) is not None:
        inside = bool(groups) and len(made) % 3 != 2  # every third goes on between them and the others
        pairs = matching(nodes, groups, rng) if inside else apart(nodes, leaves or groups, rng)
        made.append(Round(AMONG if inside else "suspects and others", pairs))
        measure(made[-1])
    return tuple(made)


def screening(nodes: int, leaves: Sequence[Group], rng: random.Random) -> list[Round]:
    """Return the rounds that every node gets."""
    if leaves:
        kinds = [("within leaves", matching), ("between leaves", apart)] * (SCREENING // 2)
        return [Round(kind, make(nodes, leaves, rng)) for kind, make in kinds]
    # No pair twice before all were measured once; small clusters go round again.
    rounds: list[list[Pair]] = []
    while nodes > 1 and len(rounds) < SCREENING:
        turn = relabelled(pair_rounds(nodes), nodes, rng)
        rng.shuffle(turn)
        rounds += turn
    return [Round("at random", tuple(pairs)) for pairs in rounds[:SCREENING]]


def matching(nodes: int, groups: Sequence[Group], rng: random.Random) -> tuple[Pair, ...]:
    """Return random pairs within each group; whoever is left over, and all others, meet at random."""
    pairs: list[Pair] = []
    rest = set(range(nodes))
    for group in groups:
        members = rng.sample(group, len(group))
        pairs += zip(members[::2], members[1::2], strict=False)
        rest -= set(members[: len(members) // 2 * 2])
    left = rng.sample(sorted(rest), len(rest))
    return tuple(pairs + list(zip(left[::2], left[1::2], strict=False)))


def apart(nodes: int, groups: Sequence[Group], rng: random.Random) -> tuple[Pair, ...]:
    """Return random pairs of which, as far as possible, none lies within a group."""
    place = {member: number for number, group in enumerate(groups) for member in group}
    pairs = list(matching(nodes, (), rng))

    def together(pair: Pair) -> bool:
        return pair[0] in place and place[pair[0]] == place.get(pair[1])

    for _ in range(_TRIES):
        wrong = [number for number, pair in enumerate(pairs) if together(pair)]
        if not wrong:
            break
        for number in wrong:
            other = rng.randrange(len(pairs))
            (a, b), (c, d) = pairs[number], pairs[other]
            if other != number and not together((a, d)) and not together((c, b)):
                pairs[number], pairs[other] = (a, d), (c, b)
    return tuple(pairs)
