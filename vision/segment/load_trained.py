"""Load a trained segmentation model and what goes with it, from a checkpoint of this package or of mmsegmentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sot_base.errors import UsageError
from vision.cli.device import mixed_precision
from vision.models.weights.load import load_state, read_state_dict
from vision.models.weights.read import read_checkpoint
from vision.models.weights.released import download_weights
from vision.models.weights.saved import require_its_size
from vision.segment.build import build_segmenter, complete_recipe
from vision.segment.inference import Inference, inference_options
from vision.segment.labels import ADE20K, LabelRules
from vision.segment.mmseg_names import MMSEG_CROP, MMSEG_KWARGS, MMSEG_WEIGHTS, is_mmseg, mmseg_recipe
from vision.segment.model import UperNet
from vision.segment.weights import load_mmseg

__all__ = ["Segmenter", "as_trained", "load_segmenter"]


@dataclass(frozen=True)
class Segmenter:
    """A trained model and what goes with it.

    Attributes:
        model: The model, in evaluation mode.
        recipe: What it was built from.
        rules: How annotations and class indices correspond.
        images: ``mean``, ``std`` and ``short_side`` of its training.
        window: Height and width of its crops in training.
        class_names: Names of the classes, or None.
        options: The options of its training, or an empty dictionary.
    """

    model: UperNet
    recipe: dict[str, Any]
    rules: LabelRules
    images: dict[str, Any]
    window: int
    class_names: list[str] | None
    options: Mapping[str, Any]


def load_segmenter(
    path: str | None, name: str | None = None, kwargs: Mapping[str, Any] | None = None, pretrained: bool = False
) -> Segmenter:
    """Load a checkpoint of vision/segment/train.py, or mmsegmentation's UperNet on LV-ViT.

    Args:
        path: The file.
        name: Name of the backbone, for mmsegmentation's.
        kwargs: The backbone's arguments, for mmsegmentation's.
        pretrained: Download mmsegmentation's released UperNet on this backbone, instead of a file.

    Raises:
        UsageError: if the file is missing, cannot be downloaded, is damaged, or does not fit in full.
    """
    if pretrained:
        if path is not None:
            raise UsageError(f"both say the weights: --checkpoint {path} and --pretrained; give one")
        path = _download_released(name)
    if path is None:
        raise UsageError("no weights: give --checkpoint PATH, or --model NAME --pretrained for a released UperNet")
    checkpoint = read_checkpoint(path)
    if {"segmenter", "data", "options"} <= checkpoint.keys():
        recipe, data = checkpoint["segmenter"], checkpoint["data"]
        if name not in (None, recipe["model"]):
            raise UsageError(f"{path} holds {recipe['model']}, not {name}; leave out --model")
        if kwargs:
            raise UsageError(
                f"{path} says its model's arguments itself: --model-kwargs {', '.join(kwargs)}; leave it out"
            )
        require_its_size(partial(build_segmenter, recipe), checkpoint["state_dict"], path)
        model = build_segmenter(recipe).eval()
        load_state(model, checkpoint["state_dict"], path)
        rules = LabelRules(recipe["num_classes"], **data["rules"])
        return Segmenter(
            model, recipe, rules, data["images"], recipe["crop_size"], data["class_names"], checkpoint["options"]
        )
    state = read_state_dict(checkpoint, where=path)
    if not is_mmseg(state):
        raise UsageError(f"no segmentation model: {path}; give a checkpoint of vision/segment/train.py")
    if name is None:
        raise UsageError(f"mmsegmentation's checkpoint does not say its backbone: {path}; give --model lvvit_s, ...")
    recipe = complete_recipe(
        {**mmseg_recipe(state), "model": name, "kwargs": {**MMSEG_KWARGS.get(name, {}), **(kwargs or {})}}
    )
    model = build_segmenter(recipe).eval()
    try:
        load_mmseg(model, state, strict=True)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    config = model.encoder.backbone.pretrained_cfg
    images = {"mean": list(config["mean"]), "std": list(config["std"]), "short_side": MMSEG_CROP}
    names = (checkpoint.get("meta") or {}).get("CLASSES")
    rules = LabelRules(recipe["num_classes"], **ADE20K)
    return Segmenter(model, recipe, rules, images, MMSEG_CROP, None if names is None else list(names), {})


def _download_released(name: str | None) -> str:
    if name not in MMSEG_WEIGHTS:
        known = ", ".join(MMSEG_WEIGHTS)
        raise UsageError(
            f"no released UperNet: --model {name} --pretrained; give --model, one of {known}, or --checkpoint"
        )
    return str(download_weights(MMSEG_WEIGHTS[name]))


def as_trained(args: Any, trained: Segmenter, device: torch.device) -> Inference:
    """How the options ask for inference; the defaults are those of the model's training, precision included.

    Args:
        args: The options of `vision.segment.options.add_inference_options` and `vision.cli.options.add_device_options`.
        trained: The model.
        device: Where to compute.
    """
    amp = trained.options.get("amp") if args.amp is None else args.amp
    dtype = args.amp_dtype or trained.options.get("amp_dtype", "bfloat16")
    autocast, _ = mixed_precision(device, amp, dtype)
    return inference_options(args, trained.window, trained.images["short_side"], autocast)
