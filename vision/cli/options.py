"""Options shared by several command lines, in groups, with timm's names where timm has the option."""

from __future__ import annotations

import argparse
import ast
import math
import sys
from collections.abc import Callable
from typing import Any

from vision.data.names import DATASETS, MAX_PIXELS, PUBLISHED_DATASETS

__all__ = [
    "KeyValues",
    "add_checkpoint_options",
    "add_device_options",
    "add_dry_run",
    "add_image_options",
    "add_loading_options",
    "add_max_pixels",
    "add_model_argument",
    "add_output_options",
    "add_reading_options",
    "add_source_options",
    "add_threshold",
    "fraction",
    "non_negative",
    "non_negative_int",
    "positive_int",
    "probability",
    "seed",
]

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")


class KeyValues(argparse.Action):
    """timm's ``name=value ...``, also ``true`` and ``false``; an argument without ``=`` is an error."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        settings = {}
        for word in values:
            if "=" not in word:
                parser.error(f"argument {option_string}: expected name=value, got {word!r}")
            name, value = word.split("=", 1)
            settings[name] = value == "true" if value in ("true", "false") else _plain_value(value)
        setattr(namespace, self.dest, settings)


def _plain_value(text: str) -> Any:
    """A number, tuple, ... as Python writes it, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _number(kind: str, convert: type[int] | type[float], low: float, high: float) -> Callable[[str], Any]:
    """A type of options: an integer or another number in [low, high]."""

    def parse(text: str) -> float:
        try:
            value = convert(float(text))
            accepted = low <= value <= high and value == float(text)
        except (ValueError, OverflowError):
            accepted = False
        if not accepted:
            raise argparse.ArgumentTypeError(f"must be {kind}, got {text!r}")
        return value

    return parse


positive_int = _number("an integer of at least 1", int, 1, math.inf)
non_negative_int = _number("an integer of at least 0", int, 0, math.inf)
non_negative = _number("a number of at least 0", float, 0, sys.float_info.max)
fraction = _number("a number in [0, 1]", float, 0, 1)
probability = _number("a number above 0 and below 1", float, sys.float_info.epsilon, 1 - sys.float_info.epsilon)
seed = _number("an integer in [0, 2**31)", int, 0, 2**31 - 1)  # as numpy's generators take it for every process


def add_source_options(
    parser: argparse.ArgumentParser, train: bool = False, val: bool = True, labels: bool = False
) -> None:
    """Where training and validation find labelled images."""
    add = parser.add_argument_group("data").add_argument
    add(
        "--dataset",
        "--data-set",
        type=lambda name: PUBLISHED_DATASETS.get(name, name),
        choices=DATASETS,
        help="kind of data in DIR; default: detected; CIFAR and IMNET are other names of cifar100 and folder",
    )
    add("--data-path", help="another spelling of DIR")
    add("--download", action="store_true", help="download CIFAR if it is missing")
    if train:
        add("--train-split", default="train", help="folder of the training images; . for DIR itself")
    if val:
        add("--val-split", default="val", help="folder of the validation images; . for DIR itself")
    if labels:
        add("--label-column", default="labels", help="column of metadata.csv that lists the classes of an image")


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Options about images that training, validation and prediction share."""
    add = parser.add_argument_group("images").add_argument
    add("--img-size", type=positive_int, help="image height and width in pixels; default: the model's")
    add(
        "--input-size",
        type=positive_int,
        nargs=3,
        metavar=("3", "HEIGHT", "WIDTH"),
        help="instead of --img-size, for images that are not square",
    )
    add("--crop-pct", type=fraction, help="fraction of the resized image that the centre crop of evaluation keeps")
    add("--crop-mode", choices=("center", "squash", "border"), help="how evaluation crops")
    add("--interpolation", choices=INTERPOLATIONS, help="interpolation of resizing")
    add("--mean", type=float, nargs="+", help="mean of each channel, for images in [0, 1]")
    add("--std", type=float, nargs="+", help="standard deviation of each channel")
    add("-b", "--batch-size", "--b", type=positive_int, default=128, help="images per batch and process")
    add_loading_options(add)


def add_loading_options(add: Callable[..., Any]) -> None:
    """How images are read; ``add`` is the ``add_argument`` of a group."""
    add("-j", "--workers", type=non_negative_int, help="loading processes; default: one per core, up to 8")
    add_reading_options(add)


def add_reading_options(add: Callable[..., Any]) -> None:
    """What happens to files that cannot be read, or are too large; ``add`` is as above."""
    add(
        "--bad-images",
        choices=("error", "skip"),
        default="error",
        help="unreadable files: stop, or skip and count them; no other image takes their place",
    )
    add_max_pixels(add)


def add_max_pixels(add: Callable[..., Any]) -> None:
    """Which images are too large to be read."""
    limit = "largest image to read, in pixels; 0: no limit"
    add("--max-pixels", type=non_negative_int, default=MAX_PIXELS, help=limit)


def add_threshold(add: Callable[..., Any]) -> None:
    """The probability above which an image has a class; ``add`` is as above."""
    meaning = "with several classes an image: the probability from which it has a class"
    add("--threshold", type=probability, default=0.5, help=meaning)


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Where and in which precision to compute."""
    add = parser.add_argument_group("device").add_argument
    add("--device", help="cuda, cuda:1, cpu, ...; default: a GPU if there is one")
    add(
        "--amp",
        "--native-amp",
        "--apex-amp",
        action=argparse.BooleanOptionalAction,
        help="automatic mixed precision; evaluation defaults to what training used",
    )
    add("--amp-dtype", choices=("bfloat16", "float16"), default="bfloat16", help="data type of mixed precision")
    add("--channels-last", action="store_true", help="NHWC memory layout")
    add("--compile", "--torchcompile", action="store_true", help="torch.compile the model")


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """The option to look before a run."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the resolved configuration and the loss of the first 8 images; write nothing",
    )


def add_output_options(parser: argparse.ArgumentParser, output: str) -> Callable[..., Any]:
    """Where a run is written and when it is saved; returns the ``add_argument`` of the group."""
    add = parser.add_argument_group("output").add_argument
    add("--output", default=output, help="folder of all runs")
    add("--experiment", help="folder of this run, in --output; default: <model>-<data>, numbered")
    resume = "continue from a checkpoint; without a path, from the latest one of --experiment"
    add("--resume", nargs="?", const="auto", help=resume)
    add("--checkpoint-steps", type=non_negative_int, default=0, help="updates between saves; 0: at evaluations only")
    add("--log-interval", type=positive_int, default=50, help="updates between log lines")
    return add


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Which model it is, as the next positional argument or as ``--model``."""
    meaning = "the model, where the checkpoint does not say it"
    parser.add_argument("model", nargs="?", metavar="MODEL", help=meaning)
    parser.add_argument("--model", dest="model_name", metavar="MODEL", help="another spelling of MODEL")


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """Which model to evaluate."""
    add = parser.add_argument_group("model").add_argument
    add("--checkpoint", "--eval-checkpoint", "--eval_checkpoint", help="checkpoint file")
    add("--weights", choices=("auto", "ema", "raw"), default="auto", help="averaged or raw weights")
    add("--pretrained", action="store_true", help="released weights or timm's instead of a checkpoint")
    add("--model-kwargs", nargs="*", default={}, action=KeyValues, help="its arguments, for checkpoints from elsewhere")
    add("--num-classes", type=positive_int, help="outputs; default: the checkpoint's")
    parser.set_defaults(drop=None, drop_path=None)
