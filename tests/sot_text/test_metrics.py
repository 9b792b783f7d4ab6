import logging

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from sot_base.errors import UsageError
from sot_text.glue import MULTI_LABEL_METRICS
from sot_text.metrics import METRICS, check_metrics, compute_metrics

ALL = list(METRICS)


def test_by_hand():
    found = compute_metrics(["accuracy", "f1", "mcc", "acc_and_f1"], [1, 1, 1, 0, 0], [1, 1, 0, 0, 1])
    # of class 1: 2 true positives, 1 false positive, 1 false negative, 1 true negative
    assert found == pytest.approx({"accuracy": 0.6, "f1": 2 / 3, "mcc": 1 / 6, "acc_and_f1": (0.6 + 2 / 3) / 2})


def test_f1_is_of_class_1():
    assert compute_metrics(["f1"], [0, 0, 0, 1], [0, 0, 0, 0])["f1"] == 0.0
    assert compute_metrics(["f1"], [1, 1, 1, 0], [1, 1, 1, 1])["f1"] == pytest.approx(6 / 7)


def test_correlations_by_hand():
    found = compute_metrics(["pearson", "spearman", "pearson_and_spearman"], [1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
    assert found == pytest.approx({"pearson": 0.5, "spearman": 0.5, "pearson_and_spearman": 0.5})
    assert compute_metrics(["pearson", "spearman"], [1.0, 2.0, 9.0], [1.0, 2.0, 3.0])["spearman"] == pytest.approx(1.0)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_classification_equals_scikit_learn(num_classes):
    rng = np.random.default_rng(0)
    targets = rng.integers(num_classes, size=277)
    predictions = np.where(rng.random(277) < 0.6, targets, rng.integers(num_classes, size=277))
    average = "binary" if num_classes == 2 else "macro"
    found = compute_metrics(
        ["accuracy", "f1", "mcc", "acc_and_f1"], predictions.tolist(), targets.tolist(), num_classes
    )
    accuracy = sklearn_metrics.accuracy_score(targets, predictions)
    f1 = sklearn_metrics.f1_score(targets, predictions, average=average)
    mcc = sklearn_metrics.matthews_corrcoef(targets, predictions)
    assert found == pytest.approx(
        {"accuracy": accuracy, "f1": f1, "mcc": mcc, "acc_and_f1": (accuracy + f1) / 2}, abs=1e-9
    )


def test_correlation_equals_scipy_also_for_float32():
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 26, size=1500) / 5
    predictions = (targets + rng.normal(size=1500)).astype(np.float32)
    found = compute_metrics(["pearson", "spearman"], predictions, targets)
    exact = predictions.astype(np.float64)
    assert found["pearson"] == pytest.approx(stats.pearsonr(exact, targets).statistic, abs=1e-9)
    assert found["spearman"] == pytest.approx(stats.spearmanr(exact, targets).statistic, abs=1e-9)


@pytest.mark.parametrize("name", ["mcc", "pearson", "spearman", "pearson_and_spearman"])
@pytest.mark.parametrize("constant", ["predictions", "targets"])
def test_constant_values_give_0_and_a_warning(name, constant, caplog):
    values = {"predictions": [0, 1, 1, 0], "targets": [0, 1, 0, 1]}
    values[constant] = [1, 1, 1, 1]
    with caplog.at_level(logging.WARNING):
        assert compute_metrics([name], **values) == {name: 0.0}
    assert f"all 4 {constant} are 1" in caplog.text


def test_a_collapsed_model_is_named_with_what_to_do(caplog):
    compute_metrics(["accuracy", "f1"], [1, 1, 1, 1], [0, 1, 0, 0], labels=("no", "yes"), where="split 'valid'")
    (message,) = caplog.messages
    assert message.startswith("all 4 predictions of split 'valid' are 'yes', as are 25% of the targets: the model has")
    assert "lower the learning rate, warm up longer, or try another seed" in message
    compute_metrics(["accuracy"], [1, 1], [0, 1], warn=False)
    compute_metrics(["accuracy"], [1, 0], [0, 1])
    compute_metrics(["accuracy"], [1], [0])
    assert len(caplog.messages) == 1


def test_targets_of_one_class_are_no_collapse(caplog):
    compute_metrics(["accuracy"], [1, 1, 1], [1, 1, 1], labels=("no", "yes"))
    assert caplog.messages == [
        f"all 3 {what} are 'yes': correlations and mcc are 0 by definition" for what in ("targets", "predictions")
    ]


class TestSeveralLabels:
    """Sets of classes, (rows, K)."""

    targets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]], dtype=bool)
    predictions = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1]], dtype=bool)

    def test_by_hand(self):
        found = compute_metrics(MULTI_LABEL_METRICS, self.predictions, self.targets)
        assert found == pytest.approx(
            {"f1_micro": 2 * 4 / (5 + 5), "f1_macro": (1.0 + 2 / 3 + 2 / 3) / 3, "accuracy": 2 / 4}, abs=1e-12
        )

    def test_nothing_predicted_and_nothing_true(self):
        nothing = np.zeros((3, 2), dtype=bool)
        assert compute_metrics(MULTI_LABEL_METRICS, nothing, nothing, warn=False) == {
            "f1_micro": 0.0,
            "f1_macro": 0.0,
            "accuracy": 1.0,
        }

    @pytest.mark.parametrize(
        "row, name, share", [([0, 0, 0], "without any label", "25%"), ([1, 1, 0], "'a,\"b, c\"'", "25%")]
    )
    def test_a_collapsed_model(self, caplog, row, name, share):
        predictions = np.tile(np.array(row, dtype=bool), (4, 1))
        compute_metrics(["accuracy"], predictions, self.targets, labels=("a", "b, c", "d"), where="head gap, seed 2")
        (message,) = caplog.messages
        assert message.startswith(f"all 4 predictions of head gap, seed 2 are {name}, as are {share} of the targets: ")


@pytest.mark.parametrize("spread, collapsed", [(0.0, True), (0.004, True), (0.006, False)])
def test_a_collapsed_regression_predicts_nearly_one_number(caplog, spread, collapsed):
    targets = np.linspace(0.0, 5.0, 11)
    compute_metrics(["pearson"], 2.8399 + spread * np.linspace(0, 1, 11), targets, where="split 'valid'")
    found = [message for message in caplog.messages if "the model has collapsed" in message]
    assert len(found) == collapsed
    assert all(message.startswith("all 11 predictions of split 'valid' are 2.84: the model") for message in found)


@pytest.mark.filterwarnings("ignore::scipy.stats.NearConstantInputWarning")
def test_nearly_constant_predictions_stay_finite():
    predictions = np.full(100, 2.84)
    predictions[0] += 4e-16
    assert abs(compute_metrics(["pearson"], predictions, np.arange(100.0))["pearson"]) <= 1.0


def test_dev_set_of_one_class():
    assert compute_metrics(["f1", "mcc", "accuracy"], [0, 0], [0, 0]) == {"f1": 0.0, "mcc": 0.0, "accuracy": 1.0}
    assert compute_metrics(["f1"], [0, 0], [0, 0], num_classes=3) == {"f1": 1.0}  # macro over the classes that occur


def test_one_sample():
    found = compute_metrics(ALL, [1], [1])
    assert found["accuracy"] == found["f1"] == 1.0
    assert found["mcc"] == found["pearson"] == found["spearman"] == 0.0


def test_values_are_python_floats():
    for value in compute_metrics(ALL, np.array([0, 1, 1]), np.array([0, 1, 0])).values():
        assert type(value) is float  # a numpy scalar in a checkpoint does not load under torch's safe loading


def test_unknown_metric_names_the_valid_ones():
    message = r"no such metric: 'auc'; use one of accuracy, f1, mcc, .*spearman"
    with pytest.raises(UsageError, match=message):
        check_metrics(["accuracy", "auc"])
    with pytest.raises(UsageError, match=message):
        compute_metrics(["auc"], [0], [0])
    assert check_metrics(ALL) == tuple(ALL)


@pytest.mark.parametrize("predictions,targets", [([], []), ([0, 1], [0]), ([[0], [1]], [[0], [1]])])
def test_shapes(predictions, targets):
    with pytest.raises(ValueError, match="need one prediction and target per sample"):
        compute_metrics(["accuracy"], predictions, targets)


def test_values_that_are_not_finite_are_an_error():
    with pytest.raises(ValueError, match="1 of 3 predictions are not finite"):
        compute_metrics(["pearson"], [1.0, float("nan"), 2.0], [1.0, 2.0, 3.0])
