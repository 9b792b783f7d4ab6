"""Track where each part of an augmented image comes from, so that its label map can move with it.

Images pass through the transforms of timm and torchvision as usual, drawing the same random numbers; with each image
goes the affine map from its present position to its original one. The label map itself is sampled once, at the
end (`vision.token_label.targets.make_targets`), not at every step.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from timm.data.auto_augment import AugmentOp, AutoAugment, RandAugment
from timm.data.transforms import MaybePILToTensor, MaybeToTensor, RandomResizedCropAndInterpolation, ResizeKeepRatio
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import functional as F

from sot_base.errors import UsageError
from vision.data.image_steps import LimitRatio

__all__ = ["FollowTransform"]


class _Placed(NamedTuple):
    """An image and where it comes from.

    Attributes:
        image: The image as it is now.
        frames: Affine maps (3, 3) from fractions of its width and height to those of the images that it was made of:
            the first one, and all those beyond whose edges a step has reached.
    """

    image: Image.Image
    frames: tuple[np.ndarray, ...]

    def become(self, image: Image.Image, places: np.ndarray, beyond: bool = False) -> _Placed:
        """The image after a step.

        Args:
            image: The new image.
            places: (3, 3) from pixels of the new image to pixels of the old one.
            beyond: Whether the new image shows what lies outside of the old one.
        """
        step = np.diag([1 / self.image.width, 1 / self.image.height, 1]) @ places @ np.diag([*image.size, 1])
        frames = tuple(frame @ step for frame in self.frames)
        return _Placed(image, (*frames, step) if beyond else frames)


class FollowTransform:
    """A transform of images that also returns where each pixel comes from.

    Args:
        transform: As of `vision.data.augment.create_train_transform` or `vision.data.eval_transform`: resizing, crops
            inside of the image, flips, RandAugment, AutoAugment, and steps that change colours alone.

    Shape:
        RGB image -> (transformed image, frames (F, 2, 3) float32). A frame takes (x, y, 1), fractions of the width and
        height of the transformed image, to fractions of an earlier image: the first frame to the image as it was read,
        the others to images at whose edges something was filled in. What lies outside of any is not of the image. F is
        the same for all images.

    Raises:
        UsageError: for a step that a label map cannot follow.
    """

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        parts = transform.transforms if isinstance(transform, transforms.Compose) else [transform]
        self._plain = transform
        self._steps = [_follow(copy.deepcopy(part)) for part in parts]
        self.num_frames = 1 + sum(step.frames for step in self._steps)

    def __call__(self, image: Image.Image) -> tuple[Any, Tensor]:
        placed = _Placed(image, (np.eye(3),))
        for step in self._steps:
            placed = step.apply(placed)
        frames = (*placed.frames, *[placed.frames[0]] * (self.num_frames - len(placed.frames)))
        return placed.image, torch.from_numpy(np.stack(frames)[:, :2]).float()

    def __reduce__(self) -> tuple[type[FollowTransform], tuple[Any]]:
        return FollowTransform, (self._plain,)


class _Step(NamedTuple):
    """A step of a transform, and the most frames that it adds."""

    apply: Callable[[_Placed], _Placed]
    frames: int = 0


def _follow(part: Any) -> _Step:
    for kinds, follow in _FOLLOWED:
        if isinstance(part, kinds):
            return follow(part)
    raise _unknown(type(part).__name__)


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"a label map cannot follow {name}: the augmentation (--aa, --train-crop-mode); choose one without it"
    )


def _colours(part: Callable[[Any], Any]) -> _Step:
    return _Step(lambda placed: placed._replace(image=part(placed.image)))


def _sometimes(part: transforms.RandomApply) -> _Step:
    for inner in part.transforms:
        if not isinstance(inner, _COLOURS):
            raise _unknown(type(inner).__name__)
    return _colours(part)


def _resize(part: Callable[[Image.Image], Image.Image]) -> _Step:
    def apply(placed: _Placed) -> _Placed:
        image = part(placed.image)
        factors = [old / new for old, new in zip(placed.image.size, image.size, strict=True)]
        return placed.become(image, np.diag([*factors, 1.0]))

    return _Step(apply)


def _random_resized_crop(part: RandomResizedCropAndInterpolation) -> _Step:
    def apply(placed: _Placed) -> _Placed:
        top, left, height, width = part.get_params(placed.image, part.scale, part.ratio)
        several = isinstance(part.interpolation, tuple | list)
        interpolation = random.choice(part.interpolation) if several else part.interpolation
        image = F.resized_crop(placed.image, top, left, height, width, part.size, interpolation)
        return placed.become(image, _affine(width / image.width, 0, left, 0, height / image.height, top))

    return _Step(apply)


def _center_crop(part: transforms.CenterCrop) -> _Step:
    def apply(placed: _Placed) -> _Placed:
        image = part(placed.image)
        left, top = (_crop_start(old, new) for old, new in zip(placed.image.size, image.size, strict=True))
        return placed.become(image, _affine(1, 0, left, 0, 1, top), beyond=left < 0 or top < 0)

    return _Step(apply, frames=1)


def _limit_ratio(part: LimitRatio) -> _Step:
    def apply(placed: _Placed) -> _Placed:
        left, top, *_ = part.box(*placed.image.size)
        return placed.become(part(placed.image), _affine(1, 0, left, 0, 1, top))

    return _Step(apply)


def _crop_start(size: int, wanted: int) -> int:
    """Where torchvision's centre crop begins; below 0 it pads."""
    return -((wanted - size) // 2) if wanted > size else round((size - wanted) / 2.0)


def _flip(part: transforms.RandomHorizontalFlip | transforms.RandomVerticalFlip) -> _Step:
    horizontal = isinstance(part, transforms.RandomHorizontalFlip)

    def apply(placed: _Placed) -> _Placed:
        if torch.rand(1) >= part.p:
            return placed
        width, height = placed.image.size
        if horizontal:
            return placed.become(F.hflip(placed.image), _affine(-1, 0, width, 0, 1, 0))
        return placed.become(F.vflip(placed.image), _affine(1, 0, 0, 0, -1, height))

    return _Step(apply)


def _policy(part: RandAugment | AutoAugment) -> _Step:
    """Let timm choose and call the operations, which here map a `_Placed` instead of an image."""
    groups = [part.ops] if isinstance(part, RandAugment) else part.policy
    for operation in {id(operation): operation for group in groups for operation in group}.values():
        operation.aug_fn = _followed_operation(operation)
    return _Step(part, part.num_layers if isinstance(part, RandAugment) else max(map(len, groups)))


def _followed_operation(operation: AugmentOp) -> Callable[..., _Placed]:
    change = operation.aug_fn
    if operation.name in _COLOUR_OPERATIONS:
        return lambda placed, *args, **kwargs: placed._replace(image=change(placed.image, *args, **kwargs))
    if operation.name not in _GEOMETRY:
        raise _unknown(operation.name)
    places = _GEOMETRY[operation.name]

    def apply(placed: _Placed, level: float, **kwargs: Any) -> _Placed:
        image = change(placed.image, level, **kwargs)
        return placed.become(image, places(level, *placed.image.size), beyond=True)

    return apply


def _affine(*rows: float) -> np.ndarray:
    return np.array([*rows, 0, 0, 1], dtype=np.float64).reshape(3, 3)


def _rotation(degrees: float, width: int, height: int) -> np.ndarray:
    """Around the middle, as Pillow rotates."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = width / 2, height / 2
    return _affine(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


_GEOMETRY: Mapping[str, Callable[[float, int, int], np.ndarray]] = {  # of level, width and height
    "ShearX": lambda factor, *_: _affine(1, factor, 0, 0, 1, 0),
    "ShearY": lambda factor, *_: _affine(1, 0, 0, factor, 1, 0),
    "TranslateX": lambda pixels, *_: _affine(1, 0, pixels, 0, 1, 0),
    "TranslateY": lambda pixels, *_: _affine(1, 0, 0, 0, 1, pixels),
    "TranslateXRel": lambda part, width, _: _affine(1, 0, part * width, 0, 1, 0),
    "TranslateYRel": lambda part, _, height: _affine(1, 0, 0, 0, 1, part * height),
    "Rotate": _rotation,
}
_COLOUR_OPERATIONS = frozenset(
    {"AutoContrast", "Equalize", "Invert", "Posterize", "PosterizeIncreasing", "PosterizeOriginal", "Solarize"}
    | {"SolarizeIncreasing", "SolarizeAdd", "Color", "ColorIncreasing", "Contrast", "ContrastIncreasing", "Brightness"}
    | {"BrightnessIncreasing", "Sharpness", "SharpnessIncreasing", "Desaturate", "GaussianBlur", "GaussianBlurRand"}
)
_COLOURS = (
    *(transforms.ColorJitter, transforms.RandomGrayscale, transforms.GaussianBlur, transforms.Normalize),
    *(MaybePILToTensor, MaybeToTensor, transforms.Grayscale),
)
_FOLLOWED: tuple[tuple[Any, Callable[[Any], _Step]], ...] = (
    (_COLOURS, _colours),
    (transforms.RandomApply, _sometimes),
    ((transforms.Resize, ResizeKeepRatio), _resize),
    (RandomResizedCropAndInterpolation, _random_resized_crop),
    (transforms.CenterCrop, _center_crop),
    (LimitRatio, _limit_ratio),
    ((transforms.RandomHorizontalFlip, transforms.RandomVerticalFlip), _flip),
    ((RandAugment, AutoAugment), _policy),
)
