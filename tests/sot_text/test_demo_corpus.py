"""The demo corpus: its format, its balance, and what the dev file keeps from training."""

import re
from collections import Counter

import pytest

from sot_text.glue import get_task
from sot_text.splits import read_split_file
from tests.support import REPOSITORY

CORPUS = REPOSITORY / "glue_scripts" / "demo_corpus" / "CoLA"


def words(sentences):
    return [word for sentence in sentences for word in re.findall(r"\w+", sentence.lower())]


@pytest.fixture(scope="module")
def rows():
    return {
        split: [line.split("\t") for line in (CORPUS / f"{split}.tsv").read_text(encoding="utf-8").splitlines()]
        for split in ("train", "dev")
    }


def test_the_task_reads_it():
    task = get_task("CoLA")
    sizes = {split.name: len(read_split_file(task, split, CORPUS).lines) for split in task.splits if not split.is_test}
    assert sizes == {"train": 2000, "valid": 500}


@pytest.mark.parametrize("split", ["train", "dev"])
def test_half_of_the_sentences_are_acceptable(rows, split):
    labels = Counter(label for _, label, _, _ in rows[split])
    assert labels["0"] == labels["1"]
    assert all(mark == {"1": "", "0": "*"}[label] for _, label, mark, _ in rows[split])


def test_no_sentence_occurs_twice(rows):
    sentences = [row[-1] for split in rows.values() for row in split]
    assert len(set(sentences)) == len(sentences)


def test_dev_has_words_that_training_has_not(rows):
    train, dev = (set(words(row[-1] for row in rows[split])) for split in ("train", "dev"))
    assert 0.3 < len(dev - train) / len(dev) < 0.45


@pytest.mark.parametrize("split", ["train", "dev"])
def test_neither_single_words_nor_the_length_tell_the_label(rows, split):
    acceptable = [row[-1] for row in rows[split] if row[1] == "1"]
    unacceptable = [row[-1] for row in rows[split] if row[1] == "0"]
    good, bad = Counter(words(acceptable)), Counter(words(unacceptable))
    for word in good.keys() | bad.keys():
        total = good[word] + bad[word]
        assert abs(good[word] - bad[word]) <= 5.0 * total**0.5, word  # five standard deviations of a fair coin
    lengths = [sum(len(words([sentence])) for sentence in part) / len(part) for part in (acceptable, unacceptable)]
    assert abs(lengths[0] - lengths[1]) < 0.5
