"""Weights of classes, and rows with several labels, from the command line to predictions."""

import json
import random

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sot_base.errors import UsageError
from sot_hf.arguments import parse_arguments
from sot_hf.data import read_split, read_task, task_with_labels
from sot_hf.run_glue import main
from sot_hf.trainer import HeadTrainer
from tests.sot_hf.conftest import sentence, write_rows
from tests.sot_hf.models import batch, tiny_model, tokenizer
from tests.sot_hf.test_run_glue import words

OWN = ("--text_columns", "text", "--label_column", "label")


@pytest.fixture(scope="module")
def animals(tmp_path_factory):
    """Each row has the animals that occur in it, perhaps none."""
    folder = tmp_path_factory.mktemp("animals")
    rng = random.Random(8)
    for name, count in (("train", 64), ("dev", 16), ("test", 6)):
        texts = [sentence(rng) for _ in range(count)]
        labels = [",".join(word for word in ("bird", "cat", "dog") if word in text.split()) for text in texts]
        write_rows(folder / f"{name}.tsv", ("text", "label"), zip(texts, labels, strict=True))
    return folder


def test_several_labels_a_row(bert_folder, animals, tmp_path):
    run = ("--multi_label", "--do_train", "--do_eval", "--do_predict", "--num_train_epochs", "25")
    command = words(bert_folder, animals, tmp_path, *OWN, *run, "--class-weights", "balanced")
    command[command.index("--learning_rate") + 1] = "1e-2"
    main(command)
    results = json.loads((tmp_path / "eval_results.json").read_text())
    assert results["eval_f1_micro"] > 0.8
    assert {"eval_f1_macro", "eval_accuracy"} <= results.keys()
    model, encode = (
        AutoModelForSequenceClassification.from_pretrained(tmp_path),
        AutoTokenizer.from_pretrained(tmp_path),
    )
    assert model.config.problem_type == "multi_label_classification"
    assert model.config.id2label == {0: "bird", 1: "cat", 2: "dog"}
    texts = [line.split("\t")[0] for line in (animals / "test.tsv").read_text().splitlines()[1:]]
    predicted = [line.split("\t")[1] for line in (tmp_path / "custom.tsv").read_text().splitlines()[1:]]
    with torch.no_grad():
        logits = model(**encode(texts, padding=True, return_tensors="pt")).logits
    names = [model.config.id2label[index] for index in range(3)]
    assert predicted == [",".join(n for n, v in zip(names, row, strict=True) if v > 0) for row in logits]
    single = words(tmp_path, animals, tmp_path / "out", *OWN, "--labels", "cat,bird,dog", "--do_predict")
    with pytest.raises(UsageError, match=r"the saved head has other labels .*several labels a row -> one label a row"):
        main(single)


def test_targets_of_several_labels(animals):
    task = task_with_labels(read_task(None, "text", "label", multi_label=True), animals, None)
    rows = read_split(task, task.splits[0], animals, tokenizer(), 40)
    assert rows.targets.shape == (64, 3)
    assert rows[0]["labels"] == rows.targets[0].tolist()
    assert rows.targets.sum() > 0


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_the_loss_weighs_classes(problem):
    model = tiny_model("bert", problem_type=problem).eval()
    rows = batch()
    if problem.startswith("multi"):
        rows["labels"] = F.one_hot(rows["labels"], 3).float()
    plain = model(**rows)
    model.class_weights = torch.tensor([1.0, 4.0, 0.5])
    weighed = model(**rows).loss
    if problem.startswith("multi"):
        expected = F.binary_cross_entropy_with_logits(
            plain.logits, rows["labels"], pos_weight=torch.tensor([1.0, 4.0, 0.5])
        )
    else:
        weights = model.class_weights[rows["labels"]]
        losses = F.cross_entropy(plain.logits, rows["labels"], reduction="none")
        expected = (weights * losses).sum() / weights.sum()
    assert weighed.item() == pytest.approx(expected.item(), rel=1e-5)
    assert weighed.item() != pytest.approx(plain.loss.item(), rel=1e-3)
    assert "class_weights" not in model.state_dict()


def test_balanced_weights_are_those_of_the_training_rows(bert_folder, rte, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(HeadTrainer, "train", lambda self, **_: seen.append(self.model.class_weights) or 1 / 0)
    run = ("--task_name", "RTE", "--do_train", "--class_weights")
    for value in ("balanced", "NOT_entailment=3"):
        with pytest.raises(ZeroDivisionError):
            main(words(bert_folder, rte, tmp_path / "out", *run, value))
    labels = [line.split("\t")[3] for line in (rte / "train.tsv").read_text().splitlines()[1:]]
    counts = np.array([labels.count("entailment"), labels.count("not_entailment")])
    assert seen[0].tolist() == pytest.approx((len(labels) / (2 * counts)).tolist())
    assert seen[1].tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    "more, message",
    [
        ("--task_name RTE --class-weights maybe=2", "no such class: --class-weights 'maybe'"),
        ("--task_name RTE --class-weights entailment=-2", "'entailment=-2' is not a class weight"),
        ("--task_name RTE --class-weights balanced --label_smoothing_factor 0.1", "beside --label_smoothing_factor"),
        ("--text_columns sentence1 --label_column index --regression --class-weights balanced", "has no classes: --cl"),
        ("--text_columns sentence1 --label_column label --multi-label --label_smoothing_factor 0.1", "has no class to"),
        ("--task_name RTE --multi_label", "options for custom data beside --task_name RTE"),
    ],
)  # fmt: skip
def test_weights_and_labels_that_make_no_sense(more, message, bert_folder, rte, tmp_path):
    with pytest.raises(UsageError, match=message):
        main(words(bert_folder, rte, tmp_path / "out", "--do_train", *more.split()))
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_wrong_option_is_not_taken_for_one_that_is_not_like_it(tmp_path):
    base = ["--model_name_or_path", "m", "--data_dir", "d", "--output_dir", str(tmp_path), "--do_train", "--use_cpu"]
    for option in ("--patience", "--batch_size", "--lr"):
        with pytest.raises(UsageError, match=f"unknown option {option}: the command line; --help shows all"):
            parse_arguments([*base, option, "3"])
