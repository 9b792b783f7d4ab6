"""Load a trained model with its class names, from a checkpoint of this package, of timm or of the published code."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import timm
import torch
from torch import Tensor, nn

from sot_base.errors import UsageError
from vision.cli.device import Autocast, memory_format, mixed_precision
from vision.models.build import build_model, check_image_size, model_recipe, resolve_images
from vision.models.weights.fit import classifier_names
from vision.models.weights.load import choose_weights, load_checkpoint, load_state
from vision.models.weights.published_names import PUBLISHED_CLASSIFIERS
from vision.models.weights.read import read_checkpoint
from vision.models.weights.saved import require_its_size
from vision.models.weights.wrappers import unwrap_names

__all__ = ["TrainedModel", "load_trained"]


@dataclass(frozen=True)
class TrainedModel:
    """A model to evaluate.

    Attributes:
        model: The model, in evaluation mode, on the device; not compiled.
        recipe: What it was built from, see `vision.models.build.build_model`.
        class_names: Classes in the order of its outputs, or None where the checkpoint names none.
        data_config: timm's description of the images it wants.
        weights: ``ema``, ``raw`` or ``pretrained``.
        dataset: What the data of its training was, see `vision.data.open_source`; None: not known.
        autocast: The context of mixed precision.
        multi_label: Whether images may have several classes, or none: each output has a sigmoid of its own.
    """

    model: nn.Module
    recipe: dict[str, Any]
    class_names: list[str] | None
    data_config: dict[str, Any]
    weights: str
    dataset: str | None
    autocast: Autocast
    multi_label: bool = False

    @property
    def num_classes(self) -> int:
        """Outputs of the model."""
        return self.recipe["num_classes"]


def load_trained(args: Namespace, device: torch.device) -> TrainedModel:
    """Load the model of a checkpoint, or timm's pretrained one.

    Args:
        args: Options with ``checkpoint``, ``model`` (needed where the checkpoint does not say it), ``pretrained``,
            ``weights``, ``model_kwargs``, ``num_classes`` and those of images and device. ``amp`` is set to what it was
            in training unless it is given.
        device: Where to put the model.

    Raises:
        UsageError: if the checkpoint is missing, damaged, of an unknown model, or does not fit the model in full.
    """
    if args.checkpoint is None:
        if args.model is None or not args.pretrained:
            raise UsageError("no weights: give --checkpoint PATH, or --model NAME --pretrained for timm's")
        recipe = model_recipe(args, args.num_classes or 1000, {})
        model, checkpoint, weights = build_model(recipe, pretrained=True), {}, "pretrained"
        data_config = resolve_images(args, model)
    else:
        checkpoint = read_checkpoint(args.checkpoint)
        weights, state = choose_weights(checkpoint, args.weights)
        ours = "recipe" in checkpoint
        recipe = checkpoint["recipe"] if ours else _guess_recipe(args, checkpoint, state)
        if args.model not in (None, recipe["name"]):
            raise UsageError(f"{args.checkpoint} holds {recipe['name']}, not {args.model}; leave out the model's name")
        if ours:
            require_its_size(partial(build_model, recipe), state, args.checkpoint)
        model, checkpoint = build_model(recipe), checkpoint if ours else {}
        saved = checkpoint.get("data_config")
        data_config = resolve_images(args, model, saved)
        if ours:
            load_state(model, state, str(args.checkpoint))
            if tuple(data_config["input_size"]) != tuple(saved["input_size"]):
                model = _resize(model, recipe, data_config["input_size"][1:])
        else:
            load_checkpoint(model, state, strict=True)
    check_image_size(model, recipe["name"], data_config["input_size"])
    names, options = checkpoint.get("class_names"), checkpoint.get("options", {})
    if args.amp is None:
        args.amp, args.amp_dtype = options.get("amp"), options.get("amp_dtype", args.amp_dtype)
    autocast, _ = mixed_precision(device, args.amp, args.amp_dtype)
    model = model.to(device=device, memory_format=memory_format(args.channels_last)).eval()
    names = None if names is None else list(names)
    multi_label = checkpoint.get("multi_label", False)
    return TrainedModel(model, recipe, names, data_config, weights, options.get("dataset"), autocast, multi_label)


def _resize(model: nn.Module, recipe: Mapping[str, Any], img_size: Sequence[int]) -> nn.Module:
    """The model for images of another height and width, its positions interpolated."""
    if hasattr(model, "set_input_size"):
        try:
            model.set_input_size(img_size=tuple(img_size))
        except (ValueError, AssertionError, RuntimeError) as error:
            raise UsageError(f"cannot resize {recipe['name']}: {error}; give another --img-size") from error
        return model
    if not timm.get_pretrained_cfg(recipe["name"]).fixed_input_size:
        return model
    resized = build_model({**recipe, "kwargs": {**recipe["kwargs"], "img_size": tuple(img_size)}})
    return load_checkpoint(resized, model.state_dict(), strict=True)


def _guess_recipe(args: Namespace, checkpoint: Mapping[str, Any], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The recipe of another checkpoint: the model that the options or timm name, with the outputs of its classifier."""
    arch = checkpoint.get("arch")
    name = args.model or (arch if isinstance(arch, str) and timm.is_model(arch) else None)
    if name is None:
        if "segmenter" in checkpoint:
            raise UsageError(f"a segmentation model: {args.checkpoint}; vision/segment has commands of the same names")
        raise UsageError(f"the checkpoint does not say its model: {args.checkpoint}; give its name")
    recipe = model_recipe(Namespace(**{**vars(args), "model": name}), 1000, {})
    layers = ("head.word_fc", "head.cls_fc", "head", *PUBLISHED_CLASSIFIERS)
    layers += classifier_names(timm.get_pretrained_cfg(name))
    widths = [len(state[f"{layer}.weight"]) for layer in layers if f"{layer}.weight" in state]
    if not widths:
        with torch.device("meta"):
            state = unwrap_names(state, build_model(recipe).state_dict().keys())
        widths = [len(state[f"{layer}.weight"]) for layer in layers if f"{layer}.weight" in state]
    return {**recipe, "num_classes": args.num_classes or next(iter(widths), 1000)}
