"""Find the first value that is not finite, and where it arose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sot_base.errors import UsageError

__all__ = ["NonFiniteError", "check_parameters", "find_culprit"]


class NonFiniteError(UsageError):
    """A loss or weight is not finite; the message says when and in which module."""


def check_parameters(model: nn.Module) -> None:
    """Check all parameters and running statistics.

    Raises:
        NonFiniteError: naming the first one that is not finite.
    """
    running = [(name, buffer) for name, buffer in model.named_buffers() if "running_" in name]
    name = _first_not_finite([*model.named_parameters(), *running])
    if name is not None:
        raise NonFiniteError(f"not finite after an update: the weight {name}; lower --lr, or set --clip-grad")


def _first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    named = [(name, tensor) for name, tensor in tensors if tensor.is_floating_point()]
    if not named:
        return None
    finite = torch.stack([tensor.isfinite().all() for _, tensor in named]).tolist()
    return next((name for (name, _), good in zip(named, finite, strict=True) if not good), None)


def find_culprit(model: nn.Module, images: Tensor) -> str:
    """Name the first thing that is not finite: the images, a weight, or a module's output for these images.

    Args:
        model: The model, in the mode of the step.
        images: The batch of the step.
    """
    if not images.isfinite().all():
        return "the images"
    weight = _first_not_finite(model.named_parameters())
    if weight is not None:
        return f"the weight {weight}"
    found: list[str] = []

    def note(name: str, output: Any) -> None:
        tensors = [output] if isinstance(output, Tensor) else output if isinstance(output, tuple | list) else []
        if not found and any(isinstance(t, Tensor) and not t.isfinite().all() for t in tensors):
            found.append(f"the output of {name}")

    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: note(name, output))
        for name, module in model.named_modules()
        if name
    ]
    with torch.no_grad(), contextlib.suppress(RuntimeError, ValueError):
        model(images)
    for hook in hooks:
        hook.remove()
    return found[0] if found else "the loss"
