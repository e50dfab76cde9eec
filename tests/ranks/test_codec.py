"""Messages between ranks: each arrives as it was sent, and nothing else arrives at all."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from collbench.measurement.backends.protocol import BackendFacts, Call, Step, Timing
from collbench.model.errors import (
    BackendError,
    Cause,
    CollbenchError,
    DataCorruption,
    Failure,
    FailureKind,
    MachineError,
    StepFailed,
    UsageError,
    WrongData,
    died,
)
from collbench.model.operations import Operation, Registration, Variant, Work
from collbench.model.run import Health, Machine, Path
from collbench.ranks.coordinator import RankLost
from collbench.ranks.messages import (
    Abandon,
    Alive,
    BadMessage,
    Done,
    Introduction,
    Leave,
    Opening,
    Order,
    RankMessage,
    decode_order,
    decode_rank_message,
    encode,
)
from tests.builders import gpus, shared, throttled

STEP = Step(Work(Operation.REDUCESCATTER, Variant.IN_PLACE, 1), ((1, 0),), 8, 3, 2, verify=False)
ORDERS: list[Order] = [
    Call("introduce"),
    Call("meet", (gpus(3),)),
    Call("open", (Opening("world0", "10.0.0.1", (0, 2), 1),)),
    Call("reserve", (2**40,)),
    Call("prepare", (((0, 1), (2, 0)),)),
    Call("time", (STEP,)),
    Call("time", (Step(Work(Operation.ALLREDUCE, registration=Registration.WINDOW), ((0, 1),), 8, 3, 2),)),
    Call("paths", (gpus(2),)),
    Abandon(),
    Leave(),
    Leave("gone"),
]
RANK_MESSAGES: list[RankMessage] = [
    Alive(),
    Done("reserve"),
    Done("make_id", "00ff"),
    Done(
        "introduce",
        Introduction(
            "nöde\udce9", "nöde\udce9boot", "boot/1", "cuda", "1.0", gpus(1)[0], Machine("host", "Linux", "CPU")
        ),
    ),
    Done("open", BackendFacts((2**30,), 2**50, "sm_90", "2.28.3", "/lib/libnccl.so.2", multicast=None)),
    Done("paths", ()),
    Done("paths", (Path((0, 1), "NV18", theory_gbs=450.0, cuda_peers=True),)),
    Done("health", (Health(temperature=40, throttle=("SW thermal slowdown",)),)),
    Done("time", Timing(((1e-6, 3.3e-5), ()), (0.0, 1e-5)), (throttled(0), shared(0))),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: repr(order)[:30])
def test_an_order_arrives_as_it_was_sent(order: Order) -> None:
    assert decode_order(encode(order)) == order


@pytest.mark.parametrize("message", RANK_MESSAGES, ids=lambda message: repr(message)[:30])
def test_a_rank_message_arrives_as_it_was_sent(message: RankMessage) -> None:
    assert decode_rank_message(encode(message)) == message


class NewFailure(StepFailed):
    """A class that a later version may add."""


@pytest.mark.parametrize(
    ("sent", "received_type"),
    [
        *((kind("what\nhappened"), kind) for kind in (UsageError, MachineError, BackendError, DataCorruption)),
        (StepFailed("hang"), StepFailed),
        (NewFailure("hang"), StepFailed),
        (RankLost("gone"), BackendError),
        (CollbenchError("plain"), CollbenchError),
    ],
)
def test_a_failure_keeps_its_class_and_its_text(sent: CollbenchError, received_type: type) -> None:
    received = decode_rank_message(encode(sent))
    assert (type(received), str(received)) == (received_type, str(sent))


def test_a_failure_keeps_what_is_known_of_it() -> None:
    earlier = died(-9, "Killed", (1,))
    failure = Failure(FailureKind.CRASH, Cause.NO_WORKER, rank=3, because=earlier)
    received = decode_rank_message(encode(StepFailed("rank 3: gone", failure=failure)))
    assert isinstance(received, StepFailed)
    assert (received.failure, received.kind) == (failure, FailureKind.CRASH)
    wrong = WrongData(Work(Operation.ALLREDUCE), 1024, (1, 0), 3, 16, 1.5, 2.0)
    corrupt = decode_rank_message(encode(DataCorruption("wrong data", wrong)))
    assert isinstance(corrupt, DataCorruption)
    assert corrupt.wrong == wrong


class Executed:
    """An object whose unpickling runs code."""

    def __reduce__(self) -> Any:
        return print, ("executed",)


WIRED = json.loads(encode(Call("time", (STEP,))))[2][0]


@pytest.mark.parametrize(
    ("title", "data"),
    [
        ("nothing", b""),
        ("a pickle that runs code", pickle.dumps(Executed())),
        ("nested too deep", b"[" * 100_000),
        ("a number with a million digits", b"[" + b"9" * 10**6 + b"]"),
        ("an order that is none", b'["system", "true"]'),
        ("a method that is none", b'["Call", "system", ["true"]]'),
        ("a method that is not for rank 0", b'["Call", "interrupt", []]'),
        ("a special one", b'["Call", "__class__", []]'),
        ("a rank's message instead of an order", encode(Alive())),
        ("a value for a method without any", b'["Call", "introduce", [8]]'),
        ("a truth instead of a number", b'["Call", "reserve", [true]]'),
        ("no number at all", b'["Call", "reserve", [NaN]]'),
        ("an operation that is none", json.dumps(["Call", "time", [WIRED | {"work": {"operation": "rm"}}]]).encode()),
    ],
)
def test_invalid_orders_are_refused_and_nothing_runs(
    title: str, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadMessage, match="install the same version on all hosts"):
        decode_order(data)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("title", "data"),
    [
        ("an order", encode(Leave())),
        ("a failure of an unknown class", b'["Failed", "SystemExit", "0"]'),
        ("a value of another method", b'["Done", "make_id", {"seconds": []}, []]'),
        ("a value of a method that returns none", b'["Done", "reserve", 1, []]'),
        ("flags that are a text", b'["Done", "reserve", null, "ab"]'),
        ("infinite seconds", b'["Done", "time", {"seconds": [[Infinity]]}, []]'),
    ],
)
def test_invalid_rank_messages_are_refused(title: str, data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_rank_message(data)


def test_a_time_that_is_no_number_is_not_sent() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode(Done("time", Timing(((float("nan"),),))))
