"""The loss of segmentation: cross-entropy of both heads over the pixels that are not ignored, and optionally Dice."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from vision.segment.model import library

__all__ = ["SegmentationLoss"]


class SegmentationLoss(nn.Module):
    """Cross-entropy of the main logits, plus weighted that of the auxiliary logits and the Dice loss of the main ones.

    Over several processes cross-entropy is divided by the pixels that count of all of them, and multiplied by the
    number of processes, so that the mean over the processes is what one process computes. The Dice loss is that of
    each process's images.

    Args:
        ignore_index: Value of pixels that are ignored.
        aux_weight: Weight of the auxiliary logits.
        dice_weight: Weight of the Dice loss.
        class_weights: (K,) what the pixels of each class count in cross-entropy; None: the same. The mean is over the
            weights, as torch has it.

    Shape:
        Logits (B, K, H, W), or a pair of them, and classes (B, H, W) -> a scalar, 0 where no pixel counts.
    """

    def __init__(
        self,
        ignore_index: int = 255,
        aux_weight: float = 0.4,
        dice_weight: float = 0.0,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.ignore_index, self.aux_weight, self.dice_weight = ignore_index, aux_weight, dice_weight
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.dice = library().losses.DiceLoss("multiclass", ignore_index=ignore_index) if dice_weight else None

    def forward(self, logits: Tensor | tuple[Tensor, Tensor], classes: Tensor) -> Tensor:
        main, aux = logits if isinstance(logits, tuple) else (logits, None)
        pixels = self._count(classes)
        loss = self._cross_entropy(main, classes) / pixels
        if aux is not None:
            loss = loss + self.aux_weight * self._cross_entropy(aux, classes) / pixels
        if self.dice is not None:
            loss = loss + self.dice_weight * self.dice(main.float(), classes)
        return loss

    def _cross_entropy(self, logits: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(
            logits.float(), classes, self.class_weights, ignore_index=self.ignore_index, reduction="sum"
        )

    @torch.no_grad()
    def _count(self, classes: Tensor) -> Tensor:
        """Pixels that count, or their weights: the mean over the processes; 1 where there are none."""
        counted = classes != self.ignore_index
        count = counted.sum() if self.class_weights is None else self._weigh(classes, counted)
        processes = 1
        if dist.is_initialized():
            dist.all_reduce(count)
            processes = dist.get_world_size()
        return torch.where(count > 0, count, 1) / processes

    def _weigh(self, classes: Tensor, counted: Tensor) -> Tensor:
        if classes.device.type == "cpu":
            return self.class_weights[classes[counted]].sum()
        return (self.class_weights[torch.where(counted, classes, 0)] * counted).sum()  # a selection would wait
