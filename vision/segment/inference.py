"""Predictions of images of any size: at once or by windows, averaged over scales and the flipped image."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision.cli.device import Autocast
from vision.evaluation.evaluate import Predict
from vision.segment.dataset import normalize
from vision.segment.transforms import short_side_size

__all__ = ["Inference", "create_pixel_predict", "inference_options", "slide_logits", "window_starts"]


def window_starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows that cover a side start; the last one ends where the side does.

    Args:
        length: Pixels of the side.
        window: Pixels of a window; a shorter side is one window.
        stride: Pixels between windows, except for the last one.
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
    """How a model predicts an image.

    Attributes:
        window: Height and width of the windows in pixels; None: the whole image at once.
        stride: Pixels between windows.
        short_side: Short side that images are resized to before the scales; 0: as they are.
        scales: Factors of the size to average over.
        flip: Whether to average with the flipped image.
        autocast: The context of mixed precision.
    """

    window: int | None = None
    stride: int = 341
    short_side: int = 0
    scales: Sequence[float] = (1.0,)
    flip: bool = False
    autocast: Autocast = contextlib.nullcontext

    def describe(self) -> dict[str, Any]:
        """The attributes but for the precision, as plain values."""
        values = {name: getattr(self, name) for name in ("window", "stride", "short_side", "flip")}
        return {**values, "scales": list(self.scales)}

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


def inference_options(args: Any, crop_size: int, short_side: int, autocast: Autocast) -> Inference:
    """How the options ask for inference.

    Args:
        args: The options of `vision.segment.options.add_inference_options`.
        crop_size: Of training, for windows where the options give none.
        short_side: Of training, where the options give none.
        autocast: The context of mixed precision.
    """
    window: int = args.crop_size or crop_size
    stride = args.stride or max(1, window * 2 // 3)
    short_side = short_side if args.short_side is None else args.short_side
    return Inference(
        window if args.slide else None, min(stride, window), short_side, tuple(args.multi_scale), args.flip, autocast
    )


def create_pixel_predict(
    model: nn.Module,
    inference: Inference,
    images: Mapping[str, Any],
    memory_format: torch.memory_format,
    compiled: bool = False,
) -> Predict:
    """Put a model into evaluation mode and return a function from images (B, 3, H, W), uint8, to classes (B, H, W).

    Args:
        model: The model.
        inference: How to predict.
        images: ``mean`` and ``std``.
        memory_format: Layout of the images.
        compiled: Whether to compile the model with ``torch.compile``.
    """
    model = torch.compile(model.eval()) if compiled else model.eval()

    def predict(pixels: Tensor) -> Tensor:
        prepared = normalize(pixels, images["mean"], images["std"]).contiguous(memory_format=memory_format)
        return inference(model, prepared).argmax(1)

    return predict
