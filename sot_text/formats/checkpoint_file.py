"""Tell what kind of weights a file holds and, if it is the wrong kind, name the command that takes it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sot_base.errors import UsageError
from sot_base.safe_checkpoint import read_checkpoint
from sot_base.schema import of_type

__all__ = ["FileKind", "file_kind", "read_bert_weights", "read_fairseq_checkpoint"]

PARTS: dict[str, Any] = {  # of a fairseq checkpoint, besides its configuration
    "model": dict[str, Any],
    "task_state": dict[str, Any],
    "extra_state": dict[str, Any],
    "optimizer_history": list[dict[str, Any]],
}
FileKind = Literal["fairseq", "fairseq weights", "bert", "roberta", "image", "unknown"]

DESCRIPTIONS: dict[FileKind, tuple[str, str]] = {
    "fairseq": (
        "a fairseq checkpoint",
        "it needs no conversion: give it to fairseq-train --restore-file",
    ),
    "fairseq weights": (
        "the bare state dict of a fairseq model",
        "give the fairseq checkpoint that it was taken from",
    ),
    "bert": (
        "Hugging Face BERT weights",
        "convert them with python -m sot_fairseq.convert {path} --output-dir DIR and use DIR/model.pt",
    ),
    "roberta": (
        "Hugging Face RoBERTa weights",
        "use fairseq's own archive of the model (roberta.base, roberta.large)",
    ),
    "image": (
        "the weights of an image model",
        "give it to python vision/validate.py DIR --checkpoint {path}",
    ),
    "unknown": (
        "no known kind of weights",
        "give a fairseq checkpoint, or a Hugging Face BERT's model.safetensors or pytorch_model.bin",
    ),
}


def file_kind(content: Mapping[str, Any]) -> FileKind:
    """Tell from its keys what a loaded file holds."""
    names = [str(name) for name in _state_dict(content)]
    if any(name.endswith(("patch_embed.proj.weight", "cls_token", "conv1.weight")) for name in names):
        return "image"
    if "model" in content and ("cfg" in content or "args" in content):
        return "fairseq"
    if any(name.startswith(("encoder.sentence_encoder.", "decoder.sentence_encoder.")) for name in names):
        return "fairseq weights"
    if any(re.match(r"(module\.)?roberta\.", name) for name in names):
        return "roberta"
    if any(name.endswith("embeddings.word_embeddings.weight") for name in names):
        return "bert"
    return "unknown"


def read_fairseq_checkpoint(
    path: str | os.PathLike[str], classes: Iterable[Any] = (), lazy: bool = True
) -> dict[str, Any]:
    """Read a fairseq checkpoint (keys ``model``, ``cfg`` or ``args``, ...).

    Args:
        path: The file.
        classes: As of :func:`sot_base.safe_checkpoint.read_checkpoint`.
        lazy: As of it.

    Raises:
        UsageError: As :func:`sot_base.safe_checkpoint.read_checkpoint`; and for another kind of
            file, with the command that takes it.
    """
    content = read_checkpoint(path, classes, lazy)
    _require("fairseq", content, path)
    where = str(Path(path).absolute())
    remedy = "get or save it again"
    for part, kind in PARTS.items():
        if part == "model" or content.get(part) is not None:
            of_type(content.get(part), kind, f"{part} of {where}", remedy)
    _check_tensors(content["model"], where)
    return content


def read_bert_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the tensors of a Hugging Face BERT file, under the names it has.

    Raises:
        UsageError: As :func:`sot_base.safe_checkpoint.read_checkpoint`; and for another kind of
            file, with the command that takes it.
    """
    content = read_checkpoint(path)
    _require("bert", content, path)
    weights = {name: value for name, value in _state_dict(content).items() if isinstance(value, Tensor)}
    _check_tensors(weights, str(Path(path).absolute()))
    return weights


def _check_tensors(weights: Mapping[Any, Any], where: str) -> None:
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.layout is not torch.strided:
            raise UsageError(f"{str(name)[:80]} is not a tensor: {where}; get or save it again")


def _require(wanted: FileKind, content: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    found = file_kind(content)
    if found != wanted:
        what, remedy = DESCRIPTIONS[found]
        where = Path(path).resolve()
        expected = DESCRIPTIONS[wanted][0]
        raise UsageError(f"{what} where {expected} is expected: {where}; {remedy.format(path=where)}")


def _state_dict(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a loaded file that maps names to tensors."""
    for key in ("state_dict", "model", "model_state_dict"):
        inner = content.get(key)
        if isinstance(inner, Mapping):
            return inner
    return content
