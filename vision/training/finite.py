"""Say when and where a value first was not finite, and what to do."""

from __future__ import annotations

from torch import Tensor, nn

from sot_base.errors import UsageError
from sot_base.finite import find_culprit as find_module
from sot_base.finite import first_not_finite

__all__ = ["NonFiniteError", "check_parameters", "find_culprit"]


class NonFiniteError(UsageError):
    """A loss or weight is not finite; the message says when and in which module."""


def check_parameters(model: nn.Module, place: str) -> None:
    """Check all parameters and running statistics, before they are saved.

    Args:
        model: The model.
        place: Where the run stands, for the message.

    Raises:
        NonFiniteError: naming the first one that is not finite.
    """
    running = [(name, buffer) for name, buffer in model.named_buffers() if "running_" in name]
    name = first_not_finite([*model.named_parameters(), *running])
    if name is not None:
        raise NonFiniteError(f"an update has made the weight {name} not finite: {place}; lower --lr or set --clip-grad")


def find_culprit(model: nn.Module, images: Tensor) -> str:
    """Name the first thing that is not finite: the images, a weight, or a module's output for these images.

    Args:
        model: The model, in the mode of the step.
        images: The batch of the step.
    """
    if not images.isfinite().all():
        return "the images"
    return find_module(model, lambda: model(images)) or "the loss"
