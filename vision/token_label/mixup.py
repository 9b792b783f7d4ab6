"""Mixup and cutmix of images together with the labels of their patches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from vision.data.augment import AnyBatchMixup
from vision.token_label.targets import TokenLabelTarget

__all__ = ["TokenLabelMixup", "mix_targets"]


class TokenLabelMixup(AnyBatchMixup):
    """`AnyBatchMixup` for images with a `TokenLabelTarget`.

    A patch is labelled by its content: under cutmix the patches of the box get the other image's labels, and those
    on its edge a mixture by area. (The published code mixes all patches by the area of the box.)

    Args:
        grid: Height and width in patches of the targets.
        **kwargs: Arguments of ``timm.data.Mixup``, without number of classes and smoothing, which targets contain.

    Shape:
        images (B, C, H, W), target -> images (B, C, H, W), target. The arguments are not changed.
    """

    def __init__(self, grid: tuple[int, int], **kwargs: Any) -> None:
        super().__init__(num_classes=1, label_smoothing=0.0, **kwargs)
        self.grid = grid

    def __call__(self, x: Tensor, target: TokenLabelTarget) -> tuple[Tensor, TokenLabelTarget]:
        partner = _partners(len(x), x.device)
        first = torch.arange(len(x), device=x.device) <= partner
        mark = first.to(x.dtype).view(-1, 1, 1, 1).expand(-1, 1, *x.shape[2:])  # 1 in one image of each pair, else 0
        marked, _ = super().__call__(
            torch.cat([x, mark], dim=1), torch.zeros(len(x), dtype=torch.long, device=x.device)
        )
        mark = marked[:, -1:].float()
        share = torch.where(first.view(-1, 1, 1, 1), mark, 1.0 - mark)
        return marked[:, :-1], mix_targets(target, share, self.grid, partner)


def mix_targets(target: TokenLabelTarget, share: Tensor, grid: tuple[int, int], partner: Tensor) -> TokenLabelTarget:
    """Mix the labels of pairs of images.

    Args:
        target: Labels before mixing.
        share: (B, 1, H, W) how much of each pixel is from its own image, 0 to 1.
        grid: Height and width in patches of the target.
        partner: (B,) the image that the rest is from.
    """
    whole = share.mean(dim=(1, 2, 3)).unsqueeze(1)
    patches = adaptive_avg_pool2d(share, grid).flatten(1).unsqueeze(2)
    return TokenLabelTarget(
        *(part * own + part[partner] * (1.0 - own) for part, own in zip(target, (whole, whole, patches), strict=True))
    )


def _partners(count: int, device: torch.device) -> Tensor:
    """The image that each one is mixed with: the batch reversed; the last one of an odd number is its own partner."""
    order = torch.arange(count, device=device)
    even = count // 2 * 2
    return torch.cat([order[:even].flip(0), order[even:]])
