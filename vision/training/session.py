"""What a training run starts from: device, data, class names and model."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timm.utils import random_seed
from torch import nn

from sot_base.errors import UsageError
from vision.cli.device import init_device, memory_format, mixed_precision
from vision.cli.options import given_head_settings
from vision.cli.resolve_options import find_resume, plain_options, resolve_options
from vision.data import ImageSet, match_classes, open_source
from vision.models.build import build_model, check_image_size, load_initial, model_recipe, resolve_images, saved_recipe
from vision.models.weights.read import check_same_run, read_checkpoint
from vision.training.token_labeling import (
    TokenLabeling,
    create_token_labeling,
    dense_recipe,
    label_images,
    resolve_token_labeling,
)

__all__ = ["Session", "open_session"]


@dataclass(frozen=True)
class Session:
    """The parts of a run before its first step.

    Attributes:
        args: The resolved options.
        device: Where to compute.
        train_set: Training images.
        val_set: Validation images.
        class_names: Classes in the order of the model's outputs, made from the training images.
        recipe: What builds the model, see `vision.models.build.build_model`.
        model: The model, on the device.
        data_config: timm's description of the images it wants.
        autocast: Gives the context of mixed precision.
        scaler: The loss scaler.
        checkpoint: The checkpoint to go on from, or None.
        token_labeling: How batches become labels of patches, or None.
    """

    args: Namespace
    device: torch.device
    train_set: ImageSet
    val_set: ImageSet
    class_names: list[str]
    recipe: dict[str, Any]
    model: nn.Module
    data_config: dict[str, Any]
    autocast: Callable[[], contextlib.AbstractContextManager[Any]]
    scaler: torch.amp.GradScaler
    checkpoint: dict[str, Any] | None
    token_labeling: TokenLabeling | None

    @property
    def images_per_step(self) -> int:
        """Images of a batch over all processes."""
        return self.args.batch_size * self.args.world_size

    @property
    def memory_format(self) -> torch.memory_format:
        """Layout of images and convolutions."""
        return memory_format(self.args.channels_last)

    def describe(self) -> dict[str, Any]:
        """What a checkpoint says of the model, in plain values."""
        return {
            "arch": self.recipe["name"],
            "recipe": self.recipe,
            "class_names": self.class_names,
            "data_config": self.data_config,
            "options": plain_options(self.args),
            "images_per_step": self.images_per_step,
        }


def open_session(args: Namespace) -> Session:
    """Open the data and build the model that the options ask for.

    Raises:
        UsageError: for anything in the options, the data or a checkpoint that does not fit.
    """
    device = init_device(args)
    resolve_options(args)
    resolve_token_labeling(args)
    train_set, val_set, class_names = _open_data(args)
    recipe = model_recipe(args, len(class_names), given_head_settings(args))
    if args.token_label:
        recipe = dense_recipe(recipe, args)
    path = find_resume(args)
    checkpoint = None if path is None else read_checkpoint(path)
    if checkpoint is not None:
        check_same_run(checkpoint, recipe, class_names)
        recipe = checkpoint["recipe"]
    random_seed(args.seed)
    try:
        model = build_model(recipe, pretrained=args.pretrained and checkpoint is None)
    except UsageError as error:
        if not args.token_label or isinstance(error.__cause__, OSError):  # weights that cannot be had
            raise
        raise UsageError(f"--token-label: {error}") from error
    data_config = resolve_images(args, model)
    check_image_size(model, recipe["name"], data_config["input_size"])
    token_labeling = create_token_labeling(args, model, recipe["num_classes"], data_config["input_size"][1:])
    if args.initial_checkpoint and checkpoint is None:
        load_initial(model, recipe, args.initial_checkpoint, class_names)
    model.to(device=device, memory_format=memory_format(args.channels_last))
    return Session(
        args,
        device,
        train_set,
        val_set,
        class_names,
        saved_recipe(recipe, model),
        model,
        data_config,
        *mixed_precision(device, args.amp, args.amp_dtype),
        checkpoint,
        token_labeling,
    )


def _open_data(args: Namespace) -> tuple[ImageSet, ImageSet, list[str]]:
    """The images, and the class names in the order of the model's outputs."""
    train, val = (
        open_source(args.data_dir, split, args.dataset, args.download) for split in (args.train_split, args.val_split)
    )
    names = train.class_names
    if len(names) < 2:
        raise UsageError(f"only one class, {names[0]}: {train.where}; expected a folder for each class in it")
    val_index = match_classes(val.class_names, names, val.where)
    if args.num_classes is not None and args.num_classes < len(names):
        raise UsageError(f"--num-classes {args.num_classes} is too small: {train.where} has {len(names)} classes")
    unused = [f"unused_{index}" for index in range(len(names), args.num_classes or 0)]
    return label_images(train, args), ImageSet(val, class_index=val_index), [*names, *unused]
