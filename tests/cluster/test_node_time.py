"""The time estimate, against sums done by hand."""

from __future__ import annotations

import pytest

from collbench.cluster.measure import round_seconds, start_seconds


def test_a_round_is_start_traffic_and_messages() -> None:
    """512 MiB over 16 ranks at 400 GB/s: 536,870,912 × 1.875 / 4e11 = 2.517 ms, 8 + 48 times; 3 × 1,024 × 180 µs."""
    assert round_seconds(128, 8, 512 * 2**20, 400.0) == pytest.approx(1.5 + 56 * 0.0025166 + 0.55296, rel=1e-4)


def test_1024_gpus_meet_in_ten_seconds() -> None:
    assert start_seconds(128, 8) == pytest.approx(0.65 + 10.24)


def test_batches_on_slow_networks_are_short() -> None:
    """512M at 1 GB/s takes 1 s: seven batches of one call, not of eight."""
    fixed = round_seconds(4, 8, 8, 400.0)
    assert round_seconds(4, 8, 512 * 2**20, 1.0) == pytest.approx(fixed + 7 * 512 * 2**20 * 2 * 15 / 16 / 1e9, rel=1e-3)
