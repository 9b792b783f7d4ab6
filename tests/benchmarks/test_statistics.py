"""``benchmarks.statistics`` against scipy, scikit-learn and values computed by hand."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import matthews_corrcoef

from benchmarks.statistics import METRICS, average_ranks, compare, holm, resample
from sot_base.errors import UsageError

FLAT = np.zeros(9)


def test_seeds_are_compared_by_the_paired_t_test():
    first, second = [80.1, 81.4, 79.9, 80.8], [79.0, 81.5, 79.1, 79.7]
    expected = stats.ttest_rel(first, second)
    found = compare(first, second, FLAT, FLAT)
    assert found.difference == pytest.approx(0.725)
    assert found.p_seeds == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_one_seed_has_no_interval_and_equal_seeds_no_difference():
    assert np.isnan(compare([80.0], [79.0], FLAT, FLAT)[1:4]).all()
    same = compare([80.0, 81.0], [80.0, 81.0], FLAT, FLAT)
    assert same == (0.0, 0.0, 0.0, 1.0, 1.0)


def test_items_are_compared_as_by_mcnemar():
    targets = np.zeros(200, dtype=int)
    first, second = np.zeros((1, 200), dtype=int), np.zeros((1, 200), dtype=int)
    first[0, :6], second[0, 10:32] = 1, 1  # 6 items are wrong in the first alone, 22 in the second alone
    samples = resample({"first": first, "second": second}, targets, "accuracy")
    found = compare([97.0], [89.0], samples["first"], samples["second"]).p_items
    expected = stats.chi2.sf((22 - 6) ** 2 / (22 + 6), df=1)
    assert expected / 3 < found < expected * 3
    assert samples["first"].mean() == pytest.approx(97.0, abs=0.1)


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_are_averages_over_the_seeds(classes):
    rng = np.random.default_rng(classes)
    targets = rng.integers(classes, size=50)
    predictions = np.where(rng.random((3, 50)) < 0.5, targets, rng.integers(classes, size=(3, 50)))
    once = np.ones((1, 50))
    accuracy = np.mean([100 * (own == targets).mean() for own in predictions])
    assert METRICS["accuracy"](once, predictions, targets) == pytest.approx([accuracy])
    mcc = np.mean([100 * matthews_corrcoef(targets, own) for own in predictions])
    assert METRICS["mcc"](once, predictions, targets) == pytest.approx([mcc])
    assert METRICS["mcc"](once, np.zeros_like(predictions), targets) == pytest.approx([0.0])
    repeated = rng.multinomial(50, np.full(50, 0.02), size=1)
    rows = np.repeat(np.arange(50), repeated[0])
    mcc = np.mean([100 * matthews_corrcoef(targets[rows], own[rows]) for own in predictions])
    assert METRICS["mcc"](repeated.astype(float), predictions, targets) == pytest.approx([mcc])


def test_another_metric_is_refused():
    with pytest.raises(UsageError, match="no such metric: 'f1'"):
        resample({}, np.zeros(3, dtype=int), "f1")


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    found = holm([0.02, float("nan"), 0.03])
    assert found[::2] == pytest.approx([0.04, 0.04])
    assert np.isnan(found[1])


def test_average_ranks():
    means = [{"a": 80.0, "b": 70.0, "c": 80.0, "d": 1.0}, {"a": 5.0, "b": 9.0, "c": 7.0}]
    assert average_ranks(means) == {"a": 2.25, "b": 2.0, "c": 1.75}
