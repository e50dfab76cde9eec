"""How messages are cut into blocks by rank: equal ones, Zipf's law, or a matrix (docs/method/collectives.md 9)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

# Bytes from each rank (row) to each rank (column), its own block on the diagonal.
Blocks = tuple[tuple[int, ...], ...]

# nccl-tests cuts each rank's block to whole units of 16 bytes, so that NCCL's widest loads fit [src/all_gather.cu:10,
# src/alltoallv.cu].
BLOCK_UNIT = 16
# Shares are whole numbers of 2^-40, so that blocks are cut exactly and alike on every machine.
_WHOLE = 2**40
# With a larger exponent all but one rank get nothing, at any size.
LARGEST_EXPONENT = 40


class SkewKind(StrEnum):
    """Where the sizes of blocks come from."""

    ZIPF = "zipf"
    MATRIX = "matrix"


@dataclass(frozen=True, slots=True)
class Skew:
    """The sizes of blocks relative to each other, where they are not all alike.

    By Zipf's law each rank sends as much in all, and the k-th most popular rank receives a share ∝ 1/k^`exponent` of
    it; `seed` shuffles which rank is how popular. A `matrix` holds bytes, row = source, column = destination.
    """

    kind: SkewKind
    exponent: float = 0.0
    seed: int = 0
    matrix: Blocks = ()

    def __post_init__(self) -> None:
        """Raise ValueError for what is no skew."""
        if not 0 <= self.exponent <= LARGEST_EXPONENT:
            raise ValueError(f"the exponent of a skew is {self.exponent}, not 0 to {LARGEST_EXPONENT}")
        if self.kind is SkewKind.ZIPF:
            if self.matrix:
                raise ValueError("a skew has both an exponent and a matrix")
            return
        if any(len(row) != len(self.matrix) for row in self.matrix):
            raise ValueError("the matrix of a skew is not square")
        if any(value < 0 or value % BLOCK_UNIT for row in self.matrix for value in row):
            raise ValueError("the matrix of a skew has a value that is negative or not a multiple of 16 bytes")
        if not any(map(any, self.matrix)):
            raise ValueError("the matrix of a skew sends nothing")

    def check(self, ranks: int) -> None:
        """Raise ValueError if it does not fit this number of ranks."""
        if self.kind is SkewKind.MATRIX and len(self.matrix) != ranks:
            side = len(self.matrix)
            raise ValueError(
                f"the matrix is {side} × {side}, and there are {ranks} ranks: choose {side} of the devices, or write a "
                f"matrix of {ranks} × {ranks}"
            )

    @property
    def own_bytes(self) -> int | None:
        """The size at which a matrix is sent as it stands: its busiest rank's bytes. None for other kinds."""
        return busiest(self.matrix) if self.kind is SkewKind.MATRIX else None

    def weights(self, ranks: int) -> Blocks:
        """Return the blocks' sizes relative to each other."""
        self.check(ranks)
        if self.kind is SkewKind.MATRIX:
            return self.matrix
        from hashlib import sha256  # late: OpenSSL, 4 ms, and few blocks are uneven

        shares = [0] * ranks
        # By a hash, so that a seed means the same with every Python.
        popular = sorted(range(ranks), key=lambda rank: sha256(f"{self.seed}:{rank}".encode()).digest())
        for position, rank in enumerate(popular, start=1):
            shares[rank] = round(_WHOLE / position**self.exponent)
        return (tuple(shares),) * ranks

    def __str__(self) -> str:
        """Return "zipf:1.2", "zipf:1.2:7" with a seed, or a matrix with its checksum: "matrix 8x8 1c291ca3"."""
        if self.kind is SkewKind.ZIPF:
            exponent = f"{self.exponent:.6f}".rstrip("0").rstrip(".")
            return f"zipf:{exponent}" + (f":{self.seed}" if self.seed else "")
        side, mark = len(self.matrix), zlib.crc32(repr(self.matrix).encode())
        return f"matrix {side}x{side} {mark:08x}"


def busiest(blocks: Blocks) -> int:
    """Return the bytes of the rank that sends or receives the most, as nccl-tests counts an all-to-all-v's size."""
    return max(*map(sum, blocks), *map(sum, zip(*blocks, strict=True)))


def imbalance(blocks: Blocks) -> float:
    """Return the busiest rank's bytes over the mean rank's: 1 where all blocks are alike."""
    return busiest(blocks) * len(blocks) / sum(map(sum, blocks))


def whole_blocks(size_bytes: int, world_size: int) -> int:
    """Return the largest size ≤ size_bytes that `world_size` ranks share in equal blocks of whole 16-byte units.

    Source: nccl-tests' all_gather.cu, GetCollByteCount. 0 if the message is too small for that.
    """
    unit = world_size * BLOCK_UNIT
    return size_bytes // unit * unit


def whole_size(skew: Skew | None, ranks: int, size_bytes: int) -> int:
    """Return what the busiest rank sends or receives of a message of `size_bytes`, in bytes.

    At most that many, as each block is cut to 16 bytes; 0 if nothing is left. None is uniform. Raises ValueError
    where the skew is not for so many ranks.
    """
    return busiest(_cut(_weights(skew, ranks), size_bytes))


@lru_cache(maxsize=256)
def blocks_of(skew: Skew | None, ranks: int, size_bytes: int) -> Blocks:
    """Return the bytes of each block. The busiest rank sends or receives `size_bytes` in all.

    None is uniform. Raises ValueError for a size that `whole_size` does not return, and as it does.
    """
    weights = _weights(skew, ranks)
    # The least size that is cut to this one: any two that are cut to it may differ in other ranks' blocks.
    low, high = size_bytes, size_bytes + ranks * BLOCK_UNIT
    while busiest(_cut(weights, high)) < size_bytes:
        high += ranks * BLOCK_UNIT
    while low < high:
        middle = (low + high) // 2
        if busiest(_cut(weights, middle)) < size_bytes:
            low = middle + 1
        else:
            high = middle
    blocks = _cut(weights, low)
    if size_bytes < 1 or busiest(blocks) != size_bytes:
        raise ValueError(f"blocks of 16 B multiples cannot give {size_bytes} bytes on the busiest of {ranks} ranks")
    return blocks


def across(blocks: Blocks, inside: tuple[int, ...]) -> int:
    """Return the bytes that must cross the border of some ranks in one direction, that with the most."""
    within, everyone = set(inside), range(len(blocks))
    out = sum(blocks[src][dst] for src in inside for dst in everyone if dst not in within)
    into = sum(blocks[src][dst] for dst in inside for src in everyone if src not in within)
    return max(out, into)


def leaving(blocks: Blocks) -> int:
    """Return the bytes that all ranks send to others."""
    return sum(map(sum, blocks)) - sum(row[rank] for rank, row in enumerate(blocks))


def _weights(skew: Skew | None, ranks: int) -> Blocks:
    return ((1,) * ranks,) * ranks if skew is None else skew.weights(ranks)


def _cut(weights: Blocks, size_bytes: int) -> Blocks:
    """Return the blocks of a message whose busiest rank has `size_bytes` before the cut to whole units."""
    most = busiest(weights)
    rows: dict[tuple[int, ...], tuple[int, ...]] = {}  # Zipf's law makes them all equal
    for row in weights:
        if row not in rows:
            rows[row] = tuple(size_bytes * weight // most // BLOCK_UNIT * BLOCK_UNIT for weight in row)
    return tuple(rows[row] for row in weights)
