"""A small data set with the layout of SST-2, and the command line on it."""

import random

import pytest

from benchmarks.heads import __main__ as heads
from tests.sot_hf.conftest import bert_folder, sentence, write_rows  # noqa: F401  the fixture


@pytest.fixture(scope="session")
def sentences(tmp_path_factory):
    """A sentence is negative if it has a "not"."""
    folder, rng = tmp_path_factory.mktemp("glue"), random.Random(5)
    for name, count in (("train", 60), ("dev", 24)):
        texts = [sentence(rng) for _ in range(count)]
        rows = [(text, str(int("not" not in text.split()))) for text in texts]
        write_rows(folder / f"{name}.tsv", ("sentence", "label"), rows)
    return folder


@pytest.fixture
def run(bert_folder, sentences, tmp_path):  # noqa: F811
    """Runs the command line on the sentences; without a set only the tables are printed."""

    def run_heads(*words, out="out"):
        words = [*words, "--text-encoder", bert_folder, "--data-dir", sentences, "--cache-dir", tmp_path / "store"]
        words += ["--mgcrp-heads", "2", "--mgcrp-q", "4", "--epochs", "2", "--output-dir", tmp_path / out]
        return heads.main([str(word) for word in words])

    return run_heads
