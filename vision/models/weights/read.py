"""Reading checkpoint files without running code from them."""

from __future__ import annotations

import os
import pickle
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sot_base.errors import UsageError

__all__ = ["read_checkpoint"]

_HARMLESS = (Namespace,)  # how timm and the published code keep their options
_WEIGHTS = ("state_dict", "state_dict_ema", "model", "model_ema")


def read_checkpoint(path: str | os.PathLike[str], mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint file, without running code from it.

    A bare state dict is returned as ``{"state_dict": ...}``.

    Args:
        path: A file of ``torch.save``, or a ``.safetensors`` file.
        mmap: Map the tensors into memory instead of reading them: quick where only plain values are needed.

    Raises:
        UsageError: naming the file, if it is missing, truncated, no checkpoint, or holds objects that are not safe.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"no such checkpoint: {file.resolve()}; give the path of a checkpoint file")
    try:
        content = _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file, mmap)
    except pickle.UnpicklingError as error:
        unsafe = _unsafe_globals(file)
        problem = f"it holds {', '.join(unsafe)}" if unsafe else "it is no checkpoint"
        raise UsageError(f"cannot read the checkpoint: {file} ({problem}); save tensors and plain values") from error
    except Exception as error:  # torch raises almost anything for a file that is no checkpoint
        raise UsageError(f"cannot read the checkpoint: {file}; it is cut off or no checkpoint file") from error
    if not isinstance(content, Mapping):
        raise UsageError(f"no checkpoint: {file} holds a {type(content).__name__}; give a file with a state dict")
    nested = any(isinstance(content.get(key), Mapping) for key in _WEIGHTS)
    return dict(content) if nested else {"state_dict": dict(content)}


def _read_torch(file: Path, mmap: bool) -> Any:
    allowed = torch.serialization.get_safe_globals()  # the context forgets what it is given, including these
    with torch.serialization.safe_globals([kind for kind in _HARMLESS if kind not in allowed]):
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap and zipfile.is_zipfile(file))


def _read_safetensors(file: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(file)


def _unsafe_globals(file: Path) -> list[str]:
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception:  # a file that is no checkpoint at all
        return []
