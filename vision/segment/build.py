"""Build UperNet from plain values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import HybridEmbed
from torch import nn

from sot_base.errors import UsageError
from vision.models.build import build_model, check_model_name
from vision.models.hvt import HVT
from vision.segment.model import Encoder, UperNet

__all__ = ["DROP_PATH", "build_segmenter", "complete_recipe"]

DROP_PATH = {"lvvit_s": 0.1, "lvvit_m": 0.2, "lvvit_l": 0.5}  # as published; other models: 0.1
_OWN_KWARGS = {"img_size", "dynamic_img_size", "num_classes"}
_DEFAULTS = {"neck": "side", "out_indices": None, "last_channels": 2048, "norm_eps": None, "drop_rate": 0.1}


def complete_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with all its keys.

    Args:
        recipe: ``model`` (timm's name), ``num_classes`` and ``crop_size`` (pixels), and what differs from the rest:
            ``kwargs`` (the backbone's arguments), ``neck``, ``out_indices``, ``last_channels``, ``decoder_channels``
            (256; for tokens of at least 768: 512), ``aux_channels`` (as the decoder's), ``drop_rate`` (before the
            classifiers, 0.1) and ``norm_eps`` (of the blocks' LayerNorm; None: the model's).

    Raises:
        UsageError: for a model that is not a plain vision transformer, or arguments that segmentation sets itself.
    """
    whole = {**_DEFAULTS, "kwargs": {}, **{key: value for key, value in recipe.items() if value is not None}}
    name = whole["model"]
    check_model_name(name)
    plain_width = _plain_width(name)
    if plain_width is None:
        raise UsageError(
            f"{name} is not a plain vision transformer: --model; give lvvit_s, sot_small, vit_small_patch16_224"
        )
    for key in _OWN_KWARGS & whole["kwargs"].keys():
        raise UsageError(f"--model-kwargs {key}: segmentation sets it; leave it out, see --crop-size")
    whole["kwargs"] = {"drop_path_rate": DROP_PATH.get(name.split(".")[0], 0.1), **whole["kwargs"]}
    width = whole["kwargs"].get("embed_dim", plain_width)
    whole.setdefault("decoder_channels", 512 if isinstance(width, int) and width >= 768 else 256)
    whole.setdefault("aux_channels", whole["decoder_channels"])
    return whole


@cache
def _plain_width(name: str) -> int | None:
    """Token width of a plain vision transformer; None: another model."""
    with torch.device("meta"):
        model = timm.create_model(name.split(".")[0])
    plain = isinstance(model, VisionTransformer) and not isinstance(model, HVT)
    return model.embed_dim if plain and not isinstance(model.patch_embed, HybridEmbed) else None


def build_segmenter(recipe: Mapping[str, Any]) -> UperNet:
    """The model of a recipe, see `complete_recipe`.

    Raises:
        UsageError: for values that do not fit.

    Example:
        >>> build_segmenter(dict(model="lvvit_s", num_classes=150, crop_size=512))
    """
    recipe = complete_recipe(recipe)
    kwargs = {**recipe["kwargs"], "img_size": recipe["crop_size"], "dynamic_img_size": True}
    backbone = build_model({"name": recipe["model"], "num_classes": 0, "head": {}, "kwargs": kwargs})
    if recipe["norm_eps"] is not None:
        for module in backbone.blocks.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = recipe["norm_eps"]
    encoder = Encoder(backbone, recipe["neck"], recipe["out_indices"], recipe["last_channels"])
    return UperNet(
        encoder, recipe["num_classes"], recipe["decoder_channels"], recipe["aux_channels"], recipe["drop_rate"]
    )
