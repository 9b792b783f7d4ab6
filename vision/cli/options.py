"""The command line of training, in groups; the names are timm's where timm has the option."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from timm.utils import ParseKwargs

from sot_core.options import HEAD_OPTIONS, add_head_options, head_settings
from vision.cli.config_file import Parser
from vision.data import DATASETS, PUBLISHED_DATASETS

__all__ = [
    "add_checkpoint_options",
    "add_device_options",
    "add_dry_run",
    "add_image_options",
    "add_loading_options",
    "add_source_options",
    "given_head_settings",
    "positive_int",
    "train_parser",
]

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
SCHEDULES = ("cosine", "tanh", "step", "multistep", "poly", "wsd", "rsqrt", "constant")


class KeyValues(ParseKwargs):
    """timm's ``name=value ...``; a word without ``=`` is an error of one line."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        for word in values:
            if "=" not in word:
                parser.error(f"argument {option_string}: expected name=value, got {word!r}")
        super().__call__(parser, namespace, values, option_string)


def positive_int(text: str) -> int:
    """An integer of at least 1."""
    return int(_number(text, lambda value: value >= 1 and value == int(value), "an integer of at least 1"))


def non_negative_int(text: str) -> int:
    """An integer of at least 0."""
    return int(_number(text, lambda value: value >= 0 and value == int(value), "an integer of at least 0"))


def non_negative(text: str) -> float:
    """A number of at least 0."""
    return _number(text, lambda value: 0 <= value < float("inf"), "a number of at least 0")


def fraction(text: str) -> float:
    """A number in [0, 1]."""
    return _number(text, lambda value: 0 <= value <= 1, "a number in [0, 1]")


def seed(text: str) -> int:
    """An integer in [0, 2**31), as numpy's generators take it for every process."""
    return int(_number(text, lambda value: 0 <= value < 2**31 and value == int(value), "an integer in [0, 2**31)"))


def _number(text: str, accept: Callable[[float], bool], kind: str) -> float:
    try:
        value = float(text)
        accepted = accept(value)
    except (ValueError, OverflowError):
        accepted = False
    if not accepted:
        raise argparse.ArgumentTypeError(f"must be {kind}, got {text!r}")
    return value


def add_source_options(parser: argparse.ArgumentParser, train: bool = False, val: bool = True) -> None:
    """Where training and validation find labelled images."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--dataset",
        "--data-set",
        type=lambda name: PUBLISHED_DATASETS.get(name, name),
        choices=DATASETS,
        help="what DIR holds; default: as it looks; CIFAR and IMNET are other names of cifar100 and folder",
    )
    group.add_argument("--data-path", help="another spelling of DIR")
    group.add_argument("--download", action="store_true", help="fetch CIFAR where it is missing")
    if train:
        group.add_argument("--train-split", default="train", help="folder of the training images; . for DIR itself")
    if val:
        group.add_argument("--val-split", default="val", help="folder of the validation images; . for DIR itself")


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """What training, validation and prediction share about images."""
    group = parser.add_argument_group("images")
    group.add_argument("--img-size", type=positive_int, help="image height and width in pixels; default: the model's")
    group.add_argument(
        "--input-size",
        type=positive_int,
        nargs=3,
        metavar=("3", "HEIGHT", "WIDTH"),
        help="instead of --img-size: an image that is not square",
    )
    group.add_argument("--crop-pct", type=fraction, help="part of the resized image that the evaluation's crop keeps")
    group.add_argument("--crop-mode", choices=("center", "squash", "border"), help="how evaluation crops")
    group.add_argument("--interpolation", choices=INTERPOLATIONS, help="of resizing")
    group.add_argument("--mean", type=float, nargs="+", help="mean of each channel, images in [0, 1]")
    group.add_argument("--std", type=float, nargs="+", help="standard deviation of each channel")
    group.add_argument("-b", "--batch-size", "--b", type=positive_int, default=128, help="images a batch and process")
    add_loading_options(group)


def add_loading_options(group: Any) -> None:
    """How images are read."""
    group.add_argument(
        "-j", "--workers", type=non_negative_int, help="loading processes; default: one per core, up to 8"
    )
    group.add_argument(
        "--bad-images",
        choices=("error", "skip"),
        default="error",
        help="unreadable files: stop, or skip and count them; no other image takes their place",
    )


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Where and in which precision to compute."""
    group = parser.add_argument_group("device")
    group.add_argument("--device", help="cuda, cuda:1, cpu, ...; default: a GPU where there is one")
    group.add_argument(
        "--amp",
        "--native-amp",
        "--apex-amp",
        action=argparse.BooleanOptionalAction,
        help="automatic mixed precision; in evaluation the default is as in training",
    )
    group.add_argument("--amp-dtype", choices=("bfloat16", "float16"), default="bfloat16", help="of mixed precision")
    group.add_argument("--channels-last", action="store_true", help="NHWC memory layout")
    group.add_argument("--compile", "--torchcompile", action="store_true", help="torch.compile the model")


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """The option to look before a run."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the resolved configuration and the loss of the first 8 images, write nothing",
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="sot_micro", help="name of a timm model, those of vision.models among them")
    group.add_argument("--model-kwargs", nargs="*", default={}, action=KeyValues, help="its arguments, name=value ...")
    group.add_argument("--num-classes", type=positive_int, help="outputs; default: the data's classes")
    group.add_argument("--drop", type=fraction, help="the model's dropout")
    group.add_argument("--drop-path", type=fraction, help="stochastic depth")
    group.add_argument("--pretrained", action="store_true", help="start from timm's weights")
    group.add_argument(
        "--initial-checkpoint", "--finetune", help="start from a checkpoint, another class count or size included"
    )
    group.add_argument("--freeze-backbone", action="store_true", help="only the head learns; the backbone evaluates")
    group.add_argument("--head-lr-scale", type=non_negative, default=1.0, help="the head's learning rate, times --lr")


def _add_optimisation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("optimisation")
    group.add_argument("--epochs", type=positive_int, default=300, help="epochs, warm-up included")
    group.add_argument("--max-steps", type=positive_int, help="stop after this many updates; the schedule is unchanged")
    group.add_argument("--opt", default="adamw", help="name of a timm optimizer")
    group.add_argument("--opt-kwargs", nargs="*", default={}, action=KeyValues, help="its arguments, name=value ...")
    group.add_argument("--lr", type=non_negative, help="learning rate, as it is used; default 1e-3")
    group.add_argument(
        "--lr-base",
        type=non_negative,
        help="instead of --lr: the rate for a batch of --lr-base-size; "
        "it grows with the batch over all processes and accumulation steps",
    )
    group.add_argument("--lr-base-size", type=positive_int, default=256, help="images")
    group.add_argument("--lr-base-scale", choices=("linear", "sqrt"), default="linear", help="how it grows")
    group.add_argument("--weight-decay", type=non_negative, default=0.05, help="weight decay")
    group.add_argument("--momentum", type=fraction, default=0.9, help="of optimizers that have it")
    group.add_argument("--layer-decay", type=fraction, help="the learning rate's factor from layer to layer")
    group.add_argument("--sched", choices=SCHEDULES, default="cosine", help="schedule, in updates")
    group.add_argument("--warmup-epochs", type=non_negative, help="default: 5, at most a tenth of the epochs")
    group.add_argument(
        "--cooldown-epochs", type=non_negative_int, default=0, help="more epochs, at the last learning rate"
    )
    group.add_argument("--warmup-lr", type=non_negative, default=1e-6, help="learning rate at the begin, at most --lr")
    group.add_argument("--min-lr", type=non_negative, default=1e-5, help="learning rate at the end, at most --lr")
    group.add_argument("--decay-epochs", type=non_negative, default=30, help="of step, wsd and rsqrt")
    group.add_argument("--decay-milestones", type=int, nargs="+", default=[30, 60], help="of multistep")
    group.add_argument("--decay-rate", type=non_negative, default=0.1, help="of step, multistep and poly")
    group.add_argument("--grad-accum-steps", type=positive_int, default=1, help="batches an update")
    group.add_argument("--clip-grad", type=non_negative, help="gradient clipping")
    group.add_argument("--clip-mode", choices=("norm", "value", "agc"), default="norm", help="how to clip")
    group.add_argument("--model-ema", action="store_true", help="keep and evaluate averaged weights as well")
    group.add_argument("--model-ema-decay", type=fraction, default=0.9998, help="their decay")
    group.add_argument("--model-ema-warmup", action="store_true", help="let the decay grow")
    group.add_argument(
        "--sync-bn",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="batch statistics over all processes: several processes compute what one does with their batches together",
    )
    group.add_argument("--seed", type=seed, default=42, help="of everything random")


def _add_augmentation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("augmentation")
    group.add_argument("--no-aug", action="store_true", help="resize and centre crop alone")
    group.add_argument("--train-crop-mode", choices=("rrc", "rkrc", "rkrr"), help="timm's crop modes; default rrc")
    group.add_argument("--scale", type=float, nargs=2, help="area of the random crop; default 0.08 1")
    group.add_argument("--ratio", type=float, nargs=2, help="its aspect ratio; default 3/4 4/3")
    group.add_argument("--hflip", type=fraction, default=0.5, help="probability of a horizontal flip")
    group.add_argument("--vflip", type=fraction, default=0.0, help="probability of a vertical flip")
    group.add_argument("--color-jitter", type=non_negative, default=0.4, help="strength; unused with --aa")
    group.add_argument("--aa", help="RandAugment, AutoAugment or AugMix in timm's notation: rand-m9-mstd0.5-inc1, ...")
    group.add_argument("--train-interpolation", default="random", help="of the random crop")
    group.add_argument("--aug-repeats", type=positive_int, default=1, help="repeated augmentation")
    for flag, count in (("--repeated-aug", 3), ("--no-repeated-aug", 1)):
        group.add_argument(flag, dest="aug_repeats", action="store_const", const=count, help=f"--aug-repeats {count}")
    group.add_argument("--reprob", type=fraction, default=0.0, help="probability of random erasing")
    group.add_argument("--remode", choices=("const", "rand", "pixel"), default="pixel", help="what it fills in")
    group.add_argument("--recount", type=positive_int, default=1, help="erased boxes")
    group.add_argument("--mixup", type=non_negative, default=0.0, help="mixup's alpha; 0: none")
    group.add_argument("--cutmix", type=non_negative, default=0.0, help="cutmix's alpha; 0: none")
    group.add_argument("--cutmix-minmax", type=float, nargs=2, help="size of cutmix's box instead")
    group.add_argument("--mixup-prob", type=fraction, default=1.0, help="probability of either")
    group.add_argument("--mixup-switch-prob", type=fraction, default=0.5, help="of cutmix, where both are on")
    group.add_argument("--mixup-mode", choices=("batch", "pair", "elem"), default="batch", help="what shares a draw")
    group.add_argument("--mixup-off-epoch", type=non_negative_int, default=0, help="epoch that ends mixing; 0: none")
    group.add_argument("--smoothing", type=fraction, default=0.1, help="label smoothing")


def _add_token_label_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("token labeling", "Every patch learns a label of its own (arXiv:2104.10858).")
    group.add_argument("--token-label", action="store_true", help="token labeling; the options below need it")
    group.add_argument("--token-label-data", metavar="LABELS", help="label maps of the training images")
    group.add_argument(
        "--token-label-size", type=positive_int, help="patches a side, which must be the model's; default: the model's"
    )
    group.add_argument(
        "--dense-weight", type=non_negative, help="weight of the patches' loss, default 0.5; 0 needs no label maps"
    )
    group.add_argument("--cls-weight", type=non_negative, help="weight of the image's loss, default 1")
    group.add_argument("--ground-truth", action="store_true", help="mix the data's class into the image's label")
    group.add_argument(
        "--mix-token",
        action=argparse.BooleanOptionalAction,
        help="mix boxes of patches in training; default: where the model can",
    )


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--output", default="out/train", help="folder of the runs")
    group.add_argument("--experiment", help="this run's folder in it; default: <model>-<data>, numbered")
    group.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        help="go on from a checkpoint; without a path from the latest of --experiment",
    )
    group.add_argument(
        "--checkpoint-steps", type=non_negative_int, default=0, help="updates between saves; 0: epochs only"
    )
    group.add_argument("--checkpoint-hist", type=positive_int, default=1, help="epochs to keep, the best ones")
    group.add_argument("--log-interval", type=positive_int, default=50, help="updates between log lines")
    group.add_argument(
        "--tensorboard",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="log for TensorBoard too, where it is installed",
    )


def train_parser() -> Parser:
    """The parser of ``vision/train.py``."""
    parser = Parser(prog="train.py", description="Train an image classifier. Without data: the digits demonstration.")
    parser.add_argument("data_dir", nargs="?", metavar="DIR", help="folder or tar of images")
    parser.add_argument("--config", help="YAML or JSON file of options, or the name of one in vision/configs")
    parser.add_argument("--eval", action="store_true", help="validate the checkpoint of --resume instead")
    add_dry_run(parser)
    add_source_options(parser, train=True)
    add_image_options(parser)
    _add_model_options(parser)
    add_head_options(parser)
    parser.set_defaults(**{option.name: None for option in HEAD_OPTIONS})
    _add_optimisation_options(parser)
    _add_augmentation_options(parser)
    _add_token_label_options(parser)
    add_device_options(parser)
    _add_output_options(parser)
    return parser


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """Which model to evaluate."""
    group = parser.add_argument_group("model")
    group.add_argument("--checkpoint", "--eval-checkpoint", "--eval_checkpoint", help="checkpoint file")
    group.add_argument("--weights", choices=("auto", "ema", "raw"), default="auto", help="averaged or raw weights")
    group.add_argument("--pretrained", action="store_true", help="timm's weights instead of a checkpoint")
    group.add_argument("--model-kwargs", nargs="*", default={}, action=KeyValues, help="for checkpoints from elsewhere")
    group.add_argument("--num-classes", type=positive_int, help="outputs; default: the checkpoint's")
    parser.set_defaults(drop=None, drop_path=None)


def given_head_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `HeadConfig` that the command line or the configuration gives."""
    given = {option.name: getattr(args, option.name) for option in HEAD_OPTIONS}
    return head_settings({name: value for name, value in given.items() if value is not None})
