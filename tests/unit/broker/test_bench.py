"""The statistics of `aerobee bench`."""

from __future__ import annotations

from aerobee_broker.bench.histogram import Histogram


def test_percentiles() -> None:
    """Percentiles are within 6 % of the true values. The largest is exact, and none exceeds it."""
    histogram = Histogram()
    for number in range(1, 1001):
        histogram.add(number / 1000)
    for share in (0.5, 0.9, 0.99):
        assert share <= histogram.percentile(share) <= share * 1.06
    assert histogram.percentile(1) == histogram.largest == 1.0
    assert sum(count for _, count in histogram.bars()) == 1000
    assert len(histogram.bars(5)) <= 5


def test_nothing_measured() -> None:
    """An empty histogram gives 0 and no bars."""
    assert (Histogram().percentile(0.5), Histogram().bars()) == (0.0, [])


def test_extremes_are_counted() -> None:
    """Values outside all buckets are counted in the first or the last bucket."""
    histogram = Histogram()
    for seconds in (0.0, 1e9):
        histogram.add(seconds)
    assert (histogram.count, histogram.percentile(1) <= 1e9) == (2, True)
    assert sum(count for _, count in histogram.bars()) == 2
