"""What ``--dry-run`` prints: the resolved configuration, and the loss of the first images."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vision.cli.run_files import to_yaml
from vision.data import ImageSet, create_eval_loader

__all__ = ["first_loss", "print_dry_run"]


@torch.inference_mode()
def first_loss(
    model: nn.Module,
    dataset: ImageSet,
    data_config: dict[str, Any],
    device: torch.device,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    count: int = 8,
) -> tuple[float, int]:
    """Cross-entropy of the first images, in evaluation mode, and their number."""
    images, targets = next(iter(create_eval_loader(dataset, data_config, count, device=device)))
    model.eval()
    with autocast():
        logits = model(images)
    return F.cross_entropy(logits.float(), targets).item(), len(images)


def print_dry_run(options: Mapping[str, Any], facts: Mapping[str, Any], loss: float, count: int) -> None:
    """Print options, what follows from them, and the loss.

    Args:
        options: The options as they were resolved.
        facts: Further lines.
        loss: The loss.
        count: Number of images.
    """
    print(to_yaml(options) + to_yaml(facts), end="")  # noqa: T201
    print(f"loss of the first {count} images: {loss:.6f}")  # noqa: T201
