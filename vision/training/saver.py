"""Writing checkpoints: each file appears whole or not at all, and a full disk is one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timm.utils import CheckpointSaver

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError

__all__ = ["Saver", "StepSaver", "save_checkpoint"]

_FOR_TRAINING = ("optimizer", "amp_scaler", "progress", "saver")


def save_checkpoint(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a checkpoint in one move.

    Raises:
        UsageError: if the disk is full.
    """
    with atomic_file(path) as temporary:
        try:
            torch.save(dict(content), temporary)
        except RuntimeError as error:  # torch's writer says no more than that a write failed
            raise UsageError(f"cannot write the checkpoint: {Path(path)}; make room on the disk") from error


class Saver(CheckpointSaver):
    """`timm.utils.CheckpointSaver` for runs in epochs: the last epoch, the best ones, and saves within an epoch."""

    def save_epoch(self, epoch: int, metric: float, metrics: Mapping[str, float]) -> None:
        """Save the end of an epoch; ``metric`` of its ``metrics`` says how good it is."""
        self.save_checkpoint(epoch, metric)

    def save_within_epoch(self, epoch: int, updates: int) -> None:
        """Save between two updates, in a file of its own; the one before the last of these files is removed."""
        self.save_recovery(epoch, updates)

    def content(self, epoch: int, metric: float | None = None) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "epoch": epoch,
            "version": 2,  # as timm counts: the epoch is the one that has ended
            "optimizer": self.optimizer.state_dict(),
            **self.task.get_checkpoint_state(unwrap_fn=self.unwrap_fn),
            **self.task.get_checkpoint_state(ema=True, unwrap_fn=self.unwrap_fn),
            **({} if metric is None else {"metric": metric}),
            "saver": self.state_dict(epoch, metric),
        }

    def _save(self, save_path: str, epoch: int, metric: float | None = None) -> None:
        save_checkpoint(save_path, self.content(epoch, metric))

    def _replace(self, src: str, dst: str) -> None:
        os.replace(src, dst)

    def _duplicate(self, src: str, dst: str) -> None:
        with atomic_file(dst) as temporary:
            temporary.unlink()
            try:
                os.link(src, temporary)
            except OSError:  # a file system without links
                shutil.copy2(src, temporary)


class StepSaver(Saver):
    """For runs in steps: ``last.pth.tar``, and ``model_best.pth.tar`` without what only training needs."""

    def save_epoch(self, epoch: int, metric: float, metrics: Mapping[str, float]) -> None:
        if self.best_metric is None or metric > self.best_metric:
            self.best_metric, self.best_epoch = metric, epoch
            content = self.content(epoch)
            best = {"metrics": dict(metrics), "step": content["progress"]["updates"]}
            best |= {key: value for key, value in content.items() if key not in _FOR_TRAINING}
            self._write("model_best", best)
        self._write("last", self.content(epoch))

    def save_within_epoch(self, epoch: int, updates: int) -> None:
        self._write("last", self.content(epoch))

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        save_checkpoint(Path(self.checkpoint_dir) / f"{name}.pth.tar", content)
