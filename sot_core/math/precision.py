"""Precision under autocast and in half-precision modules."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor

__all__ = ["at_least_float32", "autocast_dtype", "no_autocast"]


def no_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """A context with autocast off on the tensor's device."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if _is_autocast_on(device) else contextlib.nullcontext()


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, else the dtype itself."""
    return torch.promote_types(dtype, torch.float32)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which a linear layer would compute on the tensor: autocast's where it is on."""
    device = tensor.device.type
    if tensor.dtype == torch.float64 or not _is_autocast_on(device):
        return tensor.dtype
    return torch.get_autocast_dtype(device)


def _is_autocast_on(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
