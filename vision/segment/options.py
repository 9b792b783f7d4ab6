"""The command lines of segmentation, in groups."""

from __future__ import annotations

import argparse
from argparse import BooleanOptionalAction
from typing import Any

from sot_base.class_weights import parse_class_weights
from sot_base.errors import UsageError
from vision.cli.config_file import Parser
from vision.cli.options import (
    KeyValues,
    add_device_options,
    add_dry_run,
    add_loading_options,
    add_output_options,
    add_reading_options,
    fraction,
    non_negative,
    non_negative_int,
    positive_int,
    seed,
)

__all__ = [
    "add_checkpoint_options",
    "add_data_options",
    "add_inference_options",
    "add_model_options",
    "check_options",
    "given_recipe",
    "predict_parser",
    "summary_parser",
    "train_parser",
    "validate_parser",
]

SCHEDULES = ("poly", "cosine", "constant")
NECKS = ("side", "pyramid")


def positive(text: str) -> float:
    """A number above 0."""
    value = non_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text!r}")
    return value


def pixel_value(text: str) -> int:
    """A value that a pixel of an annotation can have, but 0."""
    value = positive_int(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"must be at most 65535, as 16 bits hold it, got {text!r}")
    return value


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """What UperNet is built from."""
    add = parser.add_argument_group("model").add_argument
    add("--model", default="lvvit_s", help="the backbone: lvvit_*, sot_*, or a vit_* or deit_* of timm")
    add("--model-kwargs", nargs="*", default={}, action=KeyValues, help="its arguments, name=value ...")
    add("--drop", type=fraction, default=0.1, help="dropout of channels before the classifiers")
    add("--drop-path", type=fraction, help="stochastic depth; default: as published, 0.1 0.2 0.5")
    add("--crop-size", type=positive_int, default=512, help="height and width of crops and windows in pixels")
    add("--neck", choices=NECKS, default="side", help="side: as published; pyramid: the usual one")
    add("--out-indices", type=non_negative_int, nargs=4, help="the four blocks, from 0; default: --neck's")
    add("--last-channels", type=positive_int, default=2048, help="channels of the last map of --neck side")
    add("--decoder-channels", type=positive_int, help="decoder width; default: 256, or 512 for tokens of 768 or more")
    add("--aux-channels", type=non_negative_int, help="width of the auxiliary head; 0: none; default: the decoder's")


def given_recipe(args: argparse.Namespace, num_classes: int) -> dict[str, Any]:
    """The recipe that the options ask for, see `vision.segment.build.complete_recipe`."""
    drop_path = {} if args.drop_path is None else {"drop_path_rate": args.drop_path}
    names = ("model", "crop_size", "neck", "out_indices", "last_channels", "decoder_channels", "aux_channels")
    values = {name: getattr(args, name) for name in names}
    return {**values, "drop_rate": args.drop, "num_classes": num_classes, "kwargs": {**drop_path, **args.model_kwargs}}


def add_data_options(parser: argparse.ArgumentParser, train: bool = False) -> None:
    """Where images and annotations are, and what the annotations' values mean."""
    add = parser.add_argument_group("data").add_argument
    if train:
        add("--train-split", default="training", help="folder in images/ and annotations/")
        add("--num-classes", type=positive_int, default=150, help="classes")
        add("--ignore-index", type=pixel_value, default=255, help="value of pixels to ignore")
        zero = "ignore 0; value v is class v - 1, as in ADE20K; otherwise value v is class v"
        add("--reduce-zero-label", action=BooleanOptionalAction, default=True, help=zero)
        add("--class-names", help="text file, one name per line; default: DIR/objectInfo150.txt if it exists")
    add("--val-split", default="validation", help="folder in images/ and annotations/")
    add_loading_options(add)


def add_inference_options(parser: argparse.ArgumentParser, crop: bool = True) -> None:
    """How a model is run over images of any size."""
    add = parser.add_argument_group("inference").add_argument
    add("--short-side", type=non_negative_int, help="short side of the images; 0: not resized; default: as in training")
    add("--slide", action=BooleanOptionalAction, default=True, help="predict by overlapping windows, or all at once")
    if crop:
        add("--crop-size", type=positive_int, help="size of the windows; default: as in training")
    add("--stride", type=positive_int, help="pixels between windows; default: two thirds of the crop's size")
    add("--multi-scale", type=positive, nargs="+", default=[1.0], help="scales to average over")
    add("--flip", action="store_true", help="average with the flipped image")


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """Which model to evaluate."""
    add = parser.add_argument_group("model").add_argument
    add("--checkpoint", help="checkpoint of vision/segment/train.py or of mmsegmentation")
    add("--pretrained", action="store_true", help="mmsegmentation's released UperNet on --model, instead of a file")
    add("--model", help="the backbone, for a checkpoint of mmsegmentation or --pretrained")
    add("--model-kwargs", nargs="*", default={}, action=KeyValues, help="its arguments")


def train_parser() -> Parser:
    """The parser of ``vision/segment/train.py``."""
    parser = Parser(prog="train.py", description="Train UperNet for semantic segmentation.")
    parser.add_argument("data_dir", nargs="?", metavar="DIR", help="folder with images/ and annotations/")
    parser.add_argument("--config", help="YAML file of options")
    add_dry_run(parser)
    add_data_options(parser, train=True)
    add_model_options(parser)
    add = parser.add_argument_group("start").add_argument
    add("--backbone-checkpoint", help="weights of a classifier: vision/train.py's, timm's or published")
    add("--pretrained", action="store_true", help="the backbone starts from its released weights or timm's")
    add("--initial-checkpoint", help="weights of UperNet: vision/segment/train.py's or mmsegmentation's")
    _add_augmentation_options(parser)
    _add_optimisation_options(parser)
    add_inference_options(parser, crop=False)
    add_device_options(parser)
    add = add_output_options(parser, "out/segment")
    add("--val-steps", type=positive_int, default=8000, help="updates between validations")
    return parser


def _add_augmentation_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("augmentation").add_argument
    add("--scale", type=positive, nargs=2, default=[0.5, 2.0], help="range of the short side, times --short-side")
    add("--class-limit", type=fraction, default=0.75, help="largest share of a class in a crop; 1: no limit")
    add("--hflip", type=fraction, default=0.5, help="probability of a horizontal flip")
    add("--distort", action=BooleanOptionalAction, default=True, help="random brightness, contrast, saturation and hue")
    add("--mean", type=fraction, nargs="+", help="mean of each channel, for images in [0, 1]; default: the model's")
    add("--std", type=positive, nargs="+", help="standard deviation of each channel")


def _add_optimisation_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("optimisation").add_argument
    add("--steps", type=positive_int, default=160000, help="number of updates, including warm-up")
    add("--max-steps", type=positive_int, help="stop after this many updates; the schedule is unchanged")
    add("--patience", type=positive_int, help="stop after so many validations without a better one")
    add("-b", "--batch-size", type=positive_int, default=16, help="images per step and process")
    add("--opt", default="adamw", help="name of a timm optimizer")
    add("--lr", type=non_negative, default=6e-5, help="learning rate")
    add("--weight-decay", type=non_negative, default=0.01, help="weight decay")
    add("--layer-decay", type=fraction, help="layer-wise learning-rate decay: factor per layer")
    add("--sched", choices=SCHEDULES, default="poly", help="learning-rate schedule")
    add("--poly-power", type=positive, default=1.0, help="power of poly; 1: linear")
    add("--warmup-steps", type=non_negative_int, help="default: 1500, but at most a tenth of --steps")
    add("--min-lr", type=non_negative, default=0.0, help="final learning rate")
    add("--aux-weight", type=non_negative, default=0.4, help="weight of the auxiliary head's loss")
    weights = "weights of the classes in cross-entropy: balanced, or NAME=WEIGHT,NAME=WEIGHT; others have 1"
    add("--class-weights", help=weights)
    add("--dice-weight", type=non_negative, default=0.0, help="weight of the Dice loss, added to cross-entropy")
    add("--clip-grad", type=positive, help="clip the norm of the gradient to this")
    add("--seed", type=seed, default=42, help="seed of all random numbers")


def check_options(args: argparse.Namespace) -> None:
    """Check options that depend on each other, and set the warm-up.

    Raises:
        UsageError: for options that contradict each other.
    """
    if args.data_dir is None:
        raise UsageError("no data: DIR; give the folder that has images/ and annotations/")
    if args.num_classes == 1:
        raise UsageError("one class cannot be told from others: --num-classes 1; give 2, the background counts as one")
    if args.class_weights is not None:
        parse_class_weights(args.class_weights)
    if args.warmup_steps is None:
        args.warmup_steps = min(1500, args.steps // 10)
    if args.warmup_steps >= args.steps:
        raise UsageError(f"the warm-up of {args.warmup_steps} steps uses up all {args.steps}; shorten --warmup-steps")
    if args.scale[0] > args.scale[1]:
        raise UsageError(f"--scale takes the smaller number first, not {args.scale[0]:g} {args.scale[1]:g}; correct it")
    last = args.num_classes if args.reduce_zero_label else args.num_classes - 1
    if args.ignore_index <= last:
        raise UsageError(f"--ignore-index {args.ignore_index} is a class: they have values up to {last}; raise it")
    if args.short_side is None:
        args.short_side = args.crop_size
    args.min_lr = min(args.min_lr, args.lr)


def validate_parser() -> Parser:
    """The parser of ``vision/segment/validate.py``."""
    parser = Parser(prog="validate.py", description="Validate UperNet.")
    parser.add_argument("data_dir", nargs="?", metavar="DIR", help="folder with images/ and annotations/")
    parser.add_argument("--config", help="YAML file of options")
    add_dry_run(parser)
    add_checkpoint_options(parser)
    add_data_options(parser)
    add_inference_options(parser)
    add_device_options(parser)
    parser.set_defaults(amp_dtype=None)  # as in training
    parser.add_argument("--per-class", help="CSV file: pixels, IoU and accuracy of each class")
    parser.add_argument("--results", help="JSON file of the metrics")
    return parser


def predict_parser() -> Parser:
    """The parser of ``vision/segment/predict.py``."""
    parser = Parser(prog="predict.py", description="Segment images.")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files and folders")
    parser.add_argument("--config", help="YAML file of options")
    parser.add_argument("--output", help="folder to write to: NAME.png and NAME_color.png")
    parser.add_argument("--palette", help="text file of colours, #rrggbb or three numbers, one a line and class")
    parser.add_argument("--overlay", action="store_true", help="also NAME_overlay.png, the colours over the image")
    add_reading_options(parser.add_argument)
    add_checkpoint_options(parser)
    add_inference_options(parser)
    add_device_options(parser)
    parser.set_defaults(amp_dtype=None)  # as in training
    parser.set_defaults(data_dir=None)
    return parser


def summary_parser() -> Parser:
    """The parser of ``vision/segment/summary.py``."""
    parser = Parser(prog="summary.py", description="Parameters of UperNet on vision transformers.")
    parser.add_argument("--config", help="YAML file of options")
    parser.add_argument("--num-classes", type=positive_int, default=150, help="classes")
    add_model_options(parser)
    parser.set_defaults(model=None)
    return parser
