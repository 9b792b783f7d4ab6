"""What ``--dry-run`` prints: the resolved configuration, and the loss of the first images."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vision.cli.resolve_options import plain_options
from vision.cli.run_files import to_yaml
from vision.evaluation.evaluate import Predict

__all__ = ["dry_run"]


@torch.inference_mode()
def dry_run(
    args: Namespace,
    facts: Mapping[str, Any],
    batch: tuple[Tensor, Tensor],
    predict: Predict,
    criterion: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Print options, what follows from them, and the loss of a batch; on the first process alone.

    Args:
        args: The resolved options.
        facts: What follows from them.
        batch: The first images, with their targets.
        predict: From images to the model's outputs in evaluation mode.
        criterion: The loss of outputs and targets.
    """
    images, targets = batch
    loss = criterion(predict(images), targets).item()
    if args.rank == 0:
        print(to_yaml(plain_options(args)) + to_yaml(facts), end="")  # noqa: T201
        print(f"loss of the first {len(images)} images: {loss:.6f}")  # noqa: T201
