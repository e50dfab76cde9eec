import pytest

from collbench.measure.stopping import stop_reason
from collbench.model import Cell, Measurement, Sample, StopReason
from collbench.operations import Operation

MIB = 2**20


def visits(size: int, *times: tuple[float, ...]) -> Measurement:
    samples = [Sample(blocks, 1, concurrent=False) for blocks in times]
    return Measurement(Cell(Operation.CE_WRITE, (0, 1), size), samples)


def spread(share: float, count: int) -> list[tuple[float, ...]]:
    """Return visits whose blocks alternate between 1 − share and 1 + share."""
    return [(1 - share, 1 + share)] * count


@pytest.mark.parametrize(
    ("title", "measurement", "reason"),
    [
        ("five equal blocks are too few", visits(MIB, (1.0,) * 5), None),
        ("six equal blocks are enough", visits(MIB, (1.0,) * 6), StopReason.PRECISION),
        ("a large message within 1 %", visits(MIB, *spread(0.009, 3)), StopReason.PRECISION),
        ("a large message beyond 1 %", visits(MIB, *spread(0.011, 3)), None),
        ("a small message within 3 %", visits(MIB - 1, *spread(0.029, 3)), StopReason.PRECISION),
        ("a small message beyond 3 %", visits(MIB - 1, *spread(0.031, 3)), None),
        ("one wild block of ten does not count", visits(MIB, *[(1.0, 1.0)] * 4, (1.0, 9.0)), StopReason.PRECISION),
        ("noise known from eight visits", visits(MIB, *[(0.9, 0.9), (1.1, 1.1)] * 4), StopReason.NOISE),
        ("noise after seven visits", visits(MIB, *[(0.9, 0.9), (1.1, 1.1)] * 3, (0.9, 0.9)), None),
        (
            "noise that still grows",
            visits(MIB, *[(0.9, 0.9), (1.1, 1.1)] * 3, (0.5, 0.5), (2.0, 2.0)),
            None,
        ),
        ("nothing measured", visits(MIB), None),
    ],
)
def test_when_a_cell_is_settled(title: str, measurement: Measurement, reason: StopReason | None) -> None:
    assert stop_reason(measurement) is reason
