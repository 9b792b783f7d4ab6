"""Class probabilities of an image of any size: whole or by windows, over scales and mirrored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision.segment.transforms import short_side_size

__all__ = ["Inference", "slide_logits", "window_starts"]


def window_starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin that cover a side; the last one ends where the side does.

    Args:
        length: Pixels of the side.
        window: Pixels of a window; a shorter side is one window.
        stride: Pixels between windows, but for the last.
    """
    if length <= window:
        return [0]
    count = -(-(length - window) // stride)
    return [min(step * stride, length - window) for step in range(count + 1)]


def slide_logits(model: nn.Module, images: Tensor, window: int, stride: int) -> Tensor:
    """Logits (B, K, H, W) of images (B, C, H, W) by windows, averaged where these overlap."""
    height, width = images.shape[-2:]
    total = count = None
    for top in window_starts(height, window, stride):
        for left in window_starts(width, window, stride):
            place = (..., slice(top, top + window), slice(left, left + window))
            logits = model(images[place]).float()
            if total is None:
                total = logits.new_zeros(*logits.shape[:2], height, width)
                count = logits.new_zeros(height, width)
            total[place] += logits
            count[place] += 1
    return total / count


@dataclass(frozen=True)
class Inference:
    """How a model is run over an image.

    Attributes:
        window: Height and width of the windows in pixels; None: the whole image at once.
        stride: Pixels between windows.
        short_side: Short side that images are resized to before the scales; 0: as they are.
        scales: Factors of the size to average over.
        flip: Whether the mirrored image counts too.
        autocast: Gives the context of mixed precision.
    """

    window: int | None = None
    stride: int = 341
    short_side: int = 0
    scales: Sequence[float] = (1.0,)
    flip: bool = False
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    @torch.inference_mode()
    def __call__(self, model: nn.Module, images: Tensor) -> Tensor:
        """Probabilities (B, K, H, W) of normalised images (B, C, H, W), from a model in evaluation mode."""
        size = tuple(images.shape[-2:])
        total = None
        for scale in self.scales:
            base = short_side_size(size, self.short_side)
            scaled_size = tuple(max(1, round(side * scale)) for side in base)
            scaled = images
            if scaled_size != size:
                scaled = F.interpolate(images, scaled_size, mode="bilinear", align_corners=False, antialias=True)
            for mirrored in (False, True) if self.flip else (False,):
                logits = self._logits(model, scaled.flip(-1) if mirrored else scaled)
                logits = logits.flip(-1) if mirrored else logits
                if scaled_size != size:
                    logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
                probabilities = logits.softmax(1)
                total = probabilities if total is None else total + probabilities
        return total / (len(self.scales) * (2 if self.flip else 1))

    def _logits(self, model: nn.Module, images: Tensor) -> Tensor:
        with self.autocast():
            if self.window is None:
                return model(images).float()
            return slide_logits(model, images, self.window, self.stride)
