"""Build UperNet from plain values, and give its backbone the weights of a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import HybridEmbed
from torch import Tensor, nn

from sot_base.errors import UsageError
from vision.models.build import build_model, check_model_name
from vision.models.hvt import HVT
from vision.models.weights.fit import fit_state_dict, read_state_dict, square_grid
from vision.models.weights.published_names import convert_published, is_published
from vision.models.weights.read import load_state, read_checkpoint
from vision.segment.labels import ADE20K, LabelRules
from vision.segment.mmseg_names import MMSEG_CROP, MMSEG_KWARGS, is_mmseg, load_mmseg, mmseg_recipe
from vision.segment.model import Encoder, UperNet

__all__ = [
    "DROP_PATH",
    "Segmenter",
    "build_segmenter",
    "complete_recipe",
    "load_backbone",
    "load_pretrained",
    "load_segmenter",
]

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
        UsageError: for a model that is no plain vision transformer, or arguments that are not to be chosen.
    """
    whole = {**_DEFAULTS, "kwargs": {}, **{key: value for key, value in recipe.items() if value is not None}}
    name = whole["model"]
    check_model_name(name)
    plain_width = _plain_width(name)
    if plain_width is None:
        raise UsageError(
            f"{name} is no plain vision transformer: --model; give lvvit_s, sot_small, vit_small_patch16_224"
        )
    for key in _OWN_KWARGS & whole["kwargs"].keys():
        raise UsageError(f"--model-kwargs {key}: segmentation sets it; leave it out, see --crop-size")
    whole["kwargs"] = {"drop_path_rate": DROP_PATH.get(name, 0.1), **whole["kwargs"]}
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


def load_backbone(model: UperNet, path: str) -> list[str]:
    """Give the backbone the weights of a classifier, of vision/train.py, timm or the published code.

    Its position embedding is interpolated; classifier, final norm and blocks that segmentation has no use for are left
    out; all else must fit.

    Returns:
        The names of the tensors that were left out.

    Raises:
        UsageError: naming the file and the tensors that do not fit.
    """
    return _load_backbone(model, read_state_dict(path), f"--backbone-checkpoint {path}")


def load_pretrained(model: UperNet, recipe: Mapping[str, Any]) -> list[str]:
    """Give the backbone timm's weights of its classifier, as `load_backbone`.

    Args:
        model: The model of the recipe.
        recipe: As of `complete_recipe`.

    Raises:
        UsageError: if they cannot be had, or do not fit.
    """
    name = recipe["model"]
    classes = timm.get_pretrained_cfg(name).num_classes
    whole = {"name": name, "num_classes": classes, "head": {}, "kwargs": recipe["kwargs"]}
    return _load_backbone(model, build_model(whole, pretrained=True).state_dict(), f"--pretrained {name}")


def _load_backbone(model: UperNet, state: dict[str, Tensor], where: str) -> list[str]:
    backbone = model.encoder.backbone
    family = getattr(backbone, "published_family", None)
    grid = None
    if family is not None and is_published(state, family):
        state = convert_published(state, family)
        grid = square_grid(state["pos_embed"].shape[1] - ("cls_token" in state)) if "pos_embed" in state else None
    classifier = (backbone.pretrained_cfg or {}).get("classifier") or ()
    unused = (
        *("head.", "norm.", "fc_norm.", "attn_pool.", "head_dist."),
        *(f"{name}." for name in ([classifier] if isinstance(classifier, str) else classifier)),
    )
    depth = len(backbone.blocks)

    def is_unused(name: str) -> bool:
        number = name.split(".")[1] if name.startswith("blocks.") else ""
        return name.startswith(unused) or (number.isdigit() and depth <= int(number) < model.encoder.full_depth)

    kept = {name: tensor for name, tensor in state.items() if not is_unused(name)}
    try:
        fitted = fit_state_dict(backbone, kept, source_grid=grid)
    except UsageError as error:
        whole = is_mmseg(state) or any(name.startswith("encoder.backbone.") for name in state)
        hint = " (it holds a whole UperNet: --initial-checkpoint takes it)" if whole else ""
        raise UsageError(f"{where}{hint}: {error}") from error
    backbone.load_state_dict(fitted.tensors, strict=False)
    return [name for name in state if name not in kept]


@dataclass(frozen=True)
class Segmenter:
    """A trained model and what goes with it.

    Attributes:
        model: The model, in evaluation mode.
        recipe: What built it.
        rules: How annotations and class indices go together.
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


def load_segmenter(path: str | None, name: str | None = None, kwargs: Mapping[str, Any] | None = None) -> Segmenter:
    """The model of a checkpoint of vision/segment/train.py, or of mmsegmentation's UperNet on LV-ViT.

    Args:
        path: The file.
        name: Name of the backbone, for mmsegmentation's.
        kwargs: The backbone's arguments, for mmsegmentation's.

    Raises:
        UsageError: if the file is missing, damaged, or does not fit in full.
    """
    if path is None:
        raise UsageError("no weights: give --checkpoint PATH")
    checkpoint = read_checkpoint(path)
    if {"segmenter", "data", "options"} <= checkpoint.keys():
        recipe, data = checkpoint["segmenter"], checkpoint["data"]
        if name not in (None, recipe["model"]):
            raise UsageError(f"{path} holds {recipe['model']}, not {name}; leave out --model")
        if kwargs:
            raise UsageError(
                f"{path} says its model's arguments itself: --model-kwargs {', '.join(kwargs)}; leave it out"
            )
        model = build_segmenter(recipe).eval()
        load_state(model, checkpoint["state_dict"], path)
        rules = LabelRules(recipe["num_classes"], **data["rules"])
        return Segmenter(
            model, recipe, rules, data["images"], recipe["crop_size"], data["class_names"], checkpoint["options"]
        )
    state = read_state_dict(path)
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
