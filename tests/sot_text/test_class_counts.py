"""Metrics from counts are scikit-learn's, and counts of batches add up to those of the whole."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from sot_text.class_counts import CLASS_METRICS, ClassCounts, count_classes


def f1(average):
    return lambda targets, predictions: sklearn_metrics.f1_score(
        targets, predictions, average=average, zero_division=0.0
    )


SKLEARN = {"accuracy": sklearn_metrics.accuracy_score, "f1_micro": f1("micro"), "f1_macro": f1("macro")}


def counted(predictions, targets, classes):
    return ClassCounts.from_numbers(count_classes(predictions, targets, classes), predictions.ndim == 2)


def random_classes(seed):
    """Predictions and targets of up to 300 rows and 2 to 7 classes, often right, in some seeds of one class."""
    rng = np.random.default_rng(seed)
    rows, classes = rng.integers(1, 300), rng.integers(2, 8)
    targets = rng.integers(classes, size=rows) if seed % 5 else np.full(rows, 1)
    wrong = rng.integers(classes, size=rows) if seed % 7 else np.zeros(rows, dtype=int)
    return np.where(rng.random(rows) < 0.5, targets, wrong), targets, int(classes)


@pytest.mark.parametrize("seed", range(30))
def test_classes_are_measured_as_by_scikit_learn(seed):
    predictions, targets, classes = random_classes(seed)
    counts = counted(predictions, targets, classes)
    reference = SKLEARN | {"f1": f1("binary" if classes == 2 else "macro")}
    if len(set(targets)) > 1 and len(set(predictions)) > 1:
        reference["mcc"] = sklearn_metrics.matthews_corrcoef
    for name, function in reference.items():
        assert CLASS_METRICS[name](counts) == pytest.approx(function(targets, predictions), rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("seed", range(10))
def test_sets_of_classes_are_measured_as_by_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    targets, flips = rng.random((rng.integers(1, 99), 4)) < 0.3, rng.random(4) < 0.5
    predictions = targets ^ (flips & (rng.random(targets.shape) < 0.3))
    counts = counted(predictions, targets, 4)
    for name, function in SKLEARN.items():
        assert CLASS_METRICS[name](counts) == pytest.approx(function(targets, predictions), rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_batches_add_up(seed):
    predictions, targets, classes = random_classes(seed)
    batches = [slice(first, first + 16) for first in range(0, len(targets), 16)]
    total = sum(np.array(count_classes(predictions[part], targets[part], classes)) for part in batches)
    found = ClassCounts.from_numbers(total.tolist(), are_sets=False)
    assert found == counted(predictions, targets, classes)
    assert found.constant_targets == (len(set(targets)) == 1)
    assert found.constant_predictions == (len(set(predictions)) == 1)


def test_what_is_no_class():
    with pytest.raises(ValueError, match="need class indices, got float64"):
        count_classes(np.array([0.5]), np.array([1]), 2)
    for predicted, true in ((2, 0), (0, 2), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match=f"from 0 to 1, got {predicted} for {true}"):
            count_classes(np.array([0, predicted]), np.array([0, true]), 2)
    counts = counted(np.ones((2, 2), dtype=bool), np.ones((2, 2), dtype=bool), 2)
    with pytest.raises(ValueError, match="one class a row"):
        CLASS_METRICS["mcc"](counts)
