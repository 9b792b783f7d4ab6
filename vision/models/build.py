"""Build a model from options or a saved recipe, with the second-order head where it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import timm
import torch
from timm.data import resolve_data_config
from timm.models import get_model_input_config
from torch import nn

from sot_base.errors import UsageError
from vision.models.attach import attach_head
from vision.models.head_mixin import DENSE_OPTIONS, HeadMixin
from vision.models.meta_device import evaluating

__all__ = [
    "build_model",
    "check_image_size",
    "check_model_name",
    "model_recipe",
    "resolve_config",
    "resolve_images",
    "saved_recipe",
]


def check_model_name(name: str) -> None:
    """Make sure that timm knows a model.

    Raises:
        UsageError: with the nearest names, if it does not.
    """
    if not timm.is_model(name):
        near = difflib.get_close_matches(name.lower(), timm.list_models(), n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "give one of timm.list_models()"
        raise UsageError(f"unknown model {name}: timm has none of that name; {hint}")


def model_recipe(args: Any, num_classes: int, head: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `build_model`, in plain values that a checkpoint can hold.

    Args:
        args: The options of training.
        num_classes: Outputs.
        head: The given fields of `HeadConfig`.

    Raises:
        UsageError: for a model that timm does not know, with the nearest names.
    """
    check_model_name(args.model)
    rates = {"drop_rate": args.drop, "drop_path_rate": args.drop_path}
    kwargs = {name: rate for name, rate in rates.items() if rate is not None}
    img_size = tuple(args.input_size[1:]) if args.input_size else args.img_size
    if img_size is not None and timm.get_pretrained_cfg(args.model).fixed_input_size:
        kwargs["img_size"] = img_size
    return {
        "name": args.model,
        "num_classes": num_classes,
        "kwargs": {**kwargs, **args.model_kwargs},
        "head": dict(head),
    }


def build_model(recipe: Mapping[str, Any], pretrained: bool = False) -> nn.Module:
    """Build the model of a recipe, see `model_recipe`.

    ``return_dense``, ``mix_token`` and ``mix_alpha`` among the arguments work for any vision transformer: timm's get
    them from `attach_head`, without fields of a head together with their own head: one linear layer on the class token,
    or on the average of the words.

    Args:
        recipe: Name, number of classes, arguments and fields of the head.
        pretrained: Start from the released weights of this package's models and timm's.

    Raises:
        UsageError: with the model's own words, if it refuses its arguments, or its weights cannot be downloaded.
    """
    name, head, kwargs = recipe["name"], recipe["head"], dict(recipe["kwargs"])
    has_head = timm.model_entrypoint(name).__module__.startswith("vision.models.")
    if has_head and head:
        kwargs["head_config"] = head
    dense = {} if has_head else {name: kwargs.pop(name) for name in DENSE_OPTIONS if name in kwargs}
    channels = kwargs.get("in_chans", 3)
    if channels not in (1, 3):
        raise UsageError(f"images are read in 3 channels, or 1: --model-kwargs in_chans={channels}; give 1 or 3")
    if not head and (dense.get("return_dense") or dense.get("mix_token")):
        head = {"fusion": "cls"}
    try:
        model = timm.create_model(name, pretrained=pretrained, num_classes=recipe["num_classes"], **kwargs)
        if channels == 1:
            _expect_grey_images(model)
        return model if has_head or not head else attach_head(model, head, **dense)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(
            f"cannot get timm's weights of {name}: {_one_line(error)}; check the connection, or give a file of them as "
            "a checkpoint instead of --pretrained"
        ) from error
    except (ValueError, TypeError, AssertionError, ArithmeticError, RuntimeError) as error:
        raise UsageError(
            f"cannot build the model {name}: {_one_line(error)}; arguments {kwargs | dense}, head {head}"
        ) from error


def _expect_grey_images(model: nn.Module) -> None:
    """Let timm's description of a model say one channel, with the mean over those of RGB."""
    config = dict(model.pretrained_cfg)
    config["input_size"] = (1, *config["input_size"][1:])
    config |= {name: (sum(config[name]) / len(config[name]),) for name in ("mean", "std")}
    model.pretrained_cfg = model.default_cfg = config


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def saved_recipe(recipe: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The recipe with every field of the model's head, so that later defaults do not change it."""
    if not isinstance(model, HeadMixin):
        return dict(recipe)
    fields = model.head.config.to_dict()
    head = {name: value for name, value in fields.items() if name not in ("embed_dim", "num_classes", "has_cls_token")}
    return {**recipe, "head": head}


def resolve_images(args: Any, model: nn.Module, saved: dict[str, Any] | None = None) -> dict[str, Any]:
    """Timm's description of a model's input images: from the options, else as saved, else the model's own.

    Raises:
        UsageError: if the options contradict each other or the model.
    """
    names = ("img_size", "input_size", "crop_pct", "crop_mode", "interpolation", "mean", "std")
    return resolve_config({name: getattr(args, name) for name in names}, model, saved)


def resolve_config(given: Mapping[str, Any], model: nn.Module, saved: dict[str, Any] | None = None) -> dict[str, Any]:
    """`timm.data.resolve_data_config` for a model of any number of channels.

    Args:
        given: What the options say.
        model: The model.
        saved: What comes before the model's own description.

    Raises:
        UsageError: if the options contradict each other or the model.
    """
    channels = get_model_input_config(model)["input_size"][0]
    size = given.get("input_size")
    if size and size[0] != channels:
        raise UsageError(f"the model's images have {channels} channels: --input-size {size[0]}; give {channels} H W")
    try:
        return resolve_data_config({**given, "in_chans": channels}, pretrained_cfg=saved, model=model)
    except AssertionError as error:
        raise UsageError("--mean and --std want one number, or one for each channel; correct them") from error


def check_image_size(model: nn.Module, name: str, size: Sequence[int]) -> None:
    """Make sure that a model accepts images of a size, unless it is the model's own.

    Args:
        model: The model, on the CPU.
        name: Its name.
        size: Channels, height and width.

    Raises:
        UsageError: with the model's own words, if it does not.
    """
    if tuple(size) == tuple((getattr(model, "pretrained_cfg", None) or {}).get("input_size", ())):
        return
    try:
        with evaluating(model), torch.no_grad():
            model(torch.zeros(1, *size))
    except (ValueError, AssertionError, RuntimeError, IndexError) as error:
        height, width = size[1:]
        raise UsageError(
            f"{name} takes no images of {height}x{width}: {_one_line(error)}; give another --img-size"
        ) from error
