"""Several labels a row, from the TSV file to predictions."""

import json
import random

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils

import sot_fairseq
from sot_base.errors import UsageError
from sot_base.safe_checkpoint import read_checkpoint
from sot_fairseq import predict
from sot_fairseq.evaluate import evaluate
from sot_fairseq.preprocess import main as preprocess_main
from sot_text.metrics import compute_metrics
from tests.sot_fairseq.conftest import WORDS, preprocess_folder, run_train, sentence, write_rows

LABELS = ["animal", "size, big", "time"]
BEST = ("--best-checkpoint-metric", "f1_micro", "--maximize-best-checkpoint-metric")


def label_cell(text):
    """The labels are words of the sentence."""
    words = text.split()
    found = ["animal"] * ("cat" in words) + ['"size, big"'] * ("big" in words) + ["time"] * ("today" in words)
    return ",".join(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    rng = random.Random(7)
    for name, count in (("train", 160), ("dev", 31), ("test", 5)):
        texts = [sentence(rng) for _ in range(count)]
        rows = [(text, "" if name == "test" else label_cell(text)) for text in texts]
        write_rows(folder / f"{name}.tsv", ("sentence", "topics"), rows)
    return folder


@pytest.fixture(scope="module")
def sets(folder):
    columns = ("--text-columns", "sentence", "--label-column", "topics", "--multi-label")
    return preprocess_folder(folder, folder / "bin", *columns)


@pytest.fixture(scope="module")
def trained(sets, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    run_train(sets, run, *BEST, "--max-epoch", "12", "--lr", "0.02", "--class-weights", "balanced")
    return run


def rows_of(folder, name):
    return [line.split("\t") for line in (folder / f"{name}.tsv").read_text().split("\n")[1:-1]]


def test_the_data(folder, sets):
    header = json.loads((sets / "preprocess.json").read_text())
    assert (header["labels"], header["multi_label"], header["main_metric"]) == (LABELS, True, "f1_micro")
    assert not header["splits"]["test"]["labelled"]
    dictionary = Dictionary.load(str(sets / "label" / "dict.txt"))
    stored = data_utils.load_indexed_dataset(str(sets / "label" / "valid"), dictionary)
    found = [{dictionary[int(number)] for number in row[:-1]} for row in stored]
    expected = [{name for name in LABELS if name.strip('"') in cell} for _, cell in rows_of(folder, "dev")]
    assert found == expected
    counts = dict(zip(dictionary.symbols, dictionary.count, strict=True))
    assert counts["animal"] == sum("animal" in cell for _, cell in rows_of(folder, "train"))


def test_the_labels_are_learned_and_measured(sets, trained):
    predictor = sot_fairseq.from_pretrained(trained)
    measured = evaluate(predictor)["dev"]
    assert set(measured) == {"f1_micro", "f1_macro", "accuracy"}
    assert measured["f1_micro"] > 90
    rows = rows_of(sets.parent, "dev")
    sets_of_labels = [prediction.label for prediction in predictor.predict([text for text, _ in rows])]
    predicted = np.array([[name in labels for name in LABELS] for labels in sets_of_labels])
    targets = np.array([[name in cell for name in LABELS] for _, cell in rows])
    expected = compute_metrics(["f1_micro", "f1_macro", "accuracy"], predicted, targets)
    assert measured == pytest.approx({name: 100 * value for name, value in expected.items()})
    best = read_checkpoint(trained / "checkpoint_best.pt", lazy=False)["extra_state"]["best"]
    assert best == pytest.approx(measured["f1_micro"])


def test_balanced_weights_weigh_the_rows_that_have_a_label(sets, trained):
    counts = np.array([sum(name in cell for _, cell in rows_of(sets.parent, "train")) for name in LABELS])
    saved = read_checkpoint(trained / "checkpoint_last.pt", lazy=False)["task_state"]["class_weights"]
    assert saved == pytest.approx(((160 - counts) / counts).tolist())


def test_predictions(trained, tmp_path, capsys):
    write_rows(tmp_path / "in.tsv", ("sentence",), [("the cat sees a big bird today",), ("a dog likes the bird",)])
    words = [str(trained), str(tmp_path / "in.tsv"), "--text-columns", "sentence"]
    predict.main(words)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t") == ["label", *LABELS]
    assert [line.split("\t")[0] for line in lines[1:]] == ['animal,"size, big",time', ""]
    predict.main([*words, "--json"])
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["label"] == LABELS
    assert all(0.5 <= value <= 1 for value in first["probabilities"].values())
    predict.main([*words, "--threshold", "1"])
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["", ""]


def test_labels_in_another_order_are_translated_by_name(folder, sets, trained, tmp_path):
    columns = ("--text-columns", "sentence", "--label-column", "topics", "--multi-label")
    turned = preprocess_folder(folder, tmp_path / "turned", *columns, "--labels", 'time,"size, big",animal')
    predictor = sot_fairseq.from_pretrained(trained)
    assert predictor.evaluate(turned) == predictor.evaluate(sets)


def test_sum_loss_and_the_metrics_of_two_batch_sizes(sets, tmp_path):
    words = (*BEST, "--head-fusion", "sum_loss", "--max-update", "3")
    found = [
        run_train(sets, tmp_path / size, *words, "--batch-size-valid", size)["extra_state"]["best"] for size in "19"
    ]
    assert found[0] == pytest.approx(found[1])


class TestMistakes:
    def test_the_flag_without_such_data(self, data, tmp_path):
        with pytest.raises(
            UsageError, match=r"--multi-label, but the data do not have several labels a row: .*leave it"
        ):
            run_train(data, tmp_path, "--multi-label")

    def test_fairseqs_criterion(self, sets, tmp_path):
        with pytest.raises(
            UsageError, match="the data have several labels a row, --criterion sentence_prediction takes"
        ):
            run_train(
                *(sets, tmp_path, "--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"),
                criterion="sentence_prediction",
            )

    def test_several_labels_where_one_is_expected(self, sets, tmp_path):
        (sets / "preprocess.json").rename(tmp_path / "preprocess.json")
        try:
            with pytest.raises(
                UsageError, match=r"row \d+ of split 'valid' .* has \d labels instead of one; give --multi"
            ):
                run_train(sets, tmp_path / "run", "--init-token", "0")
        finally:
            (tmp_path / "preprocess.json").rename(sets / "preprocess.json")

    def test_a_model_of_one_label_on_such_data(self, data, sets, tmp_path):
        run_train(data, tmp_path, "--max-update", "1")
        predictor = sot_fairseq.from_pretrained(tmp_path)
        with pytest.raises(UsageError, match="the model does not predict several labels a row, the data have them"):
            predictor.evaluate(sets)

    def test_beside_a_regression_or_a_glue_task(self, folder, tmp_path):
        words = ["--data-dir", str(folder), "--output-dir", str(tmp_path / "bin"), "--bpe", "gpt2", "--multi-label"]
        own = ["--text-columns", "sentence", "--label-column", "topics"]
        with pytest.raises(UsageError, match="several labels a row in a regression: --multi-label"):
            preprocess_main([*words, *own, "--regression"])
        with pytest.raises(UsageError, match="options for custom data beside --task RTE"):
            preprocess_main([*words, "--task", "RTE"])

    def test_an_unknown_label(self, folder, tmp_path):
        write_rows(tmp_path / "train.tsv", ("sentence", "topics"), [("the cat", "a,b"), ("a dog", "c")])
        write_rows(tmp_path / "dev.tsv", ("sentence", "topics"), [("the cat", "a,d")])
        with pytest.raises(
            UsageError, match=r"unknown label 'd': .*dev.tsv line 2, column 'topics'; use one of a, b, c"
        ):
            preprocess_folder(
                *(tmp_path, tmp_path / "bin", "--text-columns", "sentence", "--label-column", "topics", "--multi-label")
            )
        assert not (tmp_path / "bin").exists()


def test_words_are_those_of_the_vocabulary():
    assert {"cat", "big", "today"} <= set(WORDS)
