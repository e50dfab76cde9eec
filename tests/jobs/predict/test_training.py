"""A step before there is a job: its messages by sums, and its times by hand."""

from __future__ import annotations

import pytest

from collbench.jobs.predict.network import SHARE, STRATEGIES, Step, parse_parameters, predict_step, seconds_of
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from tests.builders import gpus, run_of
from tests.jobs.predict.made import MIB, curve, links_of, pairs

AR, AG, RS = Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER
NVLINK_PAIRS = pairs({(0, 1): 100.0, (2, 3): 100.0}, 4, other=10.0)


@pytest.mark.parametrize(
    ("text", "count"), [("124M", 124_000_000), ("1.5b", 1_500_000_000), ("25557032", 25557032), ("7K", 7000)]
)
def test_parameters_are_in_powers_of_1000(text: str, count: int) -> None:
    assert parse_parameters(text) == count


@pytest.mark.parametrize("text", ["many", "1.5", "0", "101T", "-3M", "1e9", ""])
def test_what_is_no_number_of_parameters_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a number of parameters"):
        parse_parameters(text)


@pytest.mark.parametrize("parameters", [1, 1000, 124_439_808, 8_030_261_248])
@pytest.mark.parametrize(("dtype", "width"), [("bf16", 2), ("fp32", 4)])
def test_ddp_sends_its_gradients_once_in_buckets(parameters: int, dtype: str, width: int) -> None:
    step = Step(parameters, strategy="ddp", dtype=dtype)
    assert step.sent_bytes == parameters * width
    assert {operation for operation, _ in step.messages} == {AR}
    assert max(size for _, size in step.messages) <= 25 * MIB
    assert min(step.messages.values()) > 0


@pytest.mark.parametrize("strategy", ["zero3", "fsdp"])
@pytest.mark.parametrize("layers", [1, 12, 24])
def test_sharded_strategies_send_one_and_a_half_times_what_ddp_does_in_bus_bytes(strategy: str, layers: int) -> None:
    """An all-reduce counts twice a gather's bytes on the bus."""
    step = Step(124_439_808, layers, strategy)
    sums = dict.fromkeys((AG, RS), 0)
    for (operation, size), count in step.messages.items():
        sums[operation] += size * count
    whole = 2 * 124_439_808
    assert sums[AG] == pytest.approx(2 * whole, abs=4 * layers)
    assert sums[RS] == pytest.approx(whole, abs=4 * layers)
    assert sum(step.messages.values()) == 3 * layers


def test_seconds_are_the_sum_of_the_messages() -> None:
    links = links_of(run_of(gpus(2), curve(AR, (0, 1), 100.0)))
    seconds, assumed = seconds_of(links, Step(76 * MIB // 2), (0, 1))
    assert seconds == pytest.approx(4 * 5e-6 + 76 * MIB / 100e9, rel=0.01)  # 1, 25, 25 and 25 MiB
    assert assumed == ()


def test_the_worst_set_is_longer_by_nothing_to_all_of_the_difference() -> None:
    together = run_of(gpus(4), curve(AR, (0, 1, 2, 3), 50.0))
    two, four = predict_step(links_of(NVLINK_PAIRS, together), Step(124_000_000)).cases
    assert (two.best, two.worst) == ((0, 1), (1, 3))
    apart = 248e6 * (1 / 10e9 - 1 / 100e9)
    assert two.longer == pytest.approx((0, SHARE * apart, apart), rel=0.01)
    assert (four.best, four.worst, four.longer) == ((0, 1, 2, 3), None, None)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_numbers_without_evidence_are_left_out_only_if_none_was_named(strategy: str) -> None:
    four = run_of(gpus(4), [*curve(AR, (0, 1, 2, 3), 50.0), *curve(AR, (0, 1), 50.0, sizes=(8,))])
    step = Step(124_000_000, strategy=strategy)
    found = predict_step(links_of(four), step)
    assert ([case.gpus for case in found.cases], [k for k, _ in found.unpredicted]) == ([4], [2])
    with pytest.raises(UsageError, match="is too far from the measured sizes, 8 B"):
        predict_step(links_of(four), step, (2, 4))
