"""Folders of tiny models and of TSV files."""

import random

import pytest
import torch
from transformers import BertConfig, BertModel

from tests.sot_hf.models import ENCODER, WORDS, randomize, tokenizer


def write_rows(path, header, rows):
    lines = [*(["\t".join(header)] if header else []), *("\t".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def sentence(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 9)))


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    randomize(BertModel(BertConfig(**ENCODER))).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def rte(tmp_path_factory):
    """RTE's files: a pair is an entailment if its second sentence has no "not"."""
    folder = tmp_path_factory.mktemp("rte")
    rng = random.Random(3)
    header = ("index", "sentence1", "sentence2", "label")
    for name, count in (("train", 48), ("dev", 16), ("test", 5)):
        pairs = [(sentence(rng), sentence(rng)) for _ in range(count)]
        labels = ["not_entailment" if "not" in second.split() else "entailment" for _, second in pairs]
        rows = [(str(i), *pair, label) for i, (pair, label) in enumerate(zip(pairs, labels, strict=True))]
        if name == "test":
            rows = [row[:-1] for row in rows]
        write_rows(folder / f"{name}.tsv", header[: 3 if name == "test" else 4], rows)
    return folder
