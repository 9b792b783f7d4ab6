"""Attribution maps of images, for each part of the logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sot_visual.attribution import INPUT_METHODS, attribute
from sot_visual.model_view import ModelView
from sot_visual.scale import to_strength
from vision.visualization.image_model import ImageModel

__all__ = ["ImageExplanation", "explain_images", "image_maps", "upscale"]


@dataclass(frozen=True)
class ImageExplanation:
    """A prediction of an image and its maps.

    Attributes:
        pixels: The image as the model sees it, (H, W, 3) in [0, 1].
        maps: Map (H, W) of strengths in [0, 1] for each part of the logits.
        explained: Index of the explained class.
        prediction: Index of the predicted class.
        without_words: Index of the class predicted by the class token's part alone; None if the logits do not split.
        probability: Probability of the explained class.
    """

    pixels: np.ndarray
    maps: dict[str, np.ndarray]
    explained: int
    prediction: int
    without_words: int | None
    probability: float


def image_maps(
    model: ImageModel, view: ModelView, images: Tensor, target: Tensor, method: str, part: str = "both"
) -> Tensor:
    """Scores as maps (B, H, W): of the token grid, or of the pixels for a method on inputs."""
    scores = attribute(view, (images,), target, method, part)
    return scores if method in INPUT_METHODS else model.place(scores)


def upscale(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Interpolate maps (B, h, w) to the size of the image."""
    return F.interpolate(scores.unsqueeze(1), size=size, mode="bilinear", align_corners=False).squeeze(1)


def explain_images(
    model: ImageModel, images: Tensor, pixels: Tensor, method: str, chosen: int | None, multi_label: bool
) -> list[ImageExplanation]:
    """Explain a batch.

    Args:
        model: The model.
        images: Normalised images.
        pixels: The same images in [0, 1], to be shown.
        method: A name in `sot_visual.attribution.METHODS`.
        chosen: Index of the class to explain; None: the predicted one.
        multi_label: Whether an image may have several classes.

    Shape:
        images, pixels (B, C, H, W).

    Raises:
        UsageError: if the model does not support the method.
    """
    view = model.view()
    with torch.no_grad():
        tokens, mask = view.tokens(images)
        logits = view.classify(tokens, mask).float()
        cls = view.part_logits(tokens, mask, "cls").argmax(dim=1).tolist() if "cls" in view.parts else None
    target = logits.argmax(dim=1) if chosen is None else torch.full_like(logits[:, 0], chosen, dtype=torch.long)
    probabilities = (logits.sigmoid() if multi_label else logits.softmax(dim=1)).gather(1, target[:, None])[:, 0]
    maps = {}
    for part in view.parts:
        scores = image_maps(model, view, images, target, method, part)
        if method in INPUT_METHODS:  # signed and noisy: mean magnitude of each patch
            scores = F.adaptive_avg_pool2d(scores.abs().unsqueeze(1), model.grid).squeeze(1)
        maps[part] = upscale(scores, tuple(images.shape[-2:])).cpu().numpy()
    shown = pixels.clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()
    shown = np.repeat(shown, 3, axis=-1) if shown.shape[-1] == 1 else shown[..., :3]
    return [
        ImageExplanation(
            shown[index],
            {part: to_strength(values[index]) for part, values in maps.items()},
            int(target[index]),
            int(logits[index].argmax()),
            None if cls is None else cls[index],
            float(probabilities[index]),
        )
        for index in range(len(images))
    ]
