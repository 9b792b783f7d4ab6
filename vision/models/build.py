"""Build a model from options, with the second-order head where it is asked for, and find the head in a model."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import timm
import torch
from timm.data import resolve_data_config
from torch import nn

from sot_base.errors import UsageError
from vision.models.attach import attach_head
from vision.models.head_mixin import DENSE_OPTIONS, HeadMixin
from vision.models.meta_device import evaluating
from vision.models.weights.fit import load_checkpoint
from vision.models.weights.read import choose_weights, read_checkpoint

__all__ = [
    "build_model",
    "check_image_size",
    "check_model_name",
    "head_modules",
    "load_initial",
    "model_recipe",
    "resolve_images",
    "saved_recipe",
]


_logger = logging.getLogger(__name__)

_CLASSIFIERS = ("head.cls_fc.", "head.word_fc.", "head.dense_fc.")
_MOVED_NORM = {f"head.norm.{name}": f"fc_norm.{name}" for name in ("weight", "bias")}  # by `attach_head`


def check_model_name(name: str) -> None:
    """Make sure that timm has a model.

    Raises:
        UsageError: with the nearest names, if it has none of that name.
    """
    if not timm.is_model(name):
        near = difflib.get_close_matches(name.lower(), timm.list_models(), n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "give one of timm.list_models()"
        raise UsageError(f"unknown model {name}: timm has none of that name; {hint}")


def model_recipe(args: Any, num_classes: int, head: Mapping[str, Any]) -> dict[str, Any]:
    """What `build_model` needs, in plain values that a checkpoint can hold.

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
    recipe = {"name": args.model, "num_classes": num_classes, "kwargs": kwargs, "head": dict(head)}
    recipe = _with_img_size(recipe, args)
    return {**recipe, "kwargs": {**recipe["kwargs"], **args.model_kwargs}}


def build_model(recipe: Mapping[str, Any], pretrained: bool = False) -> nn.Module:
    """The model of a recipe, see `model_recipe`.

    ``return_dense``, ``mix_token`` and ``mix_alpha`` among the arguments are for any vision transformer; timm's gets
    them from `attach_head`, without fields of a head with its own: one linear layer on the class token, or on the
    average of the words.

    Args:
        recipe: Name, number of classes, arguments and fields of the head.
        pretrained: Start from timm's weights.

    Raises:
        UsageError: with the model's own words, where it refuses its arguments or its weights cannot be had.
    """
    name, head, kwargs = recipe["name"], recipe["head"], dict(recipe["kwargs"])
    has_head = timm.model_entrypoint(name).__module__.startswith("vision.models.")
    if has_head and head:
        kwargs["head_config"] = head
    dense = {} if has_head else {name: kwargs.pop(name) for name in DENSE_OPTIONS if name in kwargs}
    if not head and (dense.get("return_dense") or dense.get("mix_token")):
        head = {"fusion": "cls"}
    try:
        model = timm.create_model(name, pretrained=pretrained, num_classes=recipe["num_classes"], **kwargs)
        return model if has_head or not head else attach_head(model, head, **dense)
    except OSError as error:
        raise UsageError(
            f"cannot get timm's weights of {name}: {_one_line(error)}; mend the connection, or give a file of them as "
            "a checkpoint instead of --pretrained"
        ) from error
    except (ValueError, TypeError, AssertionError, ArithmeticError, RuntimeError) as error:
        raise UsageError(
            f"cannot build the model {name}: {_one_line(error)}; arguments {kwargs | dense}, head {head}"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def load_initial(model: nn.Module, recipe: Mapping[str, Any], path: str, class_names: Sequence[str]) -> None:
    """Start from the weights of a checkpoint, of other classes, another image size or head.

    The classifier that the model had before it got the second-order head is left out, and so are all classifiers where
    the checkpoint names other classes.

    Raises:
        UsageError: if the checkpoint is missing or the backbone does not fit.
    """
    checkpoint = read_checkpoint(path)
    _, state = choose_weights(checkpoint)
    old = timm.get_pretrained_cfg(recipe["name"]).classifier or ()
    prefixes = tuple(f"{name}." for name in ([old] if isinstance(old, str) else old))
    names = checkpoint.get("class_names")
    if isinstance(names, list) and names != list(class_names):
        _logger.warning(f"other classes than the data's: {path}; its classifiers are left out")
        classifiers = _CLASSIFIERS if isinstance(model, HeadMixin) else prefixes
        state = {name: value for name, value in state.items() if not name.startswith(classifiers)}
    if isinstance(model, HeadMixin):
        own = model.state_dict()
        moved = {old: new for old, new in _MOVED_NORM.items() if new in own and old not in own}
        state = {moved.get(name, name): value for name, value in state.items()}
        state = {name: value for name, value in state.items() if name in own or not name.startswith(prefixes)}
    load_checkpoint(model, state)


def saved_recipe(recipe: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The recipe with every field of the head the model has now, so that later defaults do not change it."""
    if not isinstance(model, HeadMixin):
        return dict(recipe)
    fields = model.head.config.to_dict()
    head = {name: value for name, value in fields.items() if name not in ("embed_dim", "num_classes", "has_cls_token")}
    return {**recipe, "head": head}


def _with_img_size(recipe: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """The recipe for the image size that the options ask for, where the model is built for one."""
    size = tuple(args.input_size[1:]) if args.input_size else args.img_size
    if size is None or not timm.get_pretrained_cfg(recipe["name"]).fixed_input_size:
        return dict(recipe)
    return {**recipe, "kwargs": {**recipe["kwargs"], "img_size": size}}


def resolve_images(args: Any, model: nn.Module, saved: dict[str, Any] | None = None) -> dict[str, Any]:
    """Timm's description of the images a model wants: what the options give, else what was saved, else the model's.

    Raises:
        UsageError: if the options contradict each other.
    """
    names = ("img_size", "input_size", "crop_pct", "crop_mode", "interpolation", "mean", "std")
    given = {name: getattr(args, name) for name in names}
    if args.input_size and args.input_size[0] != 3:
        raise UsageError(f"images are read in 3 channels: --input-size {args.input_size[0]}; give 3 HEIGHT WIDTH")
    try:
        return resolve_data_config(given, pretrained_cfg=saved, model=model)
    except AssertionError as error:
        raise UsageError("--mean and --std want one number, or one for each channel; mend them") from error


def check_image_size(model: nn.Module, name: str, size: Sequence[int]) -> None:
    """Make sure that a model takes images of a size, where that is not its own.

    Args:
        model: The model, on the CPU.
        name: Its name.
        size: Channels, height and width.

    Raises:
        UsageError: with the model's own words, where it does not.
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


def head_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that make up the classification head.

    Raises:
        UsageError: if the model has none.
    """
    if isinstance(model, HeadMixin):
        return [model.head]
    classifier = model.get_classifier()
    modules = list(classifier) if isinstance(classifier, tuple) else [classifier]
    if not any(list(module.parameters()) for module in modules):
        raise UsageError(f"{type(model).__name__} has no classification head that could learn alone")
    return modules
