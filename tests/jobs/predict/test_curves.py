"""Times between and beyond measured sizes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.jobs.predict.links import Curve

MIB = 2**20
sizes = st.integers(1, 2**32)
points = st.dictionaries(sizes, st.floats(1e-7, 10), min_size=1, max_size=12)


@given(points, sizes, sizes)
def test_more_bytes_are_never_cheaper(measured: dict[int, float], a: int, b: int) -> None:
    curve = Curve(measured)
    few, many = sorted((a, b))
    assert 0 < curve(few) <= curve(many) * (1 + 1e-9)


@given(st.lists(sizes, min_size=1, max_size=12, unique=True), st.data())
def test_a_growing_curve_passes_through_its_points(where: list[int], data: st.DataObject) -> None:
    times = sorted(data.draw(st.lists(st.floats(1e-6, 1), min_size=len(where), max_size=len(where))))
    measured = dict(zip(sorted(where), times, strict=True))
    curve = Curve(measured)
    for size, seconds in measured.items():
        assert curve(size) == pytest.approx(seconds, rel=1e-6)


def test_where_noise_made_more_bytes_faster_they_take_as_long_as_fewer() -> None:
    curve = Curve({8: 1e-6, 64: 8e-6, 512: 2e-6, 4096: 16e-6})
    assert [curve(64), curve(512)] == pytest.approx([8e-6, 8e-6])


def test_beyond_the_measured_sizes_latency_and_bandwidth_go_on() -> None:
    """5 µs and 100 GB/s: 4 GiB take 42.9 ms, and one byte 5 µs."""
    curve = Curve({size: 5e-6 + size / 100e9 for size in (1024, 2**16, MIB, 2**26, 2**30)})
    assert curve(2**32) == pytest.approx(5e-6 + 2**32 / 100e9, rel=1e-3)
    assert curve(1) == pytest.approx(5e-6, rel=0.01)


def test_between_sizes_a_recorded_curve_is_met() -> None:
    """All-reduce on two H200 [benchmarks/results/2026-11-21-4xh200-peers, every-size.json]: 8 MiB took 48.6 µs."""
    curve = Curve({MIB: 14.6e-6, 4 * MIB: 33.8e-6, 16 * MIB: 77.6e-6, 64 * MIB: 250.8e-6})
    assert curve(8 * MIB) == pytest.approx(48.6e-6, rel=0.05)


def test_one_size_is_taken_as_bandwidth() -> None:
    """A check of two H200 measures 64 MiB alone; 32 MiB took 133.5 µs [2026-11-29-2xh200-whole, 1/pairs1.json]."""
    curve = Curve({64 * MIB: 247.6e-6})
    assert [curve(64 * MIB), curve(128 * MIB)] == pytest.approx([247.6e-6, 495.2e-6])
    assert curve(32 * MIB) == pytest.approx(133.5e-6, rel=0.08)


def test_below_the_measured_sizes_latency_and_bandwidth_go_on() -> None:
    """1 and 4 MiB have a latency of 8.2 µs; no message is faster per byte than the smallest that was measured."""
    assert Curve({MIB: 14.6e-6, 4 * MIB: 33.8e-6})(MIB // 8) == pytest.approx(9.0e-6)
    assert Curve({MIB: 14.6e-6, 4 * MIB: 200e-6})(MIB // 2) == pytest.approx(7.3e-6)


def test_small_sizes_alone_say_nothing_of_large_ones() -> None:
    """They show no growth: larger messages are then taken as proportional, not as free."""
    curve = Curve({8: 5e-6, 64: 5e-6})
    assert curve(2**9) == pytest.approx(8 * 5e-6)


def test_nothing_takes_no_time() -> None:
    assert Curve({8: 1e-6})(0) == 0.0
    assert math.isfinite(Curve({8: 1e-6})(1e-3))
