"""Tiny random Hugging Face BERTs with their files, for the tests of the encoder side."""

import json
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

VOCAB = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "sat",
    "##s",
    "on",
    "mat",
    "a",
    ".",
    ",",
]
SIZES = {
    "vocab_size": len(VOCAB),
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 20,
}
FAIRSEQ_NAMES = {"[CLS]": "<s>", "[PAD]": "<pad>", "[SEP]": "</s>", "[UNK]": "<unk>", "[MASK]": "<mask>"}


def random_bert(kind=BertModel, **config):
    """A BERT whose every parameter is random, so that no two can be mistaken for each other."""
    model = kind(BertConfig(**(SIZES | config), attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def write_tokenizer(folder: Path, vocab=VOCAB, lower_case=True) -> None:
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocab), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower_case}))


def save_bert(folder: Path, model) -> Path:
    """Save as Hugging Face does today (config.json, model.safetensors), and a vocab.txt."""
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def save_pickle(folder: Path, tensors: dict, legacy: bool = False, **config) -> Path:
    """Save as SpanBERT's archives do: pytorch_model.bin and a config.json without a model type."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SIZES | {"hidden_act": "gelu", "type_vocab_size": 2} | config))
    write_tokenizer(folder)
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    return folder


def load_fairseq(folder: Path):
    """Load a converted folder with fairseq's own function: the model and its dictionary."""
    from fairseq import checkpoint_utils

    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(folder / "model.pt")], arg_overrides={"data": str(folder)}
    )
    return models[0].eval(), task.source_dictionary
