"""IoU and accuracy from one confusion matrix over all pixels of a data set."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sot_base.errors import UsageError

__all__ = ["ConfusionMatrix", "require_pixels"]


class ConfusionMatrix:
    """Count the true and the predicted class of each pixel.

    Args:
        num_classes: Classes K.
        ignore_index: Value of pixels that are ignored.
        device: Where to count.

    Attributes:
        counts: (K, K), int64: rows are the true classes, columns the predicted ones.
    """

    def __init__(self, num_classes: int, ignore_index: int = 255, device: torch.device | str = "cpu") -> None:
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self.counts = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)

    def update(self, predicted: Tensor, classes: Tensor) -> None:
        """Count pixels.

        Args:
            predicted: Class indices in [0, K).
            classes: True ones of the same shape, with ``ignore_index``.
        """
        counted = classes != self.ignore_index
        pairs = torch.where(counted, classes * self.num_classes + predicted, 0)
        self.counts.view(-1).index_add_(0, pairs.flatten(), counted.flatten().to(self.counts.dtype))

    def reduce(self) -> None:
        """Add up the counts of all processes."""
        if dist.is_initialized():
            dist.all_reduce(self.counts)

    def per_class(self) -> list[dict[str, Any]]:
        """For each class its ``pixels``, ``iou`` and ``accuracy`` in percent; None where it has none to count."""
        true, given = (self.counts.sum(dim).tolist() for dim in (1, 0))
        rows = []
        for hit, pixels, predicted in zip(self.counts.diagonal().tolist(), true, given, strict=True):
            union = pixels + predicted - hit
            rows.append(
                {
                    "pixels": pixels,
                    "iou": 100 * hit / union if union else None,
                    "accuracy": 100 * hit / pixels if pixels else None,
                }
            )
        return rows

    def compute(self) -> dict[str, float]:
        """``miou``, ``pixel_accuracy`` and ``mean_accuracy`` in percent; 0 without any pixel.

        The mean IoU is over the classes that annotations or predictions have, the mean accuracy over those that
        annotations have.
        """
        rows, pixels = self.per_class(), self.counts.sum().item()
        return {
            "miou": _mean([row["iou"] for row in rows]),
            "pixel_accuracy": 100 * self.counts.diagonal().sum().item() / max(1, pixels),
            "mean_accuracy": _mean([row["accuracy"] for row in rows]),
        }


def _mean(values: list[float | None]) -> float:
    present = [value for value in values if value is not None]
    return sum(present) / max(1, len(present))


def require_pixels(counts: Any, where: str) -> None:
    """Make sure that there is something to measure.

    Args:
        counts: Pixels, of classes for instance.
        where: The images, for the message.

    Raises:
        UsageError: if no pixel was counted.
    """
    if not counts.any():
        raise UsageError(f"no pixel counts: {where}; check its images and annotations, or see --reduce-zero-label")
