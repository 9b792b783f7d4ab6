"""The command lines of segmentation, in groups."""

from __future__ import annotations

import argparse
from typing import Any

from sot_base.errors import UsageError
from vision.cli.config_file import Parser
from vision.cli.options import (
    KeyValues,
    add_device_options,
    add_dry_run,
    add_loading_options,
    fraction,
    non_negative,
    non_negative_int,
    positive_int,
    seed,
)
from vision.segment.neck import NECKS

__all__ = [
    "add_checkpoint_options",
    "add_data_options",
    "add_inference_options",
    "add_model_options",
    "check_options",
    "given_recipe",
    "train_parser",
]

SCHEDULES = ("poly", "cosine", "constant")


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
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="lvvit_s", help="the backbone: lvvit_*, sot_*, or a vit_* or deit_* of timm")
    group.add_argument("--model-kwargs", nargs="*", default={}, action=KeyValues, help="its arguments, name=value ...")
    group.add_argument("--drop", type=fraction, default=0.1, help="dropout of channels before the classifiers")
    group.add_argument("--drop-path", type=fraction, help="stochastic depth; default: as published, 0.1 0.2 0.5")
    group.add_argument("--crop-size", type=positive_int, default=512, help="height and width of crops and windows")
    group.add_argument(
        "--neck", choices=tuple(NECKS), default="side", help="side: as published; pyramid: the usual one"
    )
    group.add_argument(
        "--out-indices", type=non_negative_int, nargs=4, help="the four blocks, from 0; default: --neck's"
    )
    group.add_argument("--last-channels", type=positive_int, default=2048, help="channels of the side neck's last map")
    group.add_argument("--decoder-channels", type=positive_int, help="default: 256; for tokens of 768 or more: 512")
    group.add_argument(
        "--aux-channels", type=non_negative_int, help="of the auxiliary head; 0: none; default: the decoder's"
    )


def given_recipe(args: argparse.Namespace, num_classes: int) -> dict[str, Any]:
    """The recipe that the options ask for, see `vision.segment.build.complete_recipe`."""
    drop_path = {} if args.drop_path is None else {"drop_path_rate": args.drop_path}
    names = ("model", "crop_size", "neck", "out_indices", "last_channels", "decoder_channels", "aux_channels")
    values = {name: getattr(args, name) for name in names}
    return {**values, "drop_rate": args.drop, "num_classes": num_classes, "kwargs": {**drop_path, **args.model_kwargs}}


def add_data_options(parser: argparse.ArgumentParser, train: bool = False) -> None:
    """Where images and annotations are, and what the annotations' values mean."""
    group = parser.add_argument_group("data")
    if train:
        group.add_argument("--train-split", default="training", help="folder in images/ and annotations/")
        group.add_argument("--num-classes", type=positive_int, default=150, help="classes")
        group.add_argument("--ignore-index", type=pixel_value, default=255, help="value of pixels that do not count")
        group.add_argument(
            "--reduce-zero-label",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="0 does not count and value v is class v - 1, as in ADE20K; without it value v is class v",
        )
        group.add_argument("--class-names", help="text file, one a line; default: DIR/objectInfo150.txt where it is")
    group.add_argument("--val-split", default="validation", help="folder in images/ and annotations/")
    add_loading_options(group)


def add_inference_options(parser: argparse.ArgumentParser, crop: bool = True) -> None:
    """How a model is run over images of any size."""
    group = parser.add_argument_group("inference")
    group.add_argument(
        "--short-side",
        type=non_negative_int,
        help="resize images so, the long side being at most 4 times it; 0: as they are; default: as in training",
    )
    group.add_argument(
        "--slide",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="windows of the crop's size, averaged where they overlap; without it the whole image",
    )
    if crop:
        group.add_argument("--crop-size", type=positive_int, help="of the windows; default: as in training")
    group.add_argument("--stride", type=positive_int, help="between windows; default: two thirds of the crop's size")
    group.add_argument("--multi-scale", type=positive, nargs="+", default=[1.0], help="scales to average over")
    group.add_argument("--flip", action="store_true", help="average with the mirrored image")


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """Which model to evaluate."""
    group = parser.add_argument_group("model")
    group.add_argument("--checkpoint", help="of vision/segment/train.py, or of mmsegmentation")
    group.add_argument("--model", help="the backbone, for a checkpoint of mmsegmentation")
    group.add_argument("--model-kwargs", nargs="*", default={}, action=KeyValues, help="its arguments")


def train_parser() -> Parser:
    """The parser of ``vision/segment/train.py``."""
    parser = Parser(prog="train.py", description="Train UperNet for semantic segmentation.")
    parser.add_argument("data_dir", nargs="?", metavar="DIR", help="folder with images/ and annotations/")
    parser.add_argument("--config", help="YAML file of options")
    add_dry_run(parser)
    add_data_options(parser, train=True)
    add_model_options(parser)
    group = parser.add_argument_group("start")
    group.add_argument("--backbone-checkpoint", help="weights of a classifier: vision/train.py's, timm's, published")
    group.add_argument("--pretrained", action="store_true", help="the backbone starts from timm's weights")
    group.add_argument("--initial-checkpoint", help="weights of UperNet: vision/segment/train.py's or mmsegmentation's")
    _add_augmentation_options(parser)
    _add_optimisation_options(parser)
    add_inference_options(parser, crop=False)
    add_device_options(parser)
    _add_output_options(parser)
    return parser


def _add_augmentation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("augmentation")
    group.add_argument(
        "--scale", type=positive, nargs=2, default=[0.5, 2.0], help="of the short side, times --short-side"
    )
    group.add_argument("--class-limit", type=fraction, default=0.75, help="largest share of a class in a crop; 1: none")
    group.add_argument("--hflip", type=fraction, default=0.5, help="probability of a mirrored image")
    group.add_argument("--distort", action=argparse.BooleanOptionalAction, default=True, help="change the colours")
    group.add_argument("--mean", type=fraction, nargs=3, help="of each channel, images in [0, 1]; default: the model's")
    group.add_argument("--std", type=positive, nargs=3, help="standard deviation of each channel")


def _add_optimisation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("optimisation")
    group.add_argument("--steps", type=positive_int, default=160000, help="updates, warm-up included")
    group.add_argument("--max-steps", type=positive_int, help="stop after this many updates; the schedule is unchanged")
    group.add_argument("-b", "--batch-size", type=positive_int, default=16, help="images a step and process")
    group.add_argument("--opt", default="adamw", help="name of a timm optimizer")
    group.add_argument("--lr", type=non_negative, default=6e-5, help="learning rate")
    group.add_argument("--weight-decay", type=non_negative, default=0.01, help="weight decay")
    group.add_argument("--layer-decay", type=fraction, help="the learning rate's factor from layer to layer")
    group.add_argument("--sched", choices=SCHEDULES, default="poly", help="schedule, in updates")
    group.add_argument("--poly-power", type=positive, default=1.0, help="1: a straight line")
    group.add_argument("--warmup-steps", type=non_negative_int, help="default: 1500, at most a tenth of --steps")
    group.add_argument("--min-lr", type=non_negative, default=0.0, help="learning rate at the end")
    group.add_argument("--aux-weight", type=non_negative, default=0.4, help="of the auxiliary head's loss")
    group.add_argument("--dice-weight", type=non_negative, default=0.0, help="of the Dice loss beside cross-entropy")
    group.add_argument("--clip-grad", type=positive, help="largest norm of the gradient")
    group.add_argument("--seed", type=seed, default=42, help="of everything random")


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--output", default="out/segment", help="folder of the runs")
    group.add_argument("--experiment", help="this run's folder in it; default: <model>-<data>, numbered")
    group.add_argument(
        "--resume", nargs="?", const="auto", help="go on from a checkpoint; without a path from that of --experiment"
    )
    group.add_argument("--val-steps", type=positive_int, default=8000, help="updates between validations")
    group.add_argument("--checkpoint-steps", type=non_negative_int, default=0, help="between further saves; 0: none")
    group.add_argument("--log-interval", type=positive_int, default=50, help="updates between log lines")


def check_options(args: argparse.Namespace) -> None:
    """Look at options that must fit together, and fill in the warm-up.

    Raises:
        UsageError: for those that do not.
    """
    if args.data_dir is None:
        raise UsageError("no data: DIR; give the folder that has images/ and annotations/")
    if args.warmup_steps is None:
        args.warmup_steps = min(1500, args.steps // 10)
    if args.warmup_steps >= args.steps:
        raise UsageError(
            f"the warm-up of {args.warmup_steps} steps leaves none of {args.steps}; shorten --warmup-steps"
        )
    if args.scale[0] > args.scale[1]:
        raise UsageError(f"--scale wants the smaller number first, not {args.scale[0]:g} {args.scale[1]:g}; mend it")
    last = args.num_classes if args.reduce_zero_label else args.num_classes - 1
    if args.ignore_index <= last:
        raise UsageError(f"--ignore-index {args.ignore_index} is a class: they have values up to {last}; raise it")
    if args.short_side is None:
        args.short_side = args.crop_size
    args.min_lr = min(args.min_lr, args.lr)
