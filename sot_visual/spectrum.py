"""Singular values of MGCrP's matrices before and after their normalisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sot_base.errors import UsageError
from sot_core import ClassificationHead, MultiheadCrossCovariancePool

__all__ = ["record_spectrum"]


def record_spectrum(head: nn.Module | None, run: Callable[[], object]) -> tuple[np.ndarray, np.ndarray]:
    """Run a model and return the singular values of its head's matrices, before and after the normalisation.

    Args:
        head: The model's head.
        run: Runs the model on some inputs.

    Shape:
        -> two (inputs * heads, min(q, k)), in descending order.

    Raises:
        UsageError: if the head pools no cross-covariance matrices.
    """
    pool = getattr(head, "pool", None) if isinstance(head, ClassificationHead) else None
    if not isinstance(pool, MultiheadCrossCovariancePool):
        raise UsageError("the model's head pools no cross-covariance: --spectrum; give a model with pooling mgcrp")
    before: list[np.ndarray] = []
    after: list[np.ndarray] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        for values, matrix in ((before, args[0]), (after, output)):
            values.append(torch.linalg.svdvals(matrix.detach().double().flatten(0, 1)).cpu().numpy())

    handle = pool.norm.register_forward_hook(keep)
    try:
        with torch.no_grad():
            run()
    finally:
        handle.remove()
    return np.concatenate(before), np.concatenate(after)
