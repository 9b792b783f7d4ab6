"""The checkpoint that a restarted training resumes from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from sot_base.errors import UsageError
from sot_fairseq.fairseq_patches.safe_loading import read_checked_checkpoint

__all__ = ["LAST", "Restart", "find_restart", "newest_checkpoint"]

LAST = "checkpoint_last.pt"
NAMES = re.compile(r"checkpoint(_last|_best|\d+|_\d+_\d+|\.best_.+)\.pt")  # those that fairseq writes


class Restart(NamedTuple):
    """An intact checkpoint.

    Attributes:
        path: The file.
        epoch: The epoch to continue with.
        updates: Updates done.
    """

    path: Path
    epoch: int
    updates: int

    def __str__(self) -> str:
        return f"{self.path.absolute()} (epoch {self.epoch} @ {self.updates} updates)"


def find_restart(save_dir: str | os.PathLike[str]) -> tuple[Restart | None, str]:
    """Find the checkpoint to resume from: ``checkpoint_last.pt``, or else the newest intact one.

    Returns:
        The checkpoint, or None if the folder has none at all; and why it is not ``checkpoint_last.pt``, or "".

    Raises:
        UsageError: If ``checkpoint_last.pt`` is damaged and no other checkpoint is whole.
    """
    last = Path(save_dir) / LAST
    reason = f"there is no {LAST}"
    if last.exists():
        try:
            return _read(last), ""
        except UsageError as error:
            reason = str(error)
    newest = newest_checkpoint(save_dir)
    if newest is None and last.exists():
        raise UsageError(f"cannot resume: {reason}, or remove it to start from scratch")
    return newest, reason


def newest_checkpoint(save_dir: str | os.PathLike[str]) -> Restart | None:
    """The intact checkpoint with the most updates in a folder; None if there is none."""
    whole = []
    for path in sorted(Path(save_dir).glob("checkpoint*.pt")):
        if NAMES.fullmatch(path.name):
            try:
                whole.append(_read(path))
            except UsageError:
                continue
    return max(whole, key=lambda found: (found.updates, found.path.name == LAST), default=None)


def _read(path: Path) -> Restart:
    state = read_checked_checkpoint(path)
    try:
        updates = int(state["optimizer_history"][-1]["num_updates"])
        epoch = int(state["extra_state"]["train_iterator"]["epoch"])
    except (KeyError, IndexError, TypeError, ValueError):
        raise UsageError(f"not a checkpoint of a training: {path.absolute()}; get or save it again") from None
    return Restart(path, epoch, updates)
