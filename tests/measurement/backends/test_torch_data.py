"""The data that ranks send, and what must arrive: against torch's own reductions, and faults that must be seen."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from collbench.measurement.backends.host import DTYPES
from collbench.model.operations import Operation
from collbench.model.units import DTYPE_BYTES

if TYPE_CHECKING:
    import torch

    from collbench.measurement.backends.torch_rank import Message

pytestmark = [
    pytest.mark.usefixtures("loaded_torch"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent"),
]


def messages(
    operation: Operation,
    ranks: int,
    count: int,
    dtype: str = "float32",
    redop: str = "sum",
    *,
    root: int = 0,
    in_place: bool = True,
) -> list[Message]:
    """Return what each rank puts into a collective of so many elements, filled for the first time."""
    import torch

    from collbench.measurement.backends.torch_rank import Elements, Message, part_of

    torch.set_num_threads(1)  # as the ranks: on busy cores its threads wait for each other at full speed
    kind, made = Elements(dtype, redop if operation.reduces else "", ranks), []
    for rank in range(ranks):
        blocks = ((count // ranks,) * ranks,) * ranks if operation.irregular else ()
        part = part_of(operation, count, rank, ranks, root, blocks)
        made.append(Message(kind, part, rank, torch.device("cpu"), in_place=in_place))
        made[-1].fill(0)
    return made


def wrong(message: Message) -> int:
    import torch

    count = torch.zeros((), dtype=torch.int64)
    message.wrong(count)
    return int(count)


def delivered(message: Message, data: torch.Tensor) -> Message:
    """Return the message after a call has delivered this."""
    message.received.copy_(data)
    message.uses = 1
    return message


def reduced(contributions: torch.Tensor, redop: str) -> torch.Tensor:
    """Reduce along ranks in float64, where all of this is exact, by torch's own axis reductions."""
    return {
        "sum": contributions.sum(0),
        "avg": contributions.mean(0),
        "prod": contributions.prod(0),
        "min": contributions.amin(0),
        "max": contributions.amax(0),
    }[redop]


@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("windows", "extra_elements"), [(0, 4097), (1, 3)])
def test_expected_results_are_torchs_own_and_one_wrong_element_is_seen(
    dtype: str, redop: str, windows: int, extra_elements: int
) -> None:
    import torch

    from collbench.measurement.backends.torch_rank import _CORE_WINDOW

    count = windows * _CORE_WINDOW + extra_elements
    ranks = messages(Operation.ALLREDUCE, 3, count, dtype, redop)
    result = reduced(torch.stack([message.sent for message in ranks]).double(), redop).to(ranks[0].sent.dtype)
    assert all(delivered(message, result).first_wrong() is None for message in ranks)
    right = float(result[-1])
    result[-1] += 1
    message = delivered(ranks[0], result)
    assert message.first_wrong() == ((count - 1) * DTYPE_BYTES[dtype], right, right + 1)
    assert wrong(message) == 1


# By the pictures of NCCL's manual ("Collective Operations"): what three ranks hold before and after, a letter a block.
PICTURES = {
    Operation.ALLREDUCE: (("abc", "def", "ghi"), ("a+d+g b+e+h c+f+i",) * 3),
    Operation.BROADCAST: (("abc", "def", "ghi"), ("d e f",) * 3),
    Operation.REDUCE: (("abc", "def", "ghi"), (None, "a+d+g b+e+h c+f+i", None)),
    Operation.ALLGATHER: (("a", "b", "c"), ("a b c",) * 3),
    Operation.REDUCESCATTER: (("abc", "def", "ghi"), ("a+d+g", "b+e+h", "c+f+i")),
    Operation.ALLTOALL: (("abc", "def", "ghi"), ("a d g", "b e h", "c f i")),
    Operation.ALLTOALLV: (("abc", "def", "ghi"), ("a d g", "b e h", "c f i")),
    Operation.SENDRECV: (("abc", "def", "ghi"), ("g h i", "a b c", "d e f")),
    Operation.GATHER: (("a", "b", "c"), (None, "a b c", None)),
    Operation.SCATTER: ((None, "abc", None), ("a", "b", "c")),
}


@pytest.mark.parametrize("operation", PICTURES)
@pytest.mark.parametrize("in_place", [False, True])
def test_expected_results_are_those_of_nccls_manual(operation: Operation, in_place: bool) -> None:
    import torch

    sent_pictures, received_pictures = PICTURES[operation]
    block = 5
    ranks = messages(operation, 3, 3 * block, "int32", root=1, in_place=in_place)
    blocks: dict[str, torch.Tensor] = {}
    for message, letters in zip(ranks, sent_pictures, strict=True):
        assert len(message.sent) == block * len(letters or "")
        blocks |= {letter: message.sent[at * block :][:block].clone() for at, letter in enumerate(letters or "")}
    for message, picture in zip(ranks, received_pictures, strict=True):
        assert message.known is (picture is not None)
        if picture is None:
            continue
        sums = [sum(blocks[letter] for letter in term.split("+")) for term in picture.split()]
        assert delivered(message, torch.cat([torch.as_tensor(one) for one in sums])).first_wrong() is None
        message.received[-1] += 1
        wrong_element = message.first_wrong()
        assert wrong_element is not None
        assert wrong_element[0] == (len(sums) * block - 1) * 4
        assert wrong(delivered(message, torch.zeros_like(message.received))) == len(message.received), "zeros arrived"


def test_swapped_and_earlier_data_are_seen() -> None:
    receiver, root, _ = messages(Operation.BROADCAST, 3, 2**16, "uint8", root=1)
    sent = root.sent.clone()
    assert delivered(receiver, sent).first_wrong() is None
    assert receiver.first_wrong() is None
    assert delivered(receiver, sent.roll(4096)).first_wrong() is not None, "pages swapped"
    receiver.fill(1)
    assert delivered(receiver, sent).first_wrong() is not None, "the filling before"


@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max"])
def test_repeating_a_reduction_leaves_steady_data_right(redop: str) -> None:
    import torch

    ranks = messages(Operation.ALLREDUCE, 3, 100, "float16", redop)
    for message in ranks:
        message.fill(0, steady=True)
    for _ in range(50):
        result = reduced(torch.stack([message.sent for message in ranks]), redop)
        for message in ranks:
            message.received.copy_(result)
            message.uses += 1
    assert ranks[2].first_wrong() is None
    ranks[2].received[3] += 1
    assert ranks[2].first_wrong() is not None


@pytest.mark.parametrize(
    ("title", "ranks", "uses", "known"),
    [
        ("not used: nothing to compare", 2, 0, False),
        ("once", 3, 1, True),
        ("again and again, exact for a power of two", 4, 5, True),
        ("not exact for three", 3, 2, False),
        ("beyond the exponent", 2, 200, False),
    ],
)
def test_a_sum_in_place_that_is_repeated_is_compared_where_it_is_exact(
    title: str, ranks: int, uses: int, known: bool
) -> None:
    import torch

    message, *others = messages(Operation.ALLREDUCE, ranks, 96, "bfloat16")
    result = torch.stack([message.sent, *(other.sent for other in others)]).sum(0)
    message.received.copy_(result * ranks ** (uses - 1) if known else result)
    message.uses = uses
    assert message.comparable is known, title
    assert wrong(message) == 0
    message.received[17] += float(ranks) ** min(uses, 99)
    assert wrong(message) == int(known)


@pytest.mark.parametrize(
    ("dtype", "redop", "ranks", "exact"),
    [
        ("bfloat16", "sum", 64, True),
        ("bfloat16", "sum", 257, False),
        ("float8_e4m3fn", "sum", 16, True),
        ("float8_e4m3fn", "sum", 17, False),
        ("float8_e5m2", "sum", 9, False),
        ("int8", "prod", 7, True),  # it wraps, equally everywhere
        ("float8_e4m3fn", "prod", 9, False),
        ("float32", "avg", 4, True),
        ("float32", "avg", 3, False),
        ("int32", "avg", 4, False),
        ("int8", "max", 999, True),
        ("uint8", "", 999, True),
    ],
)
def test_only_what_has_one_right_result_is_compared(dtype: str, redop: str, ranks: int, exact: bool) -> None:
    import torch

    from collbench.measurement.backends.torch_rank import values_of

    values = values_of(dtype, redop, ranks)
    assert bool(values) is exact
    if values and redop in ("sum", "avg"):  # each partial sum is a number of this type
        sums = torch.arange(values[-1] * ranks + 1, dtype=torch.float64)
        assert torch.equal(sums.to(getattr(torch, dtype)).double(), sums)
