"""Options that follow from others."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

from sot_base.class_weights import parse_class_weights
from sot_base.errors import UsageError
from vision.cli.device import default_workers
from vision.cli.recipes import TOKEN_LABELING

__all__ = ["plain_options", "resolve_options"]

_RUNTIME = ("rank", "local_rank", "world_size", "distributed")


def resolve_options(args: Namespace) -> None:
    """Set the learning rate, the warm-up and the weights of token labeling's losses.

    Raises:
        UsageError: for options that contradict each other.
    """
    if args.lr is not None and args.lr_base is not None:
        raise UsageError(
            "--lr and --lr-base say the same: --lr is used as it is, --lr-base grows with the batch; give one"
        )
    if args.lr is None:
        args.lr = 1e-3
        if args.lr_base is not None:
            growth = args.batch_size * args.world_size * args.grad_accum_steps / args.lr_base_size
            args.lr = args.lr_base * (growth**0.5 if args.lr_base_scale == "sqrt" else growth)
    args.warmup_lr, args.min_lr = min(args.warmup_lr, args.lr), min(args.min_lr, args.lr)
    if args.warmup_epochs is None:
        args.warmup_epochs = min(5.0, args.epochs / 10)
    if args.warmup_epochs >= args.epochs:
        raise UsageError(
            f"the warm-up of {args.warmup_epochs:g} epochs uses up all {args.epochs}; shorten --warmup-epochs"
        )
    if args.freeze_backbone and args.train_layers is not None:
        raise UsageError("--freeze-backbone is --train-layers 0: the command line; leave one out")
    if args.strict_head and not args.initial_checkpoint:
        raise UsageError("no checkpoint with a head: --strict-head; give --initial-checkpoint, or leave it out")
    _check_ranges(args)
    _check_classes(args)
    _resolve_token_labeling(args)
    args.workers = default_workers(args.workers, args.world_size)


def _check_ranges(args: Namespace) -> None:
    for name, upper in (("scale", 1.0), ("ratio", math.inf), ("cutmix_minmax", 1.0)):
        low, high = getattr(args, name) or (0.5, 1.0)
        if not 0 < low <= high <= upper or (low == high and name == "cutmix_minmax"):
            limit = "" if math.isinf(upper) else f" up to {upper:g}"
            raise UsageError(
                f"--{name.replace('_', '-')} takes a range of positive numbers{limit}, not {low:g} to {high:g}; "
                "correct it"
            )


def _check_classes(args: Namespace) -> None:
    if args.class_weights is not None:
        parse_class_weights(args.class_weights)
    if args.multi_label and args.token_label:
        raise UsageError("label maps name one class for an image: --token-label; leave it out, or --multi-label")
    if args.multi_label and args.dataset not in (None, "folder"):
        raise UsageError(f"images of one class each: --dataset {args.dataset}; leave it out, or --multi-label")


def _resolve_token_labeling(args: Namespace) -> None:
    ours = {"return_dense", "mix_token"} & args.model_kwargs.keys()
    if ours:
        raise UsageError(
            f"--model-kwargs {min(ours)} is for token labeling: give --token-label, and --mix-token or "
            "--no-mix-token, instead"
        )
    if not args.token_label:
        values = {name.replace("_", "-"): getattr(args, name) for name in TOKEN_LABELING}
        given = [name for name, value in values.items() if value is not None and value is not False]
        given += ["no-mix-token"] if args.mix_token is False else []
        if given:
            raise UsageError(f"--{given[0]} is for token labeling: add --token-label, or leave it out")
        return
    args.dense_weight = 0.5 if args.dense_weight is None else args.dense_weight
    args.cls_weight = 1.0 if args.cls_weight is None else args.cls_weight
    args.mix_token = args.mix_token is not False
    if not args.dense_weight and not args.cls_weight:
        raise UsageError("--dense-weight 0 and --cls-weight 0 leave nothing to learn; give one of them")
    if args.token_label_data is None and args.dense_weight:
        raise UsageError(
            "--token-label has no label maps; give them as --token-label-data LABELS, or --dense-weight 0 to learn the "
            "data's classes alone"
        )
    if args.token_label_data is None and args.ground_truth:
        raise UsageError("--ground-truth mixes the data's classes into label maps; give --token-label-data LABELS")


def plain_options(args: Namespace) -> dict[str, Any]:
    """The options without those of the present process, such as its rank."""
    return {name: value for name, value in vars(args).items() if name not in _RUNTIME}
