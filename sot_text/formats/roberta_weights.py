"""RoBERTa's encoder in Hugging Face files and in fairseq checkpoints: same rows, other names.

Hugging Face's has a token type table that fairseq's lacks. Its first row is added to every token, so it becomes part of
the positions on the way to fairseq, and zeros on the way back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from sot_base.errors import UsageError
from sot_text.formats.bert_weights import EMBEDDINGS, ENCODER, LAYER_MODULES

__all__ = ["fairseq_to_roberta", "roberta_to_fairseq"]

TOKEN_TYPES = "embeddings.token_type_embeddings.weight"
POSITIONS = ENCODER + "embed_positions.weight"


def fairseq_to_roberta(model: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Name a fairseq RoBERTa's encoder tensors as Hugging Face's ``RobertaModel`` does.

    Args:
        model: The fairseq state dict.
        layers: Number of transformer layers.

    Raises:
        UsageError: If a tensor is missing.
    """
    missing = [fairseq for _, fairseq in _names(layers) if fairseq not in model]
    if missing:
        raise UsageError(
            f"the checkpoint lacks {', '.join(missing[:3])}: it is not a RoBERTa; give one of RoBERTa's family"
        )
    tensors = {roberta: model[fairseq].float() for roberta, fairseq in _names(layers)}
    words = tensors["embeddings.word_embeddings.weight"]
    return {**tensors, TOKEN_TYPES: words.new_zeros(1, words.shape[1])}


def roberta_to_fairseq(tensors: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Name the tensors of a Hugging Face ``RobertaModel`` as fairseq does, in float32.

    Args:
        tensors: Its state dict.
        layers: Number of transformer layers.
    """
    model = {fairseq: tensors[roberta].float() for roberta, fairseq in _names(layers)}
    model[POSITIONS] = model[POSITIONS] + tensors[TOKEN_TYPES][0].float()
    model[ENCODER + "version"] = torch.tensor([3.0])
    model["encoder.lm_head.weight"] = model[ENCODER + "embed_tokens.weight"]
    return model


def _names(layers: int) -> Iterator[tuple[str, str]]:
    """Yield (Hugging Face name, fairseq name) of every tensor but the token types."""
    for roberta, fairseq, _ in EMBEDDINGS:
        if roberta != TOKEN_TYPES:
            yield roberta, ENCODER + fairseq
    for layer in range(layers):
        for roberta, fairseq, _ in LAYER_MODULES:
            for leaf in ("weight", "bias"):
                yield f"encoder.layer.{layer}.{roberta}.{leaf}", f"{ENCODER}layers.{layer}.{fairseq}.{leaf}"
