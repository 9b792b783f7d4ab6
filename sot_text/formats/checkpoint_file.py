"""Read a file of weights safely, say what kind it is, and, if it is the wrong kind, name the command that takes it.

Pickles are only ever read with ``weights_only=True``: a file from elsewhere cannot run code here.
"""

from __future__ import annotations

import os
import pickle
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sot_base.errors import UsageError

__all__ = ["FileKind", "file_kind", "load_file", "read_bert_weights", "read_fairseq_checkpoint"]

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


def load_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a ``.safetensors`` file or a PyTorch pickle that holds a dictionary, on the CPU.

    Raises:
        UsageError: If the file is missing, empty, cut off, no checkpoint at all, or needs more than plain tensors.
    """
    path = Path(path)
    where = path.resolve()
    if not path.is_file():
        what = "a folder where a file is expected" if path.is_dir() else "no such file"
        raise UsageError(f"{what}: {where}; check the path")
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise UsageError(f"the file is empty: {where}; get or save it again")
    if head.startswith(b"version https://git-lfs"):
        raise UsageError(f"a Git LFS pointer, not the file itself: {where}; run git lfs pull")
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        return _load_safetensors(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused:
            raise UsageError(
                f"the file needs {refused[1]}, which safe loading refuses: {where}; save it again with tensors and "
                "plain values alone, or give a .safetensors of the same model to python -m sot_fairseq.convert"
            ) from None
        raise UsageError(f"not a checkpoint: {where}; give a PyTorch or safetensors file") from None
    except (IndexError, AttributeError, TypeError, struct.error):  # text that looks like the commands of a pickle
        raise UsageError(f"not a checkpoint: {where}; give a PyTorch or safetensors file") from None
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        reason = str(error).split(".")[0] or "it ends too early"
        raise UsageError(f"the file is cut off or damaged ({reason}): {where}; get or save it again") from None
    if not isinstance(content, Mapping):
        raise UsageError(f"a saved {type(content).__name__} where a dictionary is expected: {where}; save a state dict")
    return dict(content)


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


def read_fairseq_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a fairseq checkpoint (keys ``model``, ``cfg`` or ``args``, ...).

    Raises:
        UsageError: As :func:`load_file`; and for another kind of file, with the command that takes it.
    """
    content = load_file(path)
    _require("fairseq", content, path)
    return content


def read_bert_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the tensors of a Hugging Face BERT file, under the names it has.

    Raises:
        UsageError: As :func:`load_file`; and for another kind of file, with the command that takes it.
    """
    content = load_file(path)
    _require("bert", content, path)
    return {name: value for name, value in _state_dict(content).items() if isinstance(value, Tensor)}


def _require(wanted: FileKind, content: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    found = file_kind(content)
    if found != wanted:
        what, mend = DESCRIPTIONS[found]
        where = Path(path).resolve()
        expected = DESCRIPTIONS[wanted][0]
        raise UsageError(f"{what} where {expected} is expected: {where}; {mend.format(path=where)}")


def _state_dict(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the part of a loaded file that maps names to tensors."""
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(content.get(key), Mapping):
            return content[key]
    return content


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file as load_safetensors

    try:
        return load_safetensors(path)
    except SafetensorError as error:
        raise UsageError(f"the file is cut off or damaged ({error}): {path.resolve()}; get or save it again") from None
