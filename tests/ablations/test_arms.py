"""What --without means, what it refuses, and the order of the arms."""

from __future__ import annotations

import pytest

from collbench.ablations.ablation import in_turn, parse_change, refuse_alike
from collbench.model.errors import UsageError

P2P = {"NCCL_P2P_DISABLE": "1"}


@pytest.mark.parametrize(
    ("texts", "environment", "names"),
    [
        (["p2p"], P2P, ("with p2p", "without p2p")),
        (["P2P"], P2P, ("with p2p", "without p2p")),
        (["nvlink"], P2P, ("with nvlink", "without nvlink")),
        (["p2p,shm"], P2P | {"NCCL_SHM_DISABLE": "1"}, ("with p2p and shm", "without p2p and shm")),
        (["p2p", "shm"], P2P | {"NCCL_SHM_DISABLE": "1"}, ("with p2p and shm", "without p2p and shm")),
        (["ib"], {"NCCL_IB_DISABLE": "1"}, ("with ib", "without ib")),
        (["NCCL_ALGO=Ring"], {"NCCL_ALGO": "Ring"}, ("as is", "with NCCL_ALGO=Ring")),
        (["NCCL_PROTO=LL,LL128"], {"NCCL_PROTO": "LL,LL128"}, ("as is", "with NCCL_PROTO=LL,LL128")),
        (
            ["shm, NCCL_ALGO=Ring"],
            {"NCCL_SHM_DISABLE": "1", "NCCL_ALGO": "Ring"},
            ("as is", "without shm and with NCCL_ALGO=Ring"),
        ),
        (["NCCL_IB_HCA="], {"NCCL_IB_HCA": ""}, ("as is", "with NCCL_IB_HCA=")),
    ],
)
def test_what_changes_and_what_the_arms_are_called(
    texts: list[str], environment: dict[str, str], names: tuple[str, str]
) -> None:
    change = parse_change(texts)
    assert (dict(change.environment), change.names) == (environment, names)


@pytest.mark.parametrize(
    ("case", "texts", "reported"),
    [
        ("a slip of the hand", ["p2pp"], "not one of p2p, nvlink, shm, ib.*did you mean 'p2p'"),
        ("a switch that NCCL lacks", ["network"], "'network' is not one of"),
        ("nothing", [""], "'' is not one of"),
        ("an empty place", ["p2p,"], "'' is not one of"),
        ("a variable without a value", ["NCCL_ALGO"], "write it like --without NCCL_ALGO=Ring"),
        ("a variable in small letters", ["nccl_algo=Ring"], "is not one of"),
        ("somebody else's variable", ["OMP_NUM_THREADS=1"], "is not one of"),
        ("what switches multicast", ["NCCL_NVLS_ENABLE=1"], "never sets what switches NVLink multicast"),
        ("the same twice, differently", ["p2p", "NCCL_P2P_DISABLE=0"], "sets NCCL_P2P_DISABLE twice, to 1 and to 0"),
        ("a zero byte", ["NCCL_ALGO=Ri\0ng"], "zero byte"),
    ],
)
def test_meaningless_arms_are_refused(case: str, texts: list[str], reported: str) -> None:
    with pytest.raises(UsageError, match=reported):
        parse_change(texts)


@pytest.mark.parametrize(
    ("case", "inherited", "refused"),
    [
        ("already off", {"NCCL_P2P_DISABLE": "1"}, True),
        ("already off, with a blank", {"NCCL_P2P_DISABLE": " 1"}, True),
        ("on by name", {"NCCL_P2P_DISABLE": "0"}, False),
        ("another variable", {"NCCL_SHM_DISABLE": "1"}, False),
    ],
)
def test_arms_that_would_be_alike_are_refused(case: str, inherited: dict[str, str], refused: bool) -> None:
    change = parse_change(["p2p"])
    if not refused:
        refuse_alike(change, inherited)
        return
    with pytest.raises(UsageError, match="NCCL_P2P_DISABLE=1 is set already"):
        refuse_alike(change, inherited)


def test_an_empty_value_differs_from_an_unset_variable() -> None:
    refuse_alike(parse_change(["NCCL_IB_HCA="]), {})


def test_the_first_arm_alternates_and_the_seed_sets_which_is_first() -> None:
    assert [in_turn(repeat, seed=0) for repeat in range(3)] == [(0, 1), (1, 0), (0, 1)]
    assert [in_turn(repeat, seed=7) for repeat in range(2)] == [(1, 0), (0, 1)]
