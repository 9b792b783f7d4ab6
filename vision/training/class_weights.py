"""``--class-weights``: how much each class counts in the loss."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from timm.data.mixup import mixup_target
from torch import Tensor, nn

from sot_base.class_weights import class_weights

__all__ = ["WeightedCrossEntropy", "weigh_classes"]

_logger = logging.getLogger(__name__)


def weigh_classes(
    option: str,
    names: Sequence[str],
    counts: Sequence[int],
    total: int,
    num_outputs: int,
    unit: str = "image",
    multi_label: bool = False,
) -> Tensor:
    """The weights of a model's outputs, scaled to a mean of 1 over the training data: the learning rate can stay.

    Args:
        option: The option's value, see `sot_base.class_weights.class_weights`.
        names: The data's classes.
        counts: How many images, or pixels, each has.
        total: How many there are.
        num_outputs: Outputs of the model; those beyond the data's classes have the weight 1.
        unit: What is counted.
        multi_label: Whether each may have several classes: the weights are those of images that have the class against
            those that have not (``pos_weight``), and are not scaled.

    Shape:
        float32, (num_outputs,).

    Raises:
        UsageError: for an option that cannot be read, or a class that has nothing to balance.
    """
    weights = class_weights(option, names, counts, total, multi_label=multi_label, unit=unit)
    pairs = zip(names, weights, strict=True)
    _logger.info(f"class weights: {', '.join(f'{name} {weight:.4g}' for name, weight in pairs)}")
    if not multi_label:
        weights = weights / np.average(weights, weights=counts)
    outputs = torch.ones(num_outputs)
    outputs[: len(weights)] = torch.from_numpy(weights).float()
    return outputs


class WeightedCrossEntropy(nn.Module):
    """`torch.nn.functional.cross_entropy` with weights of classes, for class indices and for probabilities.

    The mean is over the images and not, as torch has it for class indices, over their weights: so an image counts the
    same in every batch, alone or mixed with another one.

    Args:
        weights: (K,) the weights.
        smoothing: Label smoothing of class indices.

    Shape:
        Logits (B, K), and class indices (B,) or probabilities (B, K) -> a scalar.
    """

    def __init__(self, weights: Tensor, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if target.ndim == 1:
            smoothed = mixup_target(target, logits.shape[1], smoothing=self.smoothing)
            target = smoothed.to(logits.dtype)
        return F.cross_entropy(logits, target, weight=self.weights)
