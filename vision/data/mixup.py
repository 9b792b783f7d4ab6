"""timm's mixup and cutmix for batches of any size."""

from __future__ import annotations

import torch
from timm.data import Mixup
from timm.data.mixup import mixup_target
from torch import Tensor

__all__ = ["AnyBatchMixup"]


class AnyBatchMixup(Mixup):
    """`timm.data.Mixup` that also takes an odd number of images: the last one of them is left unmixed.

    Shape:
        images (B, C, H, W), targets (B,) -> images (B, C, H, W), soft targets (B, num_classes).
    """

    def __call__(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        even = len(x) // 2 * 2
        if even == len(x):
            return super().__call__(x, target)
        last = mixup_target(target[even:], self.num_classes, smoothing=self.label_smoothing)
        if even == 0:
            return x, last
        mixed, soft = super().__call__(x[:even], target[:even])
        return torch.cat([mixed, x[even:]]), torch.cat([soft, last])
