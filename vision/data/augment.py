"""Augmentation, timm's: the training transform with one operation fixed, and mixup for batches of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from PIL import Image, ImageOps
from timm.data import Mixup, create_transform
from timm.data.auto_augment import AugmentOp
from timm.data.auto_augment import posterize as timm_posterize
from timm.data.mixup import mixup_target
from torch import Tensor

from vision.data.image_steps import add_steps

__all__ = ["AnyBatchMixup", "create_train_transform"]


def create_train_transform(data_config: dict[str, Any], **augmentation: Any) -> Callable[[Image.Image], Tensor]:
    """``timm.data.create_transform`` for training, to uint8; images are normalised and erased later, on the device.

    Args:
        data_config: As returned by ``timm.data.resolve_data_config``.
        **augmentation: Arguments of ``create_transform`` that override the configuration's.

    Raises:
        ValueError: for an augmentation that timm does not know.
    """
    try:
        transform = create_transform(
            data_config["input_size"],
            is_training=True,
            use_prefetcher=True,
            **{"interpolation": data_config["interpolation"], **augmentation},
            mean=data_config["mean"],
            std=data_config["std"],
        )
    except (AssertionError, KeyError, IndexError) as error:
        raise ValueError(f"timm cannot build the augmentation {augmentation}: {error!r}") from error
    for operation in _operations(transform.transforms):
        if operation.aug_fn is timm_posterize:
            operation.aug_fn = _posterize
    return add_steps(transform, data_config["input_size"][0])


def _posterize(image: Image.Image, bits_to_keep: int, **_: Any) -> Image.Image:
    """Keep at least one bit: RandAugment also asks for none, which Pillow refuses."""
    return image if bits_to_keep >= 8 else ImageOps.posterize(image, max(1, bits_to_keep))


def _operations(parts: Iterable[Any]) -> Iterable[AugmentOp]:
    """Find all operations of RandAugment, AutoAugment and AugMix in transforms."""
    for part in parts:
        if isinstance(part, AugmentOp):
            yield part
        elif isinstance(part, list | tuple):
            yield from _operations(part)
        else:
            yield from _operations(getattr(part, "ops", None) or getattr(part, "policy", None) or [])


class AnyBatchMixup(Mixup):
    """`timm.data.Mixup` that also accepts an odd number of images, of which the last one stays unmixed.

    Shape:
        images (B, C, H, W), targets (B,), or with ``multi_label`` (B, num_classes) -> images (B, C, H, W), soft targets
        (B, num_classes).
    """

    def __call__(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        even = len(x) // 2 * 2
        if even == len(x):
            return super().__call__(x, target)
        last = mixup_target(
            target[even:], self.num_classes, smoothing=self.label_smoothing, multi_label=self.multi_label
        )
        if even == 0:
            return x, last
        mixed, soft = super().__call__(x[:even], target[:even])
        return torch.cat([mixed, x[even:]]), torch.cat([soft, last])
