"""Steps that every transform of images has besides timm's: a limit for strips, and grey for models of one channel."""

from __future__ import annotations

from typing import Any

from PIL import Image
from timm.data.transforms import MaybePILToTensor, MaybeToTensor
from torchvision import transforms

__all__ = ["LimitRatio", "add_steps"]

MAX_RATIO = 100  # of the long side and the short one


class LimitRatio:
    """Cut the ends off an image that is more than so many times as long as wide.

    Resizing the short side of a strip to a model's size would make an image of gigabytes, whose middle alone is used.

    Args:
        ratio: The largest ratio of the sides (>= 1).
    """

    def __init__(self, ratio: int = MAX_RATIO) -> None:
        self.ratio = ratio

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of what is kept."""
        limit = self.ratio * min(width, height)
        kept_width, kept_height = min(width, limit), min(height, limit)
        left, top = (width - kept_width) // 2, (height - kept_height) // 2
        return left, top, left + kept_width, top + kept_height

    def __call__(self, image: Image.Image) -> Image.Image:
        box = self.box(*image.size)
        return image if box == (0, 0, *image.size) else image.crop(box)


def add_steps(transform: transforms.Compose, channels: int, limit_ratio: bool = True) -> transforms.Compose:
    """Add the steps to a transform of timm's.

    Args:
        transform: From an RGB image; its last steps make a tensor.
        channels: Of the model's images: 3, or 1 for grey.
        limit_ratio: Whether it resizes the short side of an image.
    """
    steps: list[Any] = list(transform.transforms)
    if channels == 1:
        place = next(index for index, step in enumerate(steps) if isinstance(step, MaybePILToTensor | MaybeToTensor))
        steps.insert(place, transforms.Grayscale())
    return transforms.Compose([LimitRatio(), *steps] if limit_ratio else steps)
