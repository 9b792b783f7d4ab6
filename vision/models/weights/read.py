"""Reading checkpoint files: no code of theirs runs, and what they say of a model is checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sot_base.safe_checkpoint import read_checkpoint as read_safely
from vision.models.weights.saved import check_saved

__all__ = ["read_checkpoint"]

_WEIGHTS = ("state_dict", "state_dict_ema", "model", "model_ema")


def read_checkpoint(path: str | os.PathLike[str], plain_values: bool = False) -> dict[str, Any]:
    """Read a checkpoint file.

    A bare state dict is returned as ``{"state_dict": ...}``.

    Args:
        path: A file of ``torch.save``, or a ``.safetensors`` file.
        plain_values: Only these are needed: tensors are mapped into memory and not read, nor are their checksums.

    Raises:
        UsageError: naming the file, as `sot_base.safe_checkpoint.read_checkpoint`; or the entry of a checkpoint of this
            package that is not what it should be.
    """
    content = read_safely(path, lazy=plain_values, verify=not plain_values)
    if not any(isinstance(content.get(key), Mapping) for key in _WEIGHTS):
        content = {"state_dict": content}
    check_saved(content, str(Path(path).absolute()))
    return content
