"""The dense blocks of the DenseNet token embedding, and the transitions between them.

Reference: arXiv:1608.06993.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.models.densenet import DenseBlock
from torch import Tensor, nn

from sot_core.math.eager import has_hooks

__all__ = ["ReluDenseBlock", "Transition"]


class ReluDenseBlock(DenseBlock):
    """Dense block whose layers have ReLU alone: each feature map is rectified once, not again for every later layer.

    Shape:
        (B, C, H, W) -> (B, C + layers * growth, H, W).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, norm_layer=lambda chans, **dd: nn.ReLU(), **kwargs)

    def forward(self, init_features: Tensor) -> Tensor:
        features, rectified = [init_features], [F.relu(init_features)]
        for layer in self.values():
            features.append(layer.conv2(layer.norm2(layer.conv1(torch.cat(rectified, dim=1)))))
            rectified.append(F.relu(features[-1]))
        return torch.cat(features, dim=1)


class Transition(nn.Sequential):
    """BatchNorm, 1x1 convolution and average pooling, from the modules ``norm``, ``conv`` and, if any, ``pool``.

    Pooling comes before the convolution, and in evaluation before the BatchNorm: they commute, and what comes later has
    a quarter of the pixels. With a hook on the module or one of its parts, they run in the published order.

    Shape:
        (B, C, H, W) -> (B, out channels, H / 2, W / 2) with ``pool``, else (B, out channels, H, W).
    """

    def forward(self, x: Tensor) -> Tensor:
        if "pool" not in self._modules or any(has_hooks(module) for module in self.modules()):
            return super().forward(x)
        x = self.pool(self.norm(x)) if self.norm.training else self.norm(self.pool(x))
        return self.conv(x)
