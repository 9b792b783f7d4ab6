"""Find the first non-finite weight or module output of a model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["find_culprit", "first_not_finite"]


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor with NaN or infinity; None if all are finite.

    NaN and infinity spoil a tensor's sum, which takes a tenth of the time of a look at each value. That look decides if
    the sum is not finite: it may also overflow.
    """
    named = [(name, tensor.detach()) for name, tensor in tensors if tensor.is_floating_point()]
    sums = [tensor.sum() for _, tensor in named]
    spoilt = [
        (name, tensor) for (name, tensor), total in zip(named, sums, strict=True) if not math.isfinite(total.item())
    ]
    return next((name for name, tensor in spoilt if not tensor.isfinite().all()), None)


def find_culprit(model: nn.Module, forward: Callable[[], object]) -> str | None:
    """Name the first non-finite weight, or else the first module output, innermost modules first.

    Args:
        model: The model, in the mode of the step that failed.
        forward: Runs the model on the inputs of that step.

    Returns:
        For instance ``the weight encoder.embed.weight`` or ``the output of encoder.layers.3``; None if all is finite.
    """
    weight = first_not_finite(model.named_parameters())
    if weight is not None:
        return f"the weight {weight}"
    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and any(not tensor.isfinite().all() for tensor in _tensors(output)):
                found.append(f"the output of {name or 'the model'}")

        return look

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    try:
        with torch.no_grad(), contextlib.suppress(RuntimeError, ValueError):
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def _tensors(values: Any) -> list[Tensor]:
    """The tensors of numbers in a structure of tuples, lists and dictionaries."""
    if isinstance(values, Tensor):
        return [values] if values.is_floating_point() else []
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return []
    return [tensor for value in values for tensor in _tensors(value)]
