"""Writing checkpoints: each file appears whole or not at all, and a kill at any moment costs nothing but time.

The last checkpoint of a run takes the place of the one before as the last step of a save. A run that was killed before
resumes from the one before, and writes the same best checkpoints once more.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timm.utils import CheckpointSaver

from sot_base.atomic import atomic_file
from sot_base.torch_files import save_torch

__all__ = ["Saver", "StepSaver", "save_checkpoint"]

_FOR_TRAINING = ("optimizer", "amp_scaler", "progress", "saver")


def save_checkpoint(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a checkpoint in one move.

    Raises:
        OSError: naming the file if it cannot be written, such as on a full disk.
    """
    save_torch(dict(content), path)


class Saver(CheckpointSaver):
    """`timm.utils.CheckpointSaver` for runs in epochs: the last epoch, the best ones, and saves within an epoch."""

    def save_epoch(self, epoch: int, metric: float, metrics: Mapping[str, float], **entries: Any) -> None:
        """Save the end of an epoch.

        Args:
            epoch: Which one.
            metric: How good it is; larger is better.
            metrics: All that was measured.
            **entries: What else the checkpoint says of it.
        """
        kept = self._file(f"checkpoint-{epoch}")
        ranked = sorted([*self.checkpoint_files, (str(kept), metric)], key=lambda file: -file[1])  # ties: the earlier
        history, left_out = ranked[: self.max_history], ranked[self.max_history :]
        is_best = self.best_metric is None or metric > self.best_metric
        if is_best:
            self.best_metric, self.best_epoch = metric, epoch
        self.checkpoint_files = history
        with atomic_file(self._file("last")) as temporary:
            save_checkpoint(temporary, {**self.content(epoch, metric), **entries})
            if (str(kept), metric) in history:
                self._duplicate(temporary, kept)
            if is_best:
                self._duplicate(temporary, self._file("model_best"))
            for name, _ in left_out:
                Path(name).unlink(missing_ok=True)
        self.remove_recoveries()

    def save_within_epoch(self, epoch: int, updates: int) -> Path:
        """Save between two updates, in a file of its own, which takes the place of the one before it."""
        path = self._file(f"recovery-{epoch}-{updates}")
        save_checkpoint(path, self.content(epoch))
        self.remove_recoveries(but=path)
        return path

    def remove_recoveries(self, but: Path | None = None, updates: int | None = None) -> None:
        """Remove saves within an epoch, which a newer checkpoint replaces.

        Args:
            but: One to keep.
            updates: Keep those of more updates; None: of any.
        """
        for path in Path(self.checkpoint_dir).glob("recovery-*-*.pth.tar"):
            number = re.fullmatch(r"recovery-\d+-(\d+)\.pth\.tar", path.name)
            if number and path != but and (updates is None or int(number[1]) <= updates):
                path.unlink(missing_ok=True)

    def take_over(self, folder: Path) -> None:
        """Let a run that continues in another folder find its best checkpoint there."""
        best, here = folder / self._file("model_best").name, self._file("model_best")
        if best.is_file() and not here.exists():
            self._duplicate(best, here)

    def content(self, epoch: int, metric: float | None = None) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "epoch": epoch,
            "version": 2,  # as timm counts: the epoch is the one that has ended
            "optimizer": self.optimizer.state_dict(),
            **self.task.get_checkpoint_state(unwrap_fn=self.unwrap_fn),
            **self.task.get_checkpoint_state(ema=True, unwrap_fn=self.unwrap_fn),
            **({} if metric is None else {"metric": metric}),
            "saver": self.state_dict(),
        }

    def _file(self, name: str) -> Path:
        return Path(self.checkpoint_dir) / f"{name}{self.extension}"

    def _duplicate(self, src: Path, dst: Path) -> None:
        with atomic_file(dst) as temporary:
            temporary.unlink()
            try:
                os.link(src, temporary)
            except OSError:  # a file system without links
                shutil.copy2(src, temporary)


class StepSaver(Saver):
    """For runs in steps: ``last.pth.tar``, and ``model_best.pth.tar`` without what only training needs."""

    def save_epoch(self, epoch: int, metric: float, metrics: Mapping[str, float], **entries: Any) -> None:
        if self.best_metric is None or metric > self.best_metric:
            self.best_metric, self.best_epoch = metric, epoch
            content = self.content(epoch)
            best = {"metrics": dict(metrics), "step": content["progress"]["updates"]}
            best |= {key: value for key, value in content.items() if key not in _FOR_TRAINING}
            save_checkpoint(self._file("model_best"), best)
        save_checkpoint(self._file("last"), self.content(epoch))

    def save_within_epoch(self, epoch: int, updates: int) -> Path:
        path = self._file("last")
        save_checkpoint(path, self.content(epoch))
        return path
