"""What own data may look like, and what a training takes from them by itself."""

import json
import os
import random
import subprocess
import sys

import pytest

import sot_fairseq
from sot_base.errors import UsageError
from sot_fairseq.data.header import DataHeader
from tests.sot_fairseq.conftest import command, preprocess_folder, run_train, sentence, write_rows, write_vocab
from tests.sot_fairseq.training_process import PROGRAM
from tests.support import REPOSITORY

OWN = ("--text-columns", "sentence", "--label-column", "label")
ACCURACY = ("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric")
PEARSON = ("--best-checkpoint-metric", "pearson", "--maximize-best-checkpoint-metric")


def write(folder, labels, test=None, rows=20):
    """Train and dev files with these labels in turn, and a test file with its own."""
    rng = random.Random(3)
    for name in ("train", "dev"):
        write_rows(
            folder / f"{name}.tsv",
            ("sentence", "label"),
            [(sentence(rng), labels[i % len(labels)]) for i in range(rows)],
        )
    if test is not None:
        write_rows(folder / "test.tsv", ("sentence", "label"), [(sentence(rng), label) for label in test])
    return folder


class TestLabels:
    @pytest.mark.parametrize("placeholder", ["-1", ""])
    def test_a_test_file_of_placeholders_is_unlabelled(self, tmp_path, caplog, placeholder):
        data = preprocess_folder(write(tmp_path, ["no", "yes"], [placeholder] * 3), tmp_path / "bin", *OWN)
        labelled = {name: split.labelled for name, split in DataHeader.load(data).splits.items()}
        assert labelled == {"train": True, "valid": True, "test": False}
        assert not (data / "label" / "test.idx").exists()
        assert sum("read as a file without labels" in message for message in caplog.messages) == 1
        run_train(data, tmp_path / "run", *ACCURACY, "--max-update", "1")
        with pytest.raises(UsageError, match="split 'test' has no labels"):
            sot_fairseq.from_pretrained(tmp_path / "run").evaluate(data, "test")

    def test_names_with_commas_and_accents(self, tmp_path, capsys):
        labels = ["yes, really", "cafe\u0301"]
        data = preprocess_folder(write(tmp_path, labels), tmp_path / "bin", *OWN, "--labels", 'caf\u00e9,"yes, really"')
        assert DataHeader.load(data).labels == ("caf\u00e9", "yes, really")
        assert 'labels: caf\u00e9, "yes, really"' in capsys.readouterr().out
        run_train(data, tmp_path / "run", *ACCURACY, "--max-update", "1")
        predictor = sot_fairseq.from_pretrained(tmp_path / "run")
        assert set(predictor.predict(["the cat"])[0].probabilities) == {"caf\u00e9", "yes, really"}

    @pytest.mark.parametrize(
        "labels, message",
        [
            (["0.0", "2.25", "5.0"], r"the 3 labels are numbers from 0 to 5: .*train.tsv.*did you mean --regression\?"),
            (["pos", "pos\u200b"], r"'pos\\u200b' \(U\+200B ZERO WIDTH SPACE\) looks like 'pos' and is another label"),
        ],
    )
    def test_questions(self, tmp_path, labels, message):
        with pytest.raises(UsageError, match=message):
            preprocess_folder(write(tmp_path, labels), tmp_path / "bin", *OWN)
        assert not (tmp_path / "bin").exists()

    def test_a_split_without_labels_is_refused_before_the_start(self, tmp_path, caplog):
        data = preprocess_folder(write(tmp_path, ["no", "yes"], ["-1"] * 3), tmp_path / "bin", *OWN)
        with pytest.raises(UsageError, match=r"split 'test' has no labels: .*/label/test; give splits with labels"):
            run_train(data, tmp_path / "run", *ACCURACY, "--valid-subset", "test", "--ignore-unused-valid-subsets")
        assert "begin training epoch" not in caplog.text


class TestNumbers:
    def test_no_flag_is_needed(self, score_data, tmp_path):
        state = run_train(score_data, tmp_path / "own", *PEARSON, "--max-update", "2")
        flagged = run_train(
            score_data, tmp_path / "flag", *PEARSON, "--max-update", "2", "--regression-target", "--num-classes", "1"
        )
        assert state["extra_state"]["best"] == flagged["extra_state"]["best"]
        assert state["cfg"]["task"]["regression_target"] is True
        assert state["cfg"]["criterion"]["regression_target"] is True
        assert state["cfg"]["task"]["num_classes"] == 1
        assert isinstance(sot_fairseq.from_pretrained(tmp_path / "own").predict([("a", "b")])[0].label, float)

    def test_fairseqs_own_criterion(self, score_data, tmp_path):
        words = ("--report-pearson-and-spearman", "--best-checkpoint-metric", "pearson_and_spearman", PEARSON[2])
        assert run_train(score_data, tmp_path, *words, "--max-update", "1", criterion="sentence_prediction")

    @pytest.mark.parametrize(
        "words, message",
        [
            (
                ("--regression-target",),
                "--regression-target, but the data do not have numbers: .*preprocess with --regr",
            ),
            (("--regression-target", "--num-classes", "1"), "--regression-target, but the data do not have numbers"),
        ],
    )
    def test_classes_taken_for_numbers(self, data, tmp_path, words, message):
        with pytest.raises(UsageError, match=message):
            run_train(data, tmp_path, *PEARSON, *words)

    def test_more_numbers_than_one(self, score_data, tmp_path):
        with pytest.raises(UsageError, match="--num-classes 2, but the data have one number a row"):
            run_train(score_data, tmp_path, *PEARSON, "--num-classes", "2")

    def test_data_of_fairseqs_own_tools(self, data, score_data, tmp_path):
        """They have no preprocess.json: the flag is named."""
        for name, source in (("classes", data), ("numbers", score_data)):
            subprocess.run(["cp", "-r", str(source), str(tmp_path / name)], check=True)
            (tmp_path / name / "preprocess.json").unlink()
        with pytest.raises(UsageError, match=r"the labels are numbers: .*train.label; give --regression-target"):
            run_train(tmp_path / "numbers", tmp_path / "run", *PEARSON)
        with pytest.raises(UsageError, match=r"the labels are not numbers: .*/label; leave out --regression-target"):
            run_train(tmp_path / "classes", tmp_path / "run", *PEARSON, "--regression-target", "--num-classes", "1")

    def test_a_model_of_the_other_kind(self, data, score_data, tmp_path):
        run_train(data, tmp_path / "classes", *ACCURACY, "--max-update", "1")
        run_train(score_data, tmp_path / "numbers", *PEARSON, "--max-update", "1")
        for run, other, message in (
            ("classes", score_data, "the model does not predict numbers, the data have them"),
            ("numbers", data, "the model predicts numbers, the data do not have them"),
        ):
            with pytest.raises(UsageError, match=message):
                sot_fairseq.from_pretrained(tmp_path / run).evaluate(other)


def test_a_colon_in_a_path(tmp_path):
    folder = tmp_path / "run:1"
    data = preprocess_folder(write(tmp_path, ["no", "yes"]), folder / "data", *OWN)
    state = run_train(data, folder / "run", *ACCURACY, "--max-epoch", "2")
    assert state["optimizer_history"][-1]["num_updates"] == 6
    assert sot_fairseq.from_pretrained(folder / "run").evaluate()["accuracy"] >= 0


@pytest.mark.e2e
def test_output_is_utf8(tmp_path):
    """Of the toolkit's commands and of fairseq's, whatever the terminal's encoding."""
    write(tmp_path, ["\u597d", "\u574f"])
    words = [
        "--data-dir",
        tmp_path,
        "--output-dir",
        tmp_path / "bin",
        "--bpe",
        "wordpiece",
        "--vocab",
        write_vocab(tmp_path / "v"),
    ]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(REPOSITORY)}
    run = [sys.executable, "-m", "sot_fairseq.preprocess", *map(str, words), *OWN]
    done = subprocess.run(run, capture_output=True, env=environment, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr[-2000:]
    assert "labels: \u574f, \u597d".encode() in done.stdout
    assert json.loads((tmp_path / "bin" / "preprocess.json").read_text(encoding="utf-8"))["labels"] == [
        "\u574f",
        "\u597d",
    ]
    words = command(tmp_path / "bin", tmp_path / "run", *ACCURACY, "--max-update", "1", "--class-weights", "balanced")
    done = subprocess.run([PROGRAM, *words], capture_output=True, env=environment, check=False)
    assert (done.returncode, b"Traceback" in done.stderr + done.stdout) == (0, False), done.stderr[-2000:]
    assert "class weights: \u574f 1, \u597d 1".encode() in done.stdout
