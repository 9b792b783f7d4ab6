"""Options that follow from others, and the folder of a run."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path
from typing import Any

from timm.utils import get_outdir

from sot_base.errors import UsageError
from vision.cli.device import default_workers
from vision.models.weights.read import find_latest

__all__ = ["choose_folder", "find_resume", "plain_options", "resolve_options"]

_RUNTIME = ("rank", "local_rank", "world_size", "distributed")


def resolve_options(args: Namespace) -> None:
    """Fill in the learning rate, the warm-up and the loading processes.

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
            f"the warm-up of {args.warmup_epochs:g} epochs leaves none of {args.epochs}; shorten --warmup-epochs"
        )
    _check_ranges(args)
    args.workers = default_workers(args.workers, args.world_size)


def _check_ranges(args: Namespace) -> None:
    for name, upper in (("scale", 1.0), ("ratio", math.inf), ("cutmix_minmax", 1.0)):
        low, high = getattr(args, name) or (0.5, 1.0)
        if not 0 < low <= high <= upper or (low == high and name == "cutmix_minmax"):
            limit = "" if math.isinf(upper) else f" up to {upper:g}"
            raise UsageError(
                f"--{name.replace('_', '-')} wants a range of positive numbers{limit}, not {low:g} to {high:g}; mend it"
            )


def plain_options(args: Namespace) -> dict[str, Any]:
    """The options without what belongs to the present machine."""
    return {name: value for name, value in vars(args).items() if name not in _RUNTIME}


def data_name(args: Namespace) -> str:
    """What to call the data in a folder's name."""
    return args.dataset if args.data_dir is None else Path(args.data_dir).resolve().stem


def find_resume(args: Namespace) -> Path | None:
    """The checkpoint to go on from, if that is asked for."""
    if args.resume == "auto":
        return find_latest(Path(args.output) / (args.experiment or f"{args.model}-{data_name(args)}"))
    return Path(args.resume) if args.resume else None


def choose_folder(args: Namespace, name: str | None = None) -> Path:
    """Make the folder of a run: that of the resumed checkpoint, the one asked for, or a new one.

    Args:
        args: The options.
        name: What to call a new one; None: after model and data.

    Raises:
        UsageError: if the folder that is asked for has another run's checkpoint, or cannot be made.
    """
    resumed = find_resume(args)
    try:
        if args.experiment:
            folder = Path(get_outdir(args.output, args.experiment))
            if resumed is None and (folder / "last.pth.tar").exists():
                raise UsageError(f"a run is in {folder} already; add --resume, or choose another --experiment")
            return folder
        if resumed is not None:
            return resumed.parent
        return Path(get_outdir(args.output, name or f"{args.model}-{data_name(args)}", inc=True))
    except OSError as error:
        raise UsageError(
            f"cannot make the output folder: {args.output} ({error.strerror}); choose another --output"
        ) from error
