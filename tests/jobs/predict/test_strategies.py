"""What each strategy sends in a step: bytes by hand, and where in the step."""

from collections import Counter
from itertools import pairwise

import pytest

from collbench.jobs.predict import networks
from collbench.jobs.predict.assumptions import Assumed, OfStrategy
from collbench.jobs.predict.page import assumptions
from collbench.jobs.predict.step import STRATEGIES, Group, Job, Transfer, parse_strategies
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from tests.jobs.predict.made import MIB, SMALL

AR, AG, RS = Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER


def sent(strategy: str, job: Job) -> dict[Operation, int]:
    total = Counter[Operation]()
    for transfer in STRATEGIES[strategy](job):
        total[transfer.operation] += transfer.size_bytes
    return dict(total)


# SMALL has 4 blocks of 4 MiB and a root of 2 MiB in fp32: P = G = 18 MiB. Three micro-batches.
@pytest.mark.parametrize(
    ("strategy", "mebibytes"),
    [
        ("ddp", {AR: 18}),  # G, once
        ("zero1", {RS: 18, AG: 18}),  # RS(G) + AG(P)
        ("zero2", {RS: 3 * 18, AG: 18}),  # m·RS(G) + AG(P)
        ("zero3", {AG: 3 * 2 * 18, RS: 3 * 18}),  # m·(2·AG + RS)
        ("fsdp", {AG: 3 * (2 * 16 + 2), RS: 3 * 18}),  # the root is gathered once a micro-batch
        ("hsdp", {AG: 3 * (2 * 16 + 2), RS: 3 * 18, AR: 3 * 9}),  # copies on 2 GPUs: shards are half of each gradient
    ],
)
def test_bytes_of_a_step_by_hand(strategy: str, mebibytes: dict[Operation, int]) -> None:
    job = Job(SMALL, 4, 4, micro_batches=3, shards=2, replicas=2)
    assert sent(strategy, job) == {operation: size * MIB for operation, size in mebibytes.items()}


def test_gpt2_in_bf16_by_hand() -> None:
    """124,439,808 parameters of two bytes; its head is the embedding and is sent once."""
    job = Job(networks.find("gpt2"), 2, 2)
    assert sent("ddp", job) == {AR: 248_879_616}
    root = 2 * ((50257 + 1024) * 768 + 2 * 768)
    assert sent("fsdp", job) == {AG: 2 * 248_879_616 - root, RS: 248_879_616}


def test_zero3_moves_half_as_much_again_as_ddp() -> None:
    """docs/method.md 12: an all-reduce moves twice the bus bytes of a gather or a scatter of the same size."""
    job = Job(networks.find("llama-3-8b"), 2, 2)
    three = sum(sent("zero3", job).values())
    assert three / (2 * sent("ddp", job)[AR]) == pytest.approx(1.5)


def test_gradients_may_be_wider_than_parameters() -> None:
    assert sent("zero1", Job(SMALL, 2, 4)) == {RS: 18 * MIB, AG: 9 * MIB}


def test_hsdp_of_one_copy_is_fsdp_in_another_group() -> None:
    def plain(transfers: list[Transfer]) -> list[tuple[object, ...]]:
        return [(t.operation, t.size_bytes, t.ready, t.needed) for t in transfers]

    job = Job(SMALL, 4, 4, micro_batches=2, shards=4, replicas=1)
    assert plain(list(STRATEGIES["hsdp"](job))) == plain(list(STRATEGIES["fsdp"](job)))
    assert {t.group for t in STRATEGIES["hsdp"](job)} == {Group.SHARD}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["gpt2", "bert-base", "llama-3-8b"])
def test_transfers_lie_in_the_step_in_their_order(strategy: str, name: str) -> None:
    job = Job(networks.find(name), 2, 2, micro_batches=3, shards=2, replicas=2)
    transfers = list(STRATEGIES[strategy](job))
    assert all(0 <= t.ready <= t.needed + 1e-12 <= 1 + 2e-12 for t in transfers)
    assert all(a.ready <= b.ready + 1e-12 for a, b in pairwise(transfers))
    assert all(t.size_bytes > 0 for t in transfers)


def test_ddp_and_zero1_communicate_on_the_last_micro_batch_alone() -> None:
    """The backward of the last of four begins after 3 of them and a third: 10/12 of the compute."""
    for strategy in ("ddp", "zero1"):
        first = next(iter(STRATEGIES[strategy](Job(SMALL, 4, 4, micro_batches=4))))
        # The first bucket, of 1 MiB at least, is the last block's last tensor: half of a quarter of that backward.
        assert first.ready == pytest.approx(10 / 12 + 2 / 12 / 4 / 2)


def test_fsdp_gathers_a_unit_while_the_one_before_computes() -> None:
    """Four equal blocks: forward ends at 1/3, backward takes the rest; the root computes nothing."""
    transfers = list(STRATEGIES["fsdp"](Job(SMALL, 4, 4)))
    gathers = [(t.ready, t.needed) for t in transfers if t.operation is AG]
    third, step = 1 / 3, 2 / 3 / 4
    expected = [
        *((0, 0), (0, 0), (0, third / 4), (third / 4, third / 2), (third / 2, third * 3 / 4)),  # root, blocks 0 to 3
        *((third, third), (third, third + step), (third + step, third + 2 * step)),  # blocks 3, 2, 1
        (third + 2 * step, third + 3 * step),  # block 0
    ]
    assert gathers == [pytest.approx(one) for one in expected]
    scatters = [t.ready for t in transfers if t.operation is RS]
    assert scatters == pytest.approx([third + step, third + 2 * step, third + 3 * step, 1, 1])


@pytest.mark.parametrize(
    ("text", "names"),
    [("ddp", ("ddp",)), ("FSDP, ddp,fsdp", ("fsdp", "ddp")), ("zero-3", ("zero3",)), ("all", tuple(STRATEGIES))],
)
def test_strategies_as_people_type_them(text: str, names: tuple[str, ...]) -> None:
    assert parse_strategies(text) == names


@pytest.mark.parametrize(("text", "line"), [("zero4", "did you mean zero"), ("magic", "choose from ddp"), ("", "''")])
def test_an_unknown_strategy_is_refused(text: str, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        parse_strategies(text)


def test_each_strategy_says_what_is_assumed() -> None:
    said = [*assumptions([Assumed(OfStrategy(name)) for name in STRATEGIES], ())]
    assert [text.partition(": ")[0] for text in said] == [*STRATEGIES]
    assert len(set(said)) == len(STRATEGIES)
