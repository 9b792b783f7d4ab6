"""``--class-weights``: the weighted losses are torch's own, and the weights stay with the checkpoint."""

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import sot_fairseq
from sot_base.errors import UsageError
from sot_fairseq.criterions.sentence_prediction_mgcrp import (
    SentencePredictionMGCrPConfig,
    SentencePredictionMGCrPCriterion,
)
from tests.sot_fairseq.conftest import run_train


class FixedLogits(torch.nn.Module):
    """A model that gives the logits it has."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = torch.nn.ParameterList(logits)

    def forward(self, **inputs):
        return (tuple(self.logits) if len(self.logits) > 1 else self.logits[0]), None

    def get_targets(self, sample, net_output):
        return sample["target"]


def batch_loss(logits, targets, weights, multi_label=False):
    """The criterion's mean loss of a batch, as the trainer divides it, and the gradient of the logits."""
    names = [f"class {number}" for number in range(logits[0].shape[1])]
    task = SimpleNamespace(cfg=SimpleNamespace(multi_label=multi_label), label_names=names, class_weights=weights)
    criterion = SentencePredictionMGCrPCriterion(SentencePredictionMGCrPConfig(), task)
    model = FixedLogits(*logits).train()
    loss, sample_size, _ = criterion(model, {"net_input": {}, "target": targets, "ntokens": 1})
    mean = loss / sample_size
    mean.backward()
    return mean, [part.grad for part in model.logits]


def validation_log(logits):
    """What the criterion logs in validation for rows of class 0."""
    task = SimpleNamespace(cfg=SimpleNamespace(multi_label=False), run_name="head gap, seed 3")
    criterion = SentencePredictionMGCrPCriterion(SentencePredictionMGCrPConfig(), task)
    targets = torch.zeros(len(logits), 1, dtype=torch.long)
    sample = {"net_input": {}, "target": targets, "ntokens": 1, "split": ("valid", len(logits))}
    return criterion(FixedLogits(logits).eval(), sample)[2]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_outputs_that_are_not_finite_are_not_measured(value):
    with pytest.raises(UsageError, match="outputs for split 'valid' are not finite: head gap, seed 3; lower --lr"):
        validation_log(torch.tensor([[0.0, 1.0], [0.0, value]]))


def test_finite_outputs_are_measured_even_if_their_sum_overflows():
    log = validation_log(torch.tensor([[3e38, 1.0], [3e38, 3e38], [0.0, 1.0]]))
    assert log["counts"] == [2, 0, 2, 1, 3, 0, 2, 3]  # right, predicted and true by class; right, rows


@pytest.mark.parametrize("weights", [[0.25, 1.0, 6.0], None])
@pytest.mark.parametrize("parts", [1, 2])
def test_cross_entropy_is_torchs_weighted_mean(weights, parts):
    logits = [torch.randn(8, 3) for _ in range(parts)]
    targets = torch.randint(3, (8, 1))
    loss, gradients = batch_loss(logits, targets, weights)
    expected = [part.clone().requires_grad_() for part in logits]
    reference = torch.nn.CrossEntropyLoss(weight=None if weights is None else torch.tensor(weights))
    total = sum(reference(part, targets.view(-1)) for part in expected)
    total.backward()
    torch.testing.assert_close(loss, total)
    torch.testing.assert_close(gradients, [part.grad for part in expected])


@pytest.mark.parametrize("weights", [[0.25, 1.0, 6.0], None])
def test_binary_cross_entropy_is_torchs_with_weighted_positives(weights):
    logits, targets = torch.randn(8, 3), torch.rand(8, 3) > 0.5
    loss, (gradient,) = batch_loss([logits], targets, weights, multi_label=True)
    expected = logits.clone().requires_grad_()
    reference = F.binary_cross_entropy_with_logits(
        expected, targets.float(), pos_weight=None if weights is None else torch.tensor(weights)
    )
    reference.backward()
    torch.testing.assert_close(loss, reference)
    torch.testing.assert_close(gradient, expected.grad)


def test_balanced_weights_come_from_the_training_rows_and_stay_with_the_checkpoint(data, tmp_path, caplog):
    state = run_train(data, tmp_path, "--class-weights", "balanced", "--max-update", "2")
    targets = [
        line.split("\t")[1] for line in (data.parent.parent / "corpus0" / "train.tsv").read_text().split("\n")[1:-1]
    ]
    expected = [len(targets) / (2 * targets.count(name)) for name in ("bad", "good")]
    assert state["task_state"]["class_weights"] == pytest.approx(expected)
    assert f"class weights: bad {expected[0]:.4g}, good {expected[1]:.4g}" in caplog.text
    assert state["cfg"]["criterion"]["class_weights"] == "balanced"
    predictor = sot_fairseq.from_pretrained(tmp_path)
    assert predictor.task.class_weights == state["task_state"]["class_weights"]


def test_weights_follow_the_models_order_of_labels(data, tmp_path):
    state = run_train(data, tmp_path, "--class-weights", "GOOD=3", "--max-update", "1")
    assert state["task_state"] | {"class_weights": [1.0, 3.0]} == state["task_state"]
    assert state["task_state"]["label_names"] == ["bad", "good"]


def test_weights_change_what_is_learned(data, tmp_path):
    """A heavy class is predicted for all rows where nothing else tells them apart."""
    for name, heavy in (("bad", "bad=1000"), ("good", "good=1000")):
        run_train(data, tmp_path / name, "--class-weights", heavy, "--max-epoch", "2", "--lr", "0.01")
        predictor = sot_fairseq.from_pretrained(tmp_path / name)
        assert {prediction.label for prediction in predictor.predict(["the cat", "a dog not", "big"])} == {name}


@pytest.mark.parametrize(
    "value, message",
    [
        ("bad=0", "'bad=0' is not a class weight: --class-weights bad=0"),
        ("ugly=2", "no such class: --class-weights 'ugly'; the classes are bad, good"),
    ],
)
def test_mistakes_end_the_run_before_its_first_step(data, tmp_path, value, message, caplog):
    with pytest.raises(UsageError, match=message):
        run_train(data, tmp_path, "--class-weights", value)
    assert "begin training epoch" not in caplog.text


def test_a_regression_has_no_classes(score_data, tmp_path):
    best = ("--best-checkpoint-metric", "pearson", "--maximize-best-checkpoint-metric")
    with pytest.raises(UsageError, match="a regression has no classes: --class-weights balanced"):
        run_train(score_data, tmp_path, "--class-weights", "balanced", *best)


def test_the_header_of_the_data_needs_no_flag(data):
    assert json.loads((data / "preprocess.json").read_text())["multi_label"] is False
