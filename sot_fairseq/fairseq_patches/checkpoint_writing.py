"""Checkpoints are complete and finite: fairseq copies them in place, and writes one even of a failed training."""

from __future__ import annotations

import os
import shutil
from typing import Any

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer

from sot_base.atomic import atomic_file
from sot_base.torch_files import save_torch
from sot_fairseq.fairseq_patches.divergence import check_weights

__all__ = ["write_whole_checkpoints"]

CRASH = "crash.pt"


def write_whole_checkpoints() -> None:
    """Write every checkpoint under a temporary name that becomes its own in the end.

    fairseq does so for the first file of an update, but copies it to ``checkpoint_best.pt`` and ``checkpoint_last.pt``
    byte by byte: a training that is killed then leaves half of one. It tries three times to write to a full disk, and
    leaves what it has written. Its ``crash.pt``, written when a step fails, cannot be gone on from, and often holds
    weights that are not finite.
    """
    if getattr(checkpoint_utils.torch_persistent_save, "is_whole", False):
        return
    stock_save = checkpoint_utils.save_checkpoint
    stock_trainer_save = Trainer.save_checkpoint

    def torch_persistent_save(obj: Any, filename: str, async_write: bool = False) -> None:
        save_torch(obj, filename)

    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> str:
        with atomic_file(dst_path) as temporary:
            shutil.copyfile(src_path, temporary)
        return dst_path

    def save_checkpoint(cfg: Any, trainer: Any, epoch_itr: Any, val_loss: float | None) -> str | None:
        check_weights(trainer)
        path: str | None = stock_save(cfg, trainer, epoch_itr, val_loss)
        trainer.saved_updates = trainer.get_num_updates()
        return path

    def trainer_save_checkpoint(self: Any, filename: str, extra_state: dict[str, Any]) -> str | None:
        if os.path.basename(filename) == CRASH:
            return None
        path: str | None = stock_trainer_save(self, filename, extra_state)
        return path

    torch_persistent_save.is_whole = True  # type: ignore[attr-defined]
    checkpoint_utils.torch_persistent_save = torch_persistent_save
    checkpoint_utils.save_checkpoint = save_checkpoint
    PathManager.copy = staticmethod(copy)
    Trainer.save_checkpoint = trainer_save_checkpoint
