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
    notes: Mapping[str, str] | None = None,
) -> None:
    """Print options, what follows from them, and the loss of a batch; on the first process alone.

    Args:
        args: The resolved options.
        facts: What follows from them.
        batch: The first images, with their targets.
        predict: From images to the model's outputs in evaluation mode.
        criterion: The loss of outputs and targets.
        notes: Comments on options, by their names.
    """
    images, targets = batch
    loss = criterion(predict(images), targets).item()
    if args.rank == 0:
        print(_with_notes(plain_options(args), notes or {}) + to_yaml(facts), end="")  # noqa: T201
        print(f"loss of the first {len(images)} images: {loss:.6f}")  # noqa: T201


def _with_notes(options: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """Options as YAML, the notes as comments in one column."""
    texts = {name: to_yaml({name: value}).rstrip("\n").split("\n") for name, value in options.items()}
    width = max((len(texts[name][0]) for name in notes if name in texts), default=0)
    for name, note in notes.items():
        if texts.get(name, [""])[0].startswith(name):
            texts[name][0] = f"{texts[name][0]:{width}}  # {note}"
    return "".join(f"{line}\n" for lines in texts.values() for line in lines if line != "{}")
