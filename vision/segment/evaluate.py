"""Run a model over a set of images with annotations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from sot_base.errors import UsageError
from vision.cli.device import mixed_precision
from vision.segment.build import Segmenter
from vision.segment.dataset import normalize
from vision.segment.inference import Inference
from vision.segment.metrics import ConfusionMatrix

__all__ = ["as_trained", "evaluate", "first_loss", "inference_options"]


def evaluate(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    inference: Inference,
    confusion: ConfusionMatrix,
    images: dict[str, Any],
    memory_format: Any,
) -> int:
    """Predict every image at its own size and count its pixels, over all processes.

    Args:
        model: The model; it is in evaluation mode afterwards.
        loader: Gives images (1, 3, H, W), uint8, and class indices (1, H, W).
        inference: How to predict.
        confusion: Counts.
        images: ``mean`` and ``std``.
        memory_format: Layout of the images.

    Returns:
        The images of this process.
    """
    model.eval()
    count = 0
    shown = not dist.is_initialized() or dist.get_rank() == 0
    for pixels, classes in tqdm(loader, desc="evaluation", leave=False, disable=None if shown else True):
        if len(pixels):
            prepared = normalize(pixels, images["mean"], images["std"]).contiguous(memory_format=memory_format)
            confusion.update(inference(model, prepared).argmax(1), classes)
            count += 1
    confusion.reduce()
    return count


def first_loss(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    inference: Inference,
    images: dict[str, Any],
    ignore_index: int,
) -> float:
    """Cross-entropy of the pixels of the first image that can be read, see `evaluate`.

    Raises:
        UsageError: if none can be read.
    """
    pixels, classes = next(((pixels, classes) for pixels, classes in loader if len(pixels)), (None, None))
    if pixels is None:
        raise UsageError("no image can be read: --val-split; mend the files")
    probabilities = inference(model, normalize(pixels, images["mean"], images["std"]))
    return F.nll_loss(probabilities.clamp_min(1e-30).log(), classes, ignore_index=ignore_index).item()


def as_trained(args: Any, trained: Segmenter, device: torch.device) -> Inference:
    """How the options ask for inference; what they leave open is as in the model's training, precision included.

    Args:
        args: The options of `vision.segment.options.add_inference_options` and `vision.cli.options.add_device_options`.
        trained: The model.
        device: Where to compute.
    """
    amp = trained.options.get("amp") if args.amp is None else args.amp
    dtype = args.amp_dtype or trained.options.get("amp_dtype", "bfloat16")
    autocast, _ = mixed_precision(device, amp, dtype)
    return inference_options(args, trained.window, trained.images["short_side"], autocast)


def inference_options(args: Any, crop_size: int, short_side: int, autocast: Any) -> Inference:
    """How the options ask for inference.

    Args:
        args: The options of `vision.segment.options.add_inference_options`.
        crop_size: Of training, for windows where the options give none.
        short_side: Of training, where the options give none.
        autocast: Gives the context of mixed precision.
    """
    window: int = args.crop_size or crop_size
    stride = args.stride or max(1, window * 2 // 3)
    short_side = short_side if args.short_side is None else args.short_side
    return Inference(
        window if args.slide else None, min(stride, window), short_side, tuple(args.multi_scale), args.flip, autocast
    )
