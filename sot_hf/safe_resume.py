"""transformers' Trainer, but a damaged or hostile file in a checkpoint gives one line instead of a traceback."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from transformers import Trainer
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from sot_base.errors import UsageError
from sot_base.optimizer_state import check_like, check_optimizer_state
from sot_base.safe_checkpoint import read_checkpoint

__all__ = ["SafeResumeTrainer"]

# What numpy's random state is saved with; the first is the function that makes an array again.
NUMPY_STATE = (np.empty(0).__reduce__()[0], np.ndarray, np.dtype, type(np.dtype(np.uint32)))


class SafeResumeTrainer(Trainer):
    """Checks the states of optimizer, schedule and random numbers before they are loaded.

    Transformers reads them without running their code, but then trusts them: a schedule's state, for one, may
    replace its functions by texts.
    """

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            with _named(checkpoint, OPTIMIZER_NAME):
                path = Path(checkpoint, OPTIMIZER_NAME)
                if path.is_file():  # not with FSDP or DeepSpeed, which write it in parts
                    check_optimizer_state(self.optimizer.param_groups, read_checkpoint(path))
            with _named(checkpoint, SCHEDULER_NAME):
                path = Path(checkpoint, SCHEDULER_NAME)
                if path.is_file():
                    check_like(self.lr_scheduler.state_dict(), read_checkpoint(path), "")
        with _named(checkpoint, "the optimizer's state"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _named(checkpoint, "rng_state"):
            suffix = f"_{self.args.process_index}" if self.args.world_size > 1 else ""
            path = Path(checkpoint or "", f"rng_state{suffix}.pth")
            if path.is_file():
                read_checkpoint(path, NUMPY_STATE)
            super()._load_rng_state(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with _named(checkpoint, "scaler.pt"):
            super()._load_scaler(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        with _named(resume_from_checkpoint, "the weights"):
            super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)


@contextlib.contextmanager
def _named(checkpoint: str | None, what: str) -> Iterator[None]:
    """Name the part of a checkpoint that cannot be loaded."""
    try:
        yield
    except Exception as error:  # torch, numpy and Python each meet their own in a state that is none
        if checkpoint is None:
            raise
        reason = " ".join(str(error).split())[:200]
        raise UsageError(
            f"cannot resume, {what} is damaged or of another training ({reason}): {os.path.abspath(checkpoint)}; "
            "give another one, or leave out --resume_from_checkpoint"
        ) from error
