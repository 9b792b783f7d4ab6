"""What own TSV files may hold: ids of any form, placeholder labels, names with commas and accents."""

import logging
import random

import numpy as np
import pytest
from transformers import EvalPrediction

from sot_base.errors import UsageError
from sot_hf import SoTForSequenceClassification
from sot_hf.data import read_task
from sot_hf.evaluation import metrics_function
from sot_hf.run_glue import main
from tests.sot_hf.conftest import sentence, write_rows
from tests.sot_hf.test_run_glue import words

OWN = ("--text_columns", "text", "--label_column", "label", "--max_steps", "1", "--save_strategy", "no")
IDS = ["rev-1", "rev-1", "7", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    rng = random.Random(2)
    for name, e_acute in (("train", "\u00e9"), ("dev", "e\u0301")):
        labels = [("yes, really", f"caf{e_acute}")[row % 2] for row in range(16)]
        write_rows(
            folder / f"{name}.tsv", ("id", "text", "label"), [(str(n), sentence(rng), x) for n, x in enumerate(labels)]
        )
    write_rows(folder / "test.tsv", ("id", "text", "label"), [(name, sentence(rng), "-1") for name in IDS])
    return folder


def test_ids_placeholders_and_names(bert_folder, folder, tmp_path, caplog):
    labels = ("--labels", '"yes, really",cafe\u0301')
    main(words(bert_folder, folder, tmp_path, *OWN, *labels, "--do_train", "--do_eval", "--do_predict"))
    assert "test.tsv: the labels are all '-1', which is not a label: read as a file without labels" in caplog.text
    lines = (tmp_path / "custom.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines[1:]] == IDS
    assert {line.split("\t")[1] for line in lines[1:]} <= {"yes, really", "caf\u00e9"}
    assert SoTForSequenceClassification.from_pretrained(tmp_path).config.id2label == {0: "yes, really", 1: "caf\u00e9"}


def test_scores_ask_for_regression(bert_folder, tmp_path):
    rows = [("text", f"{number / 4}") for number in range(21)]
    for name in ("train", "dev"):
        write_rows(tmp_path / f"{name}.tsv", ("text", "label"), rows)
    with pytest.raises(UsageError, match=r"the 21 labels are numbers from 0 to 5: .*did you mean --regression\?"):
        main(words(bert_folder, tmp_path, tmp_path / "out", *OWN, "--do_train"))


def test_a_collapsed_run_is_named_by_class_head_and_seed(caplog):
    task = read_task(None, "text", "label", "1,2,3")
    logits = np.tile(np.array([0.0, 1.0, 0.0]), (4, 1))
    with caplog.at_level(logging.WARNING):
        metrics_function(task, "head mgcrp, seed 3")(EvalPrediction(logits, np.array([0, 1, 2, 2])))
    (message,) = caplog.messages
    assert message.startswith("all 4 predictions of head mgcrp, seed 3 are '2', as are 25% of the targets: ")
