"""Counting what a classifier predicts."""

import pytest
import torch

from sot_base.errors import UsageError
from vision.evaluation.metrics import ClassEvaluator


def test_counts_by_class():
    evaluator = ClassEvaluator(3, confusion=True)
    evaluator.update(torch.eye(3)[[0, 1, 1, 2]] * 9, torch.tensor([0, 0, 0, 2]))
    assert evaluator.per_class(["a", "b", "c"]) == [
        {"class": "a", "images": 3, "accuracy": 33.33, "taken_for": "b"},
        {"class": "c", "images": 1, "accuracy": 100.0, "taken_for": ""},
    ]


def test_only_the_allowed_classes_are_predicted():
    evaluator = ClassEvaluator(3, allowed=[0, 2], confusion=True)
    evaluator.update(torch.tensor([[1.0, 9.0, 2.0], [3.0, 9.0, 2.0]]), torch.tensor([2, 0]))
    assert evaluator.hits.tolist() == [1, 0, 1]
    assert evaluator.compute()["top1"] == 100


def test_no_image_at_all():
    with pytest.raises(UsageError, match="nothing to evaluate: no image can be read"):
        ClassEvaluator(3).compute()
