"""Intervals and quantiles, against published values and brute force."""

import math
import statistics

import pytest

from runlog.stats import olympic_mean, t_quantile
from scoring.figure import spread


def test_t_quantile() -> None:
    from scipy import stats

    for freedom in (1, 1.5, 2, 2.7, 7, 31.4, 1000, 1e6):
        for probability in (0.6, 0.75, 0.975, 0.9995):
            expected = float(stats.t.ppf(probability, freedom))
            assert t_quantile(freedom, probability) == pytest.approx(expected, rel=1e-9)


def test_interval_of_an_olympic_mean_is_yuens() -> None:
    assert olympic_mean([1, 2, 3, 4, math.inf]) == 3
    values = [28.410, 28.639, 30.342, 28.748, 28.669]
    found = spread.olympic_mean_of(values)
    # Winsorized: 28.639, 28.639, 28.669, 28.748, 28.748; 0.0556 is their deviation, times the root of (n-1)/(h(h-1)).
    assert found is not None and found.freedom == 2
    assert found.error == pytest.approx(
        statistics.stdev([28.639, 28.639, 28.669, 28.748, 28.748]) * math.sqrt(4 / 6), rel=1e-12
    )
    low, high = found.interval_95
    assert low * high == pytest.approx(found.value**2)  # even on the scale of logarithms
    assert math.log(high / found.value) == pytest.approx(4.3027 * found.error / found.value, rel=1e-4)
    failed = spread.olympic_mean_of([28.410, 28.639, math.inf, 28.748, 28.669])
    assert failed is not None and failed == found
    assert spread.olympic_mean_of([1, 2, 3]) is None


def test_interval_of_a_median_is_of_order_statistics() -> None:
    values = [351.0, 352, 353, 354, 355, 356, 500]
    low, high = spread.median_interval(values) or (0, 0)
    # Between ranks 1 and 2: 98.44 and 87.5 %. Hettmansperger and Sheather's weight: I = 0.3143, 6 I / (1 + 5 I).
    weight = 6 * 0.31429 / (1 + 5 * 0.31429)
    assert low == pytest.approx(351 + weight, abs=1e-3) and high == pytest.approx(500 - 144 * weight, rel=1e-4)
    assert spread.median_interval(values[:5]) == (351, 355)
    assert spread.median_interval(values[:4]) is None


def test_ratio_of_medians_is_mann_and_whitneys() -> None:
    # 5 and 5 runs: U of at most 2 has 2 x 4 / 252 = 3.2 %, of at most 3 already 5.6 %; so the third quotient bounds it.
    a, b = [100.0, 101, 102, 103, 104], [110.0, 111, 112, 113, 114]
    quotients = sorted(y / x for x in a for y in b)
    assert spread.median_ratio_interval(a, b) == (quotients[2], quotients[-3])
    assert spread.median_ratio_interval(a[:3], b[:3]) is None
