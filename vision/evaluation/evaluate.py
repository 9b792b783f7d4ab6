"""Run a model over the images of a loader."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from vision.cli.device import Autocast

__all__ = ["Predict", "create_predict", "evaluate", "progress_bar"]

Predict = Callable[[Tensor], Tensor]


def create_predict(
    model: nn.Module,
    autocast: Autocast = contextlib.nullcontext,
    memory_format: torch.memory_format = torch.contiguous_format,
    compiled: bool = False,
) -> Predict:
    """Put a model into evaluation mode and return a function from images (B, C, H, W) to its logits in float32.

    Args:
        model: The model.
        autocast: The context of mixed precision.
        memory_format: Layout of the images.
        compiled: Whether to compile the model with ``torch.compile``.
    """
    model = torch.compile(model.eval()) if compiled else model.eval()

    @torch.inference_mode()
    def predict(images: Tensor) -> Tensor:
        with autocast():
            output = model(images.contiguous(memory_format=memory_format))
        return output.float()

    return predict


def evaluate(
    predict: Predict, loader: Iterable[tuple[Tensor, Tensor]], *observers: Callable[[Tensor, Tensor], object]
) -> None:
    """Predict all images and show outputs and targets to observers, batch by batch in the loader's order.

    Args:
        predict: From a batch of images to outputs.
        loader: Yields images and targets; empty batches are skipped.
        *observers: Called with outputs and targets.
    """
    for images, targets in progress_bar(loader, "evaluation"):
        if len(images):
            output = predict(images)
            for observe in observers:
                observe(output, targets)


def progress_bar(loader: Iterable[Any], what: str) -> Iterator[Any]:
    """Iterate with a progress bar, on the first process and in a terminal alone."""
    first = not dist.is_initialized() or dist.get_rank() == 0
    return iter(tqdm(loader, desc=what, leave=False, disable=None if first else True))
