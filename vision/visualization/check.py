"""Evaluation of attribution maps on a set of images: deletion and insertion of patches, and randomised weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sot_visual.attribution import INPUT_METHODS
from sot_visual.check import MethodCheck, check_methods
from sot_visual.faithfulness import shuffle_weights
from sot_visual.model_view import ModelView
from vision.visualization.explain import image_maps
from vision.visualization.image_model import ImageModel

__all__ = ["check_images"]


def check_images(model: ImageModel, images: Tensor, methods: Sequence[str], multi_label: bool) -> list[MethodCheck]:
    """Evaluate methods for the predicted class; a removed patch of the token grid is replaced by the mean colour.

    Args:
        model: The model.
        images: Normalised images (B, C, H, W).
        methods: Names of methods.
        multi_label: Whether an image may have several classes.

    Raises:
        UsageError: if there are no images, or the model does not support a method.
    """
    view = model.view()
    random_view = model.view(shuffle_weights(model.model))
    with torch.no_grad():
        targets = torch.cat([view.logits(part).argmax(dim=1) for part in images.split(32)]) if len(images) else []

    def scores(index: int, method: str, is_random: bool) -> Tensor:
        chosen = random_view if is_random else view
        return _patch_scores(model, chosen, images[index : index + 1], targets[index : index + 1], method)

    def evaluate(index: int, kept: Tensor) -> Tensor:
        masks = kept.view(-1, 1, *model.grid).to(images.dtype)
        masks = F.interpolate(masks, size=images.shape[-2:], mode="nearest")
        with torch.no_grad():
            logits = view.logits(images[index : index + 1] * masks)
        return (logits.sigmoid() if multi_label else logits.softmax(dim=1))[:, targets[index]]

    return check_methods(methods, len(images), scores, evaluate)


def _patch_scores(model: ImageModel, view: ModelView, image: Tensor, target: Tensor, method: str) -> Tensor:
    """The score of each patch of the grid (U,); scores of pixels are averaged."""
    maps = image_maps(model, view, image, target, method)
    if method in INPUT_METHODS:
        maps = F.adaptive_avg_pool2d(maps.unsqueeze(1), model.grid).squeeze(1)
    return maps.flatten()
