"""Where a run of segmentation stands, and its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError

__all__ = ["RunState", "check_same_run", "save_checkpoint"]


@dataclass
class RunState:
    """Where a run stands.

    Attributes:
        step: Updates done.
        loss_sum: Sum of the steps' losses since the last validation.
        loss_steps: Their number.
        bad_images: Images left out since the last validation.
        best: Best mIoU so far, in percent; -1 before the first.
        history: A row of numbers for every validation.
    """

    step: int = 0
    loss_sum: float = 0.0
    loss_steps: int = 0
    bad_images: int = 0
    best: float = -1.0
    history: list[dict[str, float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """In plain values."""
        return asdict(self)


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint in one move.

    Raises:
        UsageError: if the disk is full.
    """
    with atomic_file(path) as temporary:
        try:
            torch.save(dict(content), temporary)
        except RuntimeError as error:  # torch's writer says no more than that a write failed
            raise UsageError(f"cannot write the checkpoint: {path}; make room on the disk") from error


def check_same_run(checkpoint: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    """Make sure that a run can go on from a checkpoint.

    Args:
        checkpoint: What the file holds.
        described: What the options ask for, as the run would save it.

    Raises:
        UsageError: naming what is different.
    """
    if not {"segmenter", "data", "options", "state"} <= checkpoint.keys():
        raise UsageError(
            "--resume goes on with the last.pth.tar of a run of vision/segment/train.py; "
            "--initial-checkpoint starts from other weights"
        )
    pairs = [(key, described["segmenter"][key], checkpoint["segmenter"].get(key)) for key in described["segmenter"]]
    pairs += [(key, described["data"][key], checkpoint["data"].get(key)) for key in described["data"]]
    pairs += [("images_per_step", described["images_per_step"], checkpoint["images_per_step"])]
    pairs += [(key, described["options"][key], checkpoint["options"][key]) for key in ("opt", "layer_decay")]
    for key, new, old in pairs:
        if _plain(new) != _plain(old):
            raise UsageError(
                f"--resume: the checkpoint has another {key}, {old} instead of {new}; give the same options"
            )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
