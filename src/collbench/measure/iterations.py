"""How many messages a timed block holds: enough for the clock, few enough for many blocks."""

from __future__ import annotations

from collbench.operations import Operation, Work

# METHOD.md §2.2: the gated queue stays shallow. 20 is also what nccl-tests takes by default (-n).
_MOST = 20
# Copies that last microseconds: their launches cost more than the copies, so a block holds a few less.
_MOST_SMALL, _SMALL_BELOW = 16, 2**20
# Accesses of a pointer chase: 248 on each of an H200's 132 multiprocessors, 28 ms. From one multiprocessor to the next
# takes the time of about one access.
_CHASE_ACCESSES = 32768
# A chain of collectives ends when its last rank does, later than the root of a broadcast: in a chain of 2 × 64 MiB on
# 4 × H200 that drain was 15 % of the time. So chains are longer than blocks of copies, and those of many ranks, whose
# pipeline drains longer, hold four at least. A pair's largest messages take milliseconds each: one is enough.
_CHAIN_BLOCKS = 2
_FEWEST_OF_MANY_RANKS = 4
_LONGEST_CHAIN = 32  # what the engine captures (collective_round.cpp); a longer one tells no more
_SINGLE_FROM = 512 * 2**20


def iterations(work: Work, members: int, size_bytes: int, block_bytes: int) -> int:
    """Return the messages of one timed block that should move about `block_bytes`; accesses for a pointer chase."""
    if work.operation is Operation.CHASE:
        return _CHASE_ACCESSES
    if not work.operation.is_collective:
        most = _MOST_SMALL if size_bytes < _SMALL_BELOW else _MOST
        return max(1, min(most, -(-block_bytes // size_bytes)))
    fewest = _FEWEST_OF_MANY_RANKS if members > 2 else 1 if size_bytes >= _SINGLE_FROM else 2
    return max(fewest, min(_MOST, -(-block_bytes * _CHAIN_BLOCKS // size_bytes)))


def asked_iterations(asked: int) -> int:
    """Return the messages of a block where the user asked for so many (-n): the launch loop makes them all."""
    return min(asked, _LONGEST_CHAIN)
