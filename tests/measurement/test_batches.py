import pytest

from collbench.measurement.plan import batch_bytes, default_stopping_rule, directed_links, unordered_pairs
from collbench.model.operations import Operation, Work
from collbench.model.run import Members

MIB, GIB = 2**20, 2**30
EVERYTHING = tuple(2**power for power in range(3, 31))
COPIES = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE, Operation.SM_READ)


def groups_of(n: int, sizes: tuple[int, ...], operations: tuple[Operation, ...]) -> dict[Work, tuple[Members, ...]]:
    return {
        Work(operation): unordered_pairs(n) if operation.is_collective else directed_links(n)
        for operation in operations
    }


@pytest.mark.parametrize(
    ("title", "backend", "operations", "n", "sizes", "length"),
    [
        ("all of pairs on four GPUs", "cuda", (*COPIES, Operation.ALLREDUCE), 4, EVERYTHING, 128 * MIB),
        ("copies of one size on a pair, as nvbandwidth", "cuda", COPIES, 2, (64 * MIB,), 16 * GIB),
        ("small messages never fill a batch", "cuda", COPIES, 4, (8, 64), 16 * GIB),
        ("one collective on a pair", "cuda", (Operation.ALLREDUCE,), 2, (64 * MIB,), 16 * GIB),
        ("cores have one length", "host", (Operation.CPU_WRITE,), 2, (8,), 4 * MIB),
    ],
)
def test_batches_are_as_long_as_the_time_allows(
    title: str, backend: str, operations: tuple[Operation, ...], n: int, sizes: tuple[int, ...], length: int
) -> None:
    groups = groups_of(n, sizes, operations)
    assert batch_bytes(groups, dict.fromkeys(groups, sizes), n, default_stopping_rule(backend)) == length, title
