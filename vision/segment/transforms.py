"""Augmentation of image and annotation together, with torchvision's v2 transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

__all__ = ["FillUp", "RandomClassCrop", "RandomShortSide", "short_side_size", "train_transform"]


def short_side_size(size: tuple[int, int], short_side: float, ratio: int = 4) -> tuple[int, int]:
    """Height and width of an image with a short side of so many pixels, the long one being at most ``ratio`` times it.

    Args:
        size: Height and width in pixels.
        short_side: Pixels; 0: as it is.
        ratio: Of the limits of long and short side.
    """
    if not short_side:
        return size
    factor = min(short_side / min(size), ratio * short_side / max(size))
    height, width = (max(1, round(side * factor)) for side in size)
    return height, width


class RandomShortSide(v2.Transform):
    """Resize to a random short side; annotations by the pixel nearest to the new one's centre.

    Args:
        short_side: Pixels, at a factor of 1; 0: as it is.
        scale: Smallest and largest factor, uniformly drawn.
    """

    def __init__(self, short_side: int, scale: Sequence[float]) -> None:
        super().__init__()
        self.short_side, self.scale = short_side, tuple(scale)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        low, high = self.scale
        factor = low + (high - low) * torch.rand(()).item()
        size = tuple(flat_inputs[0].shape[-2:])
        if self.short_side:
            return {"size": short_side_size(size, self.short_side * factor)}
        return {"size": tuple(max(1, round(side * factor)) for side in size)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if isinstance(inpt, tv_tensors.Mask):  # torchvision's own resize of a mask lies up to half a pixel beside
            nearest = v2.InterpolationMode.NEAREST_EXACT
            resized = F.resize(inpt.as_subclass(Tensor).unsqueeze(0), list(params["size"]), nearest)
            return tv_tensors.wrap(resized.squeeze(0), like=inpt)
        return self._call_kernel(F.resize, inpt, size=list(params["size"]), antialias=True)


class RandomClassCrop(v2.Transform):
    """Crop where no class has more than a share of the pixels that count, if ten draws find such a place.

    A shorter side stays as it is.

    Args:
        size: Height and width in pixels.
        limit: The share; 1: the first draw is taken.
        ignore_index: Value of pixels of the annotation that do not count.
    """

    def __init__(self, size: int, limit: float, ignore_index: int) -> None:
        super().__init__()
        self.size, self.limit, self.ignore_index = size, limit, ignore_index

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        mask = next(item for item in flat_inputs if isinstance(item, tv_tensors.Mask))
        height, width = mask.shape[-2:]
        for _ in range(10):
            top, left = (int(torch.randint(max(0, side - self.size) + 1, ())) for side in (height, width))
            if self.limit >= 1 or self._is_mixed(mask[..., top : top + self.size, left : left + self.size]):
                break
        return {"top": top, "left": left, "height": min(height, self.size), "width": min(width, self.size)}

    def _is_mixed(self, mask: Tensor) -> bool:
        counts = mask[mask != self.ignore_index].unique(return_counts=True)[1]
        return len(counts) > 1 and (counts.max() / counts.sum()).item() < self.limit

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return self._call_kernel(F.crop, inpt, **params)


class FillUp(v2.Transform):
    """Fill a smaller image up at the right and bottom.

    Args:
        size: Height and width in pixels.
        fill: Value of new pixels of the image, one a channel.
        ignore_index: Value of new pixels of the annotation.
    """

    def __init__(self, size: int, fill: Sequence[int], ignore_index: int) -> None:
        super().__init__()
        self.size, self.fill, self.ignore_index = size, list(fill), ignore_index

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        height, width = inpt.shape[-2:]
        padding = [0, 0, max(0, self.size - width), max(0, self.size - height)]
        fill = float(self.ignore_index) if isinstance(inpt, tv_tensors.Mask) else self.fill
        return self._call_kernel(F.pad, inpt, padding=padding, fill=fill) if any(padding) else inpt


def train_transform(
    crop_size: int,
    short_side: int,
    scale: Sequence[float],
    class_limit: float,
    hflip: float,
    distort: bool,
    mean: Sequence[float],
    ignore_index: int,
) -> v2.Transform:
    """From a `tv_tensors.Image` (3, H, W), uint8, and a `tv_tensors.Mask` (H, W) to those of a training crop.

    Args:
        crop_size: Height and width of the crop.
        short_side: Short side of the image before the random factor; 0: as it is.
        scale: Smallest and largest factor.
        class_limit: Largest share of a class in the crop.
        hflip: Probability of a mirrored image.
        distort: Whether brightness, contrast, saturation and hue change, each with a probability of a half.
        mean: Mean colour, in [0, 1], which fills the image up.
        ignore_index: What fills the annotation up.
    """
    fill = [round(255 * value) for value in mean]
    steps: list[v2.Transform] = [
        RandomShortSide(short_side, scale),
        RandomClassCrop(crop_size, class_limit, ignore_index),
        v2.RandomHorizontalFlip(hflip),
    ]
    if distort:
        changes = ({"brightness": 0.125}, {"contrast": 0.5}, {"saturation": 0.5}, {"hue": 0.1})
        steps += [v2.RandomApply([v2.ColorJitter(**change)]) for change in changes]
    return v2.Compose([*steps, FillUp(crop_size, fill, ignore_index)])
