import math

import pytest

from collbench.judge.stats import median_deviation, range_quantile


@pytest.mark.parametrize(
    ("n", "deviation"),
    [  # √variance of the middle order statistic [Sarhan & Greenberg's tables: 0.4487, 0.2868, 0.2104, 0.1661]
        (1, 1.0),
        (2, 0.8256),  # of even numbers the lower of the two in the middle
        (4, 0.6004),
        (3, 0.6698),
        (5, 0.5356),
        (7, 0.4587),
        (9, 0.4075),
        (301, 0.0722),  # nearly √(π / 2n)
    ],
)
def test_the_medians_deviation_is_the_tabulated_one(n: int, deviation: float) -> None:
    assert median_deviation(n) == pytest.approx(deviation, abs=2e-4)


@pytest.mark.parametrize(
    ("n", "freedom", "probability", "quantile"),
    [  # published tables of the studentized range
        (2, math.inf, 0.95, 2.77),
        (3, math.inf, 0.95, 3.31),
        (5, math.inf, 0.95, 3.86),
        (10, math.inf, 0.95, 4.47),
        (20, math.inf, 0.95, 5.01),
        (2, math.inf, 0.99, 3.64),
        (10, math.inf, 0.99, 5.16),
        (2, 1, 0.95, 17.97),
        (3, 10, 0.95, 3.88),
        (6, 20, 0.95, 4.45),
        (10, 5, 0.95, 6.99),
        (3, 10, 0.99, 5.27),
        (20, 60, 0.95, 5.24),
    ],
)
def test_range_quantiles_are_the_tabulated_ones(n: int, freedom: float, probability: float, quantile: float) -> None:
    assert range_quantile(n, probability, freedom) == pytest.approx(quantile, abs=0.006)


@pytest.mark.parametrize("probability", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("freedom", [0.5, 0.6, 1.5, 2, 100, 1000])
def test_less_than_one_degree_of_freedom_is_students_too(freedom: float, probability: float) -> None:
    found = range_quantile(2, probability, freedom) / math.sqrt(2)
    from scipy.stats import t  # late: it takes a second

    assert found == pytest.approx(float(t.ppf((1 + probability) / 2, freedom)), rel=3e-3)
