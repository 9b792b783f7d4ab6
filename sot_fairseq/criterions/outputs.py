"""Predictions and targets of a batch as bytes, which fairseq gathers from all processes through a small buffer."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from torch import Tensor

__all__ = ["TargetKind", "pack", "unpack"]

TargetKind = Literal["classes", "sets", "numbers"]
TYPES: dict[TargetKind, tuple[Any, Any]] = {"classes": (np.int16, np.int16), "numbers": (np.float32, np.float64)}


def pack(kind: TargetKind, predictions: Tensor, targets: Tensor) -> tuple[bytes, bytes]:
    """Predictions and targets on the CPU as bytes: class indices (rows,), sets (rows, K), bool, or numbers (rows,)."""
    arrays = [values.numpy() for values in (predictions, targets)]
    if kind == "sets":
        return np.packbits(arrays[0]).tobytes(), np.packbits(arrays[1]).tobytes()
    return arrays[0].astype(TYPES[kind][0]).tobytes(), arrays[1].astype(TYPES[kind][1]).tobytes()


def unpack(kind: TargetKind, log: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of :func:`pack` for a logging output, in the types that metrics are computed in."""
    packed = (log["predictions"], log["targets"])
    if kind == "sets":
        rows, classes = log["nsentences"], log["num_classes"]
        bits = [np.unpackbits(np.frombuffer(part, np.uint8), count=rows * classes) for part in packed]
        return bits[0].reshape(rows, classes).astype(bool), bits[1].reshape(rows, classes).astype(bool)
    wide = np.float64 if kind == "numbers" else np.int64
    arrays = [np.frombuffer(part, dtype).astype(wide) for part, dtype in zip(packed, TYPES[kind], strict=True)]
    return arrays[0], arrays[1]
