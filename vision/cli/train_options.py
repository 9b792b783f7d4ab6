"""The command line of ``vision/train.py``."""

from __future__ import annotations

import argparse
from argparse import BooleanOptionalAction
from typing import Any

from sot_core.options import HEAD_OPTIONS, add_head_options, head_settings
from vision.cli.config_file import Parser
from vision.cli.options import (
    KeyValues,
    add_device_options,
    add_dry_run,
    add_image_options,
    add_output_options,
    add_source_options,
    fraction,
    non_negative,
    non_negative_int,
    positive_int,
    seed,
)

__all__ = ["given_head_settings", "train_parser"]

SCHEDULES = ("cosine", "tanh", "step", "multistep", "poly", "wsd", "rsqrt", "constant")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model").add_argument
    add("--model", default="sot_micro", help="name of a timm model; those of vision.models are among them")
    add("--model-kwargs", nargs="*", default={}, action=KeyValues, help="its arguments, name=value ...")
    add("--num-classes", type=positive_int, help="outputs; default: the data's classes")
    add("--drop", type=fraction, help="the model's dropout")
    add("--drop-path", type=fraction, help="stochastic depth")
    add("--pretrained", action="store_true", help="start from released weights or timm's")
    add("--initial-checkpoint", "--finetune", help="start from a checkpoint; classes and image size may differ")
    add("--strict-head", action="store_true", help="refuse a head of the checkpoint that does not fit, or its classes")
    add("--freeze-backbone", action="store_true", help="train the head alone; the backbone stays in evaluation mode")
    add("--train-layers", type=non_negative_int, metavar="K", help="train the head and the top K transformer blocks")
    add("--head-lr-scale", type=non_negative, default=1.0, help="the head's learning rate as a multiple of --lr")


def _add_optimisation_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("optimisation").add_argument
    add("--epochs", type=positive_int, default=300, help="number of epochs, including warm-up")
    add("--max-steps", type=positive_int, help="stop after this many updates; the schedule is unchanged")
    add("--patience", type=positive_int, help="stop after so many evaluations without a better one")
    add("--opt", default="adamw", help="name of a timm optimizer")
    add("--opt-kwargs", nargs="*", default={}, action=KeyValues, help="its arguments, name=value ...")
    add("--lr", type=non_negative, help="learning rate, used as given; default: 1e-3")
    add(
        "--lr-base",
        type=non_negative,
        help="instead of --lr: for --lr-base-size images, scaled to the whole batch",
    )
    add("--lr-base-size", type=positive_int, default=256, help="images of the batch that --lr-base is for")
    add("--lr-base-scale", choices=("linear", "sqrt"), default="linear", help="how --lr-base is scaled")
    add("--weight-decay", type=non_negative, default=0.05, help="weight decay")
    add("--momentum", type=fraction, default=0.9, help="momentum of optimizers that have one")
    add("--layer-decay", type=fraction, help="layer-wise learning-rate decay: factor per layer")
    add("--sched", choices=SCHEDULES, default="cosine", help="learning-rate schedule")
    add("--warmup-epochs", type=non_negative, help="default: 5, but at most a tenth of --epochs")
    add("--cooldown-epochs", type=non_negative_int, default=0, help="additional epochs at the final learning rate")
    add("--warmup-lr", type=non_negative, default=1e-6, help="initial learning rate of the warm-up, at most --lr")
    add("--min-lr", type=non_negative, default=1e-5, help="final learning rate, at most --lr")
    add("--decay-epochs", type=non_negative, default=30, help="epochs between decays: step, wsd, rsqrt")
    add("--decay-milestones", type=int, nargs="+", default=[30, 60], help="epochs of the decays: multistep")
    add("--decay-rate", type=non_negative, default=0.1, help="factor of a decay: step, multistep; power: poly")
    add("--grad-accum-steps", type=positive_int, default=1, help="batches per update")
    add("--clip-grad", type=non_negative, help="clip gradients to this value")
    add("--clip-mode", choices=("norm", "value", "agc"), default="norm", help="gradient clipping by norm, value or AGC")
    add("--model-ema", action=BooleanOptionalAction, default=False, help="also average the weights, and evaluate both")
    add("--model-ema-decay", type=fraction, default=0.9998, help="decay of the average")
    add("--model-ema-warmup", action="store_true", help="warm up the decay of the average")
    add("--sync-bn", action=BooleanOptionalAction, default=True, help="BatchNorm statistics over all processes")
    add("--seed", type=seed, default=42, help="seed of all random numbers")


def _add_augmentation_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("augmentation").add_argument
    add("--no-aug", action="store_true", help="resize and centre crop only")
    add("--train-crop-mode", choices=("rrc", "rkrc", "rkrr"), help="timm's crop mode; default: rrc")
    add("--scale", type=float, nargs=2, help="area of the random crop; default: 0.08 1")
    add("--ratio", type=float, nargs=2, help="aspect ratio of the random crop; default: 3/4 4/3")
    add("--hflip", type=fraction, default=0.5, help="probability of a horizontal flip")
    add("--vflip", type=fraction, default=0.0, help="probability of a vertical flip")
    add("--color-jitter", type=non_negative, default=0.4, help="strength; ignored with --aa")
    policy = "RandAugment, AutoAugment or AugMix in timm's notation: rand-m9-mstd0.5-inc1, ...; none: without"
    add("--aa", type=lambda text: "" if text == "none" else text, help=policy)
    add("--train-interpolation", default="random", help="interpolation of the random crop")
    add("--aug-repeats", type=positive_int, default=1, help="repeated augmentation: copies of each image")
    for flag, count in (("--repeated-aug", 3), ("--no-repeated-aug", 1)):
        add(flag, dest="aug_repeats", action="store_const", const=count, help=f"--aug-repeats {count}")
    add("--reprob", type=fraction, default=0.0, help="probability of random erasing")
    add("--remode", choices=("const", "rand", "pixel"), default="pixel", help="what random erasing fills in")
    add("--recount", type=positive_int, default=1, help="number of erased boxes")
    add("--mixup", type=non_negative, default=0.0, help="alpha of mixup; 0: off")
    add("--cutmix", type=non_negative, default=0.0, help="alpha of cutmix; 0: off")
    add("--cutmix-minmax", type=float, nargs=2, help="range of cutmix's box size, instead of alpha")
    add("--mixup-prob", type=fraction, default=1.0, help="probability of mixup or cutmix")
    add("--mixup-switch-prob", type=fraction, default=0.5, help="probability of cutmix if both are on")
    add("--mixup-mode", choices=("batch", "pair", "elem"), default="batch", help="mix per batch, pair or image")
    add("--mixup-off-epoch", type=non_negative_int, default=0, help="epoch from which nothing is mixed; 0: never")
    weights = "weights of the classes in the loss: balanced, or NAME=WEIGHT,NAME=WEIGHT; others have 1"
    add("--class-weights", help=weights)
    add("--smoothing", type=fraction, default=0.1, help="label smoothing")


def _add_token_label_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "token labeling", "Every patch learns a label of its own (arXiv:2104.10858)."
    ).add_argument
    add("--token-label", action=BooleanOptionalAction, default=False, help="token labeling; the options below need it")
    add("--token-label-data", metavar="LABELS", help="label maps of the training images")
    add("--token-label-size", type=positive_int, help="patches per side, to be checked; default: the model's")
    add("--dense-weight", type=non_negative, help="weight of the patches' loss; default: 0.5; 0 needs no label maps")
    add("--cls-weight", type=non_negative, help="weight of the image's loss; default: 1")
    add("--ground-truth", action="store_true", help="mix the data's class into the image's label")
    add("--mix-token", action=BooleanOptionalAction, help="swap boxes of patches between images; on by default")


def train_parser() -> Parser:
    """The parser of ``vision/train.py``."""
    parser = Parser(prog="train.py", description="Train an image classifier. Without data: the digits demonstration.")
    parser.add_argument("data_dir", nargs="?", metavar="DIR", help="folder or tar of images")
    parser.add_argument("--config", help="YAML or JSON file of options, or the name of one in vision/configs")
    parser.add_argument(
        "--recipe",
        "--train-recipe",
        dest="train_recipe",
        metavar="NAME",
        help="file of vision/configs whose options are the defaults; none: without; default: a published model's own",
    )
    parser.add_argument("--eval", action="store_true", help="validate the checkpoint of --resume instead of training")
    add_dry_run(parser)
    add_source_options(parser, train=True, labels=True)
    parser.add_argument("--multi-label", action="store_true", help="images have several classes, or none: metadata.csv")
    add_image_options(parser)
    _add_model_options(parser)
    add_head_options(parser)
    parser.set_defaults(**{option.name: None for option in HEAD_OPTIONS})
    _add_optimisation_options(parser)
    _add_augmentation_options(parser)
    _add_token_label_options(parser)
    add_device_options(parser)
    add = add_output_options(parser, "out/train")
    add("--checkpoint-hist", type=positive_int, default=1, help="number of best epochs to keep")
    installed = "also log for TensorBoard, if it is installed"
    add("--tensorboard", action=BooleanOptionalAction, default=True, help=installed)
    return parser


def given_head_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `HeadConfig` that the command line or the configuration gives."""
    given = {option.name: getattr(args, option.name) for option in HEAD_OPTIONS}
    return head_settings({name: value for name, value in given.items() if value is not None})
