"""Reading checkpoint files: no code of theirs runs, and what they say of a model is checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sot_base.safe_checkpoint import read_checkpoint as read_safely
from vision.models.weights.saved import check_saved

__all__ = ["WEIGHTS", "read_checkpoint"]

WEIGHTS = {  # where checkpoints have averaged and raw weights: timm, the published code, DINO
    "ema": ("state_dict_ema", "model_ema", "teacher"),
    "raw": ("state_dict", "model", "student"),
}


def read_checkpoint(path: str | os.PathLike[str], plain_values: bool = False) -> dict[str, Any]:
    """Read a checkpoint file.

    A bare state dict is returned as ``{"state_dict": ...}``, and so is the only one under a name that is not known.

    Args:
        path: A file of ``torch.save``, or a ``.safetensors`` file.
        plain_values: Only these are needed: tensors are mapped into memory and not read, nor are their checksums.

    Raises:
        UsageError: naming the file, as `sot_base.safe_checkpoint.read_checkpoint`; or the entry of a checkpoint of this
            package that is not what it should be.
    """
    content = read_safely(path, lazy=plain_values, verify=not plain_values)
    if not any(isinstance(content.get(key), Mapping) for keys in WEIGHTS.values() for key in keys):
        nested = [value for value in content.values() if _are_tensors(value)]
        content = {"state_dict": nested[0] if len(nested) == 1 else content}
    check_saved(content, str(Path(path).absolute()))
    return content


def _are_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(item, Tensor) for item in value.values())
