"""Which of two equal forms of a computation may run: the fast one of eager mode, or the one that can be recorded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["can_read_values", "has_hooks", "is_recorded"]


def is_recorded() -> bool:
    """Whether a compiler, exporter or tracer records the operations, so that they should be torch's own."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def can_read_values(tensor: Tensor) -> bool:
    """Whether what is computed may depend on the tensor's values; on a GPU, reading one waits for all earlier work."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor and not is_recorded()


def has_hooks(module: nn.Module) -> bool:
    """Whether a hook waits for the module's call, so that it must be called."""
    return any(
        getattr(module, name)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )
