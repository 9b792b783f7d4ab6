"""BERT's weights in Hugging Face files and in fairseq checkpoints: one table of names, read in both directions.

The two hold the same numbers under other names, with two differences of layout:

* fairseq numbers tokens in its own order (``<s> <pad> </s> <unk>``, the words, ``<mask>``), so the rows of the word
  embedding and of the masked language model's bias are permuted;
* fairseq numbers positions from ``padding index + 1 = 2``, so two unused rows come first in the position table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sot_base.errors import UsageError
from sot_text.formats.architecture import BertArchitecture

__all__ = ["FairseqBert", "bert_to_fairseq", "fairseq_to_bert", "canonical_bert_names"]

POSITION_OFFSET = 2  # fairseq's padding index + 1
MAX_PADDING_ROWS = 128  # matrices are padded to multiples of up to 128 rows; a larger surplus is another vocabulary
ENCODER = "encoder.sentence_encoder."

# (Hugging Face name, fairseq name, shape). A weight's shape has a letter for each dimension: V words, P positions,
# T token types, D embed_dim, F ffn_dim. A module's bias has the first of them.
EMBEDDINGS = (
    ("embeddings.word_embeddings.weight", "embed_tokens.weight", "VD"),
    ("embeddings.position_embeddings.weight", "embed_positions.weight", "PD"),
    ("embeddings.token_type_embeddings.weight", "embed_token_types.weight", "TD"),
    ("embeddings.LayerNorm.weight", "layernorm_embedding.weight", "D"),
    ("embeddings.LayerNorm.bias", "layernorm_embedding.bias", "D"),
)
LAYER_MODULES = (
    ("attention.self.query", "self_attn.q_proj", "DD"),
    ("attention.self.key", "self_attn.k_proj", "DD"),
    ("attention.self.value", "self_attn.v_proj", "DD"),
    ("attention.output.dense", "self_attn.out_proj", "DD"),
    ("attention.output.LayerNorm", "self_attn_layer_norm", "D"),
    ("intermediate.dense", "fc1", "FD"),
    ("output.dense", "fc2", "DF"),
    ("output.LayerNorm", "final_layer_norm", "D"),
)
LM_HEAD = (
    ("cls.predictions.transform.dense.weight", "encoder.lm_head.dense.weight", "DD"),
    ("cls.predictions.transform.dense.bias", "encoder.lm_head.dense.bias", "D"),
    ("cls.predictions.transform.LayerNorm.weight", "encoder.lm_head.layer_norm.weight", "D"),
    ("cls.predictions.transform.LayerNorm.bias", "encoder.lm_head.layer_norm.bias", "D"),
    ("cls.predictions.bias", "encoder.lm_head.bias", "V"),
)
BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}  # constants that older files hold
POOLER = (("pooler.dense.weight", "DD"), ("pooler.dense.bias", "D"))


class FairseqBert(NamedTuple):
    """What :func:`bert_to_fairseq` returns.

    Attributes:
        model: State dict of the fairseq model ``sot_bert``, with ``pooler.dense.weight`` and ``pooler.dense.bias`` of a
            file that has them: a new classification head starts from them.
        has_pooler: Whether the file has BERT's pooler.
        has_lm_head: Whether the file has the head of the masked language model.
        ignored: Names in the file that have no place in the encoder, sorted.
    """

    model: dict[str, Tensor]
    has_pooler: bool
    has_lm_head: bool
    ignored: list[str]


def encoder_names(architecture: BertArchitecture) -> Iterator[tuple[str, str, str]]:
    """Yield (Hugging Face name, fairseq name, shape letters) of every tensor of the encoder."""
    for bert, fairseq, shape in EMBEDDINGS:
        if shape != "TD" or architecture.token_types:
            yield bert, ENCODER + fairseq, shape
    for layer in range(architecture.layers):
        for bert, fairseq, shape in LAYER_MODULES:
            for leaf, letters in (("weight", shape), ("bias", shape[0])):
                yield f"encoder.layer.{layer}.{bert}.{leaf}", f"{ENCODER}layers.{layer}.{fairseq}.{leaf}", letters


def canonical_bert_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo what saved files add to a BERT's names: ``module.`` and ``bert.`` prefixes, and ``gamma``/``beta``."""
    renamed = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("module.").removeprefix("bert.")
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            if name.endswith(old):
                name = name.removesuffix(old) + new
        renamed[name] = tensor
    return renamed


def bert_to_fairseq(
    tensors: Mapping[str, Tensor], architecture: BertArchitecture, row_order: Sequence[int], where: str = "state dict"
) -> FairseqBert:
    """Turn a Hugging Face BERT's tensors into the state dict of the fairseq model ``sot_bert``, in float32.

    Args:
        tensors: A state dict, with or without prefixes, with or without task heads.
        architecture: The sizes that the tensors must have.
        row_order: ``row_order[i]`` is the row, in the file, of the word that fairseq's dictionary has at ``i``. Rows of
            the file that it does not name (padding of the matrix) are dropped.
        where: The file, for messages.

    Raises:
        UsageError: If a tensor of the encoder is missing, has another size, or is left over.
    """
    source = canonical_bert_names(tensors)
    names = list(encoder_names(architecture))
    _check(source, names, architecture, len(row_order), where)
    order = torch.as_tensor(row_order)
    model = {fairseq: source[bert].float() for bert, fairseq, _ in names}
    words = model[ENCODER + "embed_tokens.weight"] = model[ENCODER + "embed_tokens.weight"][order]
    positions = model[ENCODER + "embed_positions.weight"]
    model[ENCODER + "embed_positions.weight"] = torch.cat(
        [positions.new_zeros(POSITION_OFFSET, words.size(1)), positions]
    )
    model[ENCODER + "version"] = torch.tensor([3.0])

    has_lm_head = all(bert in source for bert, _, _ in LM_HEAD)
    if has_lm_head:
        model |= {fairseq: source[bert].float() for bert, fairseq, _ in LM_HEAD}
        model["encoder.lm_head.bias"] = model["encoder.lm_head.bias"][order]
    model["encoder.lm_head.weight"] = words
    has_pooler = all(name in source for name, _ in POOLER)
    if has_pooler:
        model |= {name: source[name].float() for name, _ in POOLER}
    used = {bert for bert, _, _ in names} | BUFFERS
    used |= {bert for bert, _, _ in LM_HEAD} if has_lm_head else set()
    used |= {name for name, _ in POOLER} if has_pooler else set()
    return FairseqBert(model, has_pooler, has_lm_head, sorted(source.keys() - used))


def fairseq_to_bert(
    model: Mapping[str, Tensor], architecture: BertArchitecture, row_order: Sequence[int]
) -> dict[str, Tensor]:
    """Turn a ``sot_bert`` state dict back into Hugging Face names and layout, without the ``bert.`` prefix.

    Args:
        model: The fairseq state dict; classification heads in it are left out.
        architecture: Its sizes.
        row_order: As for :func:`bert_to_fairseq`: a permutation of the vocabulary's rows.

    Raises:
        UsageError: If a tensor is missing, or the vocabulary has another size than the embedding.
    """
    names = [(bert, fairseq) for bert, fairseq, _ in encoder_names(architecture)]
    missing = [fairseq for _, fairseq in names if fairseq not in model]
    if missing:
        raise UsageError(
            f"{len(missing)} encoder tensors are missing: the checkpoint lacks {_some(missing)}; get it again"
        )
    rows = len(model[ENCODER + "embed_tokens.weight"])
    if rows != len(row_order):
        raise UsageError(
            f"the vocabulary has {len(row_order)} entries and the embedding {rows} rows: the checkpoint; "
            "give the vocab.txt that it was trained with"
        )
    inverse = torch.argsort(torch.as_tensor(row_order))
    tensors = {bert: model[fairseq] for bert, fairseq in names}
    tensors |= {bert: model[fairseq] for bert, fairseq, _ in LM_HEAD if fairseq in model}
    for name in ("embeddings.word_embeddings.weight", "cls.predictions.bias"):
        if name in tensors:
            tensors[name] = tensors[name][inverse]
    positions = "embeddings.position_embeddings.weight"
    tensors[positions] = tensors[positions][POSITION_OFFSET:].clone()
    return tensors | {name: model[name] for name, _ in POOLER if name in model}


def _check(
    source: Mapping[str, Tensor],
    names: Sequence[tuple[str, str, str]],
    architecture: BertArchitecture,
    vocabulary: int,
    where: str,
) -> None:
    """Refuse a state dict whose encoder is not exactly the one that the architecture describes."""
    missing = [bert for bert, _, _ in names if bert not in source]
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(names)} encoder tensors are missing: {where} lacks {_some(missing)}; "
            "give a BERT or SpanBERT file and the config.json that belongs to it"
        )
    known = {bert for bert, _, _ in names}
    surplus = [n for n in source if n.startswith("encoder.layer.") or n == EMBEDDINGS[2][0] if n not in known]
    if surplus:
        raise UsageError(
            f"{len(surplus)} encoder tensors do not fit the config.json: {where} has {_some(surplus)} besides; "
            "give the config.json that belongs to it"
        )
    words = source["embeddings.word_embeddings.weight"]
    rows = len(words) if words.dim() else 0
    if not 0 <= rows - vocabulary < MAX_PADDING_ROWS:
        raise UsageError(
            f"the vocabulary has {vocabulary} entries and the embedding {rows} rows: {where}; "
            "give the vocab.txt that belongs to these weights"
        )
    sizes = {
        "V": rows,
        "P": architecture.max_positions,
        "T": architecture.token_types,
        "D": architecture.embed_dim,
        "F": architecture.ffn_dim,
    }
    optional = [(bert, letters) for bert, *_, letters in (*LM_HEAD, *POOLER)]
    for bert, letters in (*((bert, letters) for bert, _, letters in names), *optional):
        expected = tuple(sizes[letter] for letter in letters)
        if bert in source and tuple(source[bert].shape) != expected:
            raise UsageError(
                f"{bert} has shape {tuple(source[bert].shape)}, the config.json says {expected}: {where}; "
                "give the config.json that belongs to it"
            )


def _some(names: Sequence[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
