"""The same encoder with an untrained head, as each side wants it, and texts of mixed lengths."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel

from benchmarks import DEMO_CORPUS
from sot_hf.convert import to_fairseq
from sot_hf.load_config import load_config
from sot_hf.load_model import load_model
from sot_text.glue import get_task
from sot_text.minilm import find_minilm

__all__ = ["mixed_texts", "save_models", "save_small_encoder"]


def save_models(encoder: str | Path, folder: Path) -> dict[str, Path]:
    """Write the encoder with a head of two classes.

    Args:
        encoder: Folder of a BERT.
        folder: Where the models go.

    Returns:
        Their folders: ``transformers`` with BERT's head, ``sot_hf`` and ``sot_fairseq`` with the same MGCrP head.
    """
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    stock = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=2)
    ours, _ = load_model(str(encoder), load_config(str(encoder)), get_task("CoLA"), {}, {}, train=True)
    folders = {name: folder / name for name in ("transformers", "sot_hf", "sot_fairseq")}
    for name, model in (("transformers", stock), ("sot_hf", ours)):
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    to_fairseq(folders["sot_hf"], folders["sot_fairseq"])
    return folders


def save_small_encoder(folder: Path) -> Path:
    """Write a BERT of one layer and width 64 with MiniLM's vocabulary."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(find_minilm())
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def mixed_texts(count: int) -> list[str]:
    """Texts of one to eight sentences of the demo corpus."""
    with (DEMO_CORPUS / "CoLA" / "train.tsv").open(encoding="utf-8", newline="") as file:
        sentences = [row[3] for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    texts, place = [], 0
    for number in range(count):
        length = 1 + (number * 5) % 8
        texts.append(" ".join(sentences[(place + i) % len(sentences)] for i in range(length)))
        place += length
    return texts
