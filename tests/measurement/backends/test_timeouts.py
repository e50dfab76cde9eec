"""How long silence may last: never shorter than the slowest machine needs, never longer than a user would wait."""

from __future__ import annotations

import pytest

from collbench.measurement.backends.isolated import Timeouts
from collbench.measurement.backends.protocol import Step
from collbench.model.operations import Operation, Variant, Work

KIB, GIB = 2**10, 2**30
FLOOR = Timeouts().floor_s


def copy(size: int, groups: int = 1, variant: Variant = Variant.PLAIN) -> Step:
    pairs = tuple((2 * n, 2 * n + 1) for n in range(groups))
    return Step(Work(Operation.CE_WRITE, variant), pairs, size, iterations=1, batches=2, warmup=0)


@pytest.mark.parametrize(
    ("title", "step", "needed_s"),
    [
        # Staged copies move 3 GB/s through host memory on PCIe gen 3: 2 GiB in 0.7 s a pair.
        ("two staged gigabytes", copy(GIB, variant=Variant.STAGED), 0.72),
        ("eight pairs that share one root port", copy(GIB, groups=8), 8 * 0.72),
        ("both ways at once", copy(GIB, variant=Variant.BOTH_WAYS), 2 * 0.72),
        # nccl#814 saw an all-reduce of two GPUs at 9.9 GB/s; EfficientNet's PCIe machines at 5.6 (method/choosing.md).
        (
            "an all-reduce of eight",
            Step(Work(Operation.ALLREDUCE), (tuple(range(8)),), GIB, 4, 2, 0),
            8 * 2 * 1.07 / 5.6,
        ),
        (
            "a launch loop over sockets",
            Step(Work(Operation.ALLREDUCE), ((0, 1),), 8, 20, 2, 1, launches=20),
            85 * 50e-6,
        ),
    ],
)
def test_what_the_slowest_machine_needs_is_allowed(title: str, step: Step, needed_s: float) -> None:
    assert Timeouts().for_step(step, None, network=False) >= needed_s + FLOOR, title


def test_between_hosts_it_allows_what_gigabit_ethernet_needs() -> None:
    step = Step(Work(Operation.ALLREDUCE), ((0, 1),), GIB, 4, 2, 0)
    # Eight messages of 2^30 bytes over 125,000,000 B/s.
    assert Timeouts().for_step(step, None, network=True) > 68.7


def test_a_hang_of_a_small_message_is_found_in_seconds() -> None:
    assert Timeouts().for_step(copy(KIB), None, network=False) < 10


def test_known_times_replace_the_assumed_rates() -> None:
    timeouts = Timeouts()
    timeouts_s = [timeouts.for_step(copy(GIB), seconds, network=False) for seconds in (0.01, 0.1, 1.0)]
    assert timeouts_s == sorted(timeouts_s)
    assert timeouts_s[0] < timeouts.for_step(copy(GIB), None, network=False)
    assert timeouts_s[2] >= 10 + FLOOR
