"""Checksums of what token states depend on: the encoder's weights and the data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

__all__ = ["array_digest", "weights_digest"]


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of a state dict: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def array_digest(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 of arrays: types, shapes and values."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
