"""What a run of segmentation starts from: data, model and first weights."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from timm.data import resolve_data_config
from timm.utils import random_seed

from sot_base.errors import UsageError
from vision.cli.device import memory_format, mixed_precision
from vision.cli.resolve_options import plain_options
from vision.data import BadImages
from vision.models.weights.fit import read_state_dict
from vision.models.weights.read import load_state
from vision.segment.build import build_segmenter, complete_recipe, load_backbone, load_pretrained
from vision.segment.dataset import PairSet, normalize, train_loader
from vision.segment.files import PairSource, read_class_names
from vision.segment.labels import LabelRules
from vision.segment.loss import SegmentationLoss
from vision.segment.mmseg_names import LoadReport, is_mmseg, load_fitting, load_mmseg
from vision.segment.model import UperNet
from vision.segment.options import given_recipe
from vision.segment.run_state import check_same_run
from vision.segment.transforms import train_transform

__all__ = ["Session", "first_loss", "open_session"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """The parts of a run before its first step.

    Attributes:
        args: The resolved options.
        device: Where to compute.
        train_set: Training images.
        val_set: Validation images.
        recipe: What builds the model.
        data: ``rules``, ``images`` (mean, std, short side) and ``class_names``.
        model: The model, on the device.
        checkpoint: The checkpoint to go on from, or None.
    """

    args: Namespace
    device: torch.device
    train_set: PairSet
    val_set: PairSet
    recipe: dict[str, Any]
    data: dict[str, Any]
    model: UperNet
    checkpoint: dict[str, Any] | None

    def describe(self) -> dict[str, Any]:
        """What a checkpoint says of the model, in plain values."""
        return _describe(self.args, self.recipe, self.data)


def _describe(args: Namespace, recipe: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    return {
        "segmenter": recipe,
        "data": data,
        "options": plain_options(args),
        "images_per_step": args.batch_size * args.world_size,
    }


def open_session(args: Namespace, device: torch.device, checkpoint: dict[str, Any] | None) -> Session:
    """Open the data and build the model that the options ask for.

    Args:
        args: The options of training, as `vision.segment.options.check_options` leaves them.
        device: Where to compute.
        checkpoint: The checkpoint to go on from, or None.

    Raises:
        UsageError: for anything in the options, the data or a checkpoint that does not fit.
    """
    rules = LabelRules(args.num_classes, args.ignore_index, args.reduce_zero_label)
    train, val = (PairSource(args.data_dir, split) for split in (args.train_split, args.val_split))
    names = read_class_names(args.data_dir, args.class_names, args.num_classes)
    recipe = complete_recipe(given_recipe(args, args.num_classes))
    random_seed(args.seed)
    model = build_segmenter(recipe)
    config = resolve_data_config({"mean": args.mean, "std": args.std}, model=model.encoder.backbone)
    images = {"mean": list(config["mean"]), "std": list(config["std"]), "short_side": args.short_side}
    data = {"rules": rules.to_dict(), "images": images, "class_names": names}
    if checkpoint is not None:
        check_same_run(checkpoint, _describe(args, recipe, data))
    else:
        _load_first_weights(model, recipe, args)
    transform = train_transform(
        args.crop_size,
        args.short_side,
        args.scale,
        args.class_limit,
        args.hflip,
        args.distort,
        images["mean"],
        args.ignore_index,
    )
    model.to(device=device, memory_format=memory_format(args.channels_last))
    return Session(args, device, PairSet(train, rules, transform), PairSet(val, rules), recipe, data, model, checkpoint)


def _load_first_weights(model: UperNet, recipe: Mapping[str, Any], args: Namespace) -> None:
    options = ("pretrained", "backbone_checkpoint", "initial_checkpoint")
    given = [f"--{name.replace('_', '-')}" for name in options if getattr(args, name)]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} each give the backbone's weights; give one")
    if args.pretrained:
        unused = load_pretrained(model, recipe)
        _logger.info(f"backbone from timm's weights of {recipe['model']}; not used: {', '.join(unused) or 'nothing'}")
    if args.backbone_checkpoint:
        unused = load_backbone(model, args.backbone_checkpoint)
        _logger.info(f"backbone from {args.backbone_checkpoint}; not used: {', '.join(unused) or 'nothing'}")
    if args.initial_checkpoint:
        _logger.info(f"{args.initial_checkpoint}: {load_initial(model, args.initial_checkpoint)}")


def load_initial(model: UperNet, path: str) -> LoadReport:
    """Start from the weights of another UperNet, of this package or of mmsegmentation.

    The backbone must fit, but for the image size; of the rest is taken what fits.

    Raises:
        UsageError: naming the file, if it is missing or its backbone does not fit.
    """
    state = read_state_dict(path, use_ema=False)
    try:
        return load_mmseg(model, state) if is_mmseg(state) else load_fitting(model, state)
    except UsageError as error:
        raise UsageError(f"--initial-checkpoint {path}: {error}") from error


@torch.inference_mode()
def first_loss(session: Session, count: int = 8) -> tuple[float, int]:
    """Loss of the first training crops, in evaluation mode, and their number."""
    args = session.args
    if session.checkpoint is not None:
        load_state(session.model, session.checkpoint["state_dict"], "--resume")
    bad_images = BadImages(args.bad_images)
    shown = min(count, len(session.train_set))
    loader = train_loader(session.train_set, shown, range(1), args.seed, 0, 1, 0, session.device, bad_images)
    pixels, classes = next(iter(loader))
    if not len(pixels):
        raise UsageError(f"no image can be read: {session.train_set.source.where}; mend the files")
    autocast, _ = mixed_precision(session.device, args.amp, args.amp_dtype)
    images = normalize(pixels, session.data["images"]["mean"], session.data["images"]["std"])
    session.model.eval()
    with autocast():
        loss = SegmentationLoss(args.ignore_index, args.aux_weight, args.dice_weight)(session.model(images), classes)
    return loss.item(), len(pixels)
