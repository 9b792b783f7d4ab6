"""Continue an interrupted run, bit for bit as if it had not been interrupted.

Why a resumed run is the same:

- a checkpoint holds all that training changes: weights and their averages, the optimizer's state, the loss scaler, and
  the progress (epoch, step, updates, the sums of the epoch's losses, the rows of the log);
- no random state has to be restored: every random number is a function of the seed and of the place in the run
  (`vision.training.seeding`), and the sampler starts an epoch at any position;
- the learning rate is a function of the number of updates (`vision.training.schedule`);
- a checkpoint is written between two updates, whole or not at all (`vision.training.saver`);
- model, data and batch must be the same; only what cannot change the past may differ, such as the learning rate.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from timm.models import clean_state_dict

from sot_base.errors import UsageError
from sot_base.optimizer_state import check_optimizer_state
from vision.cli.run_files import run_name
from vision.models.weights.load import load_state
from vision.models.weights.read import read_checkpoint
from vision.training.task import Task

__all__ = ["find_latest", "find_resume", "require_same", "restore"]

_GIVEN = ("lr", "lr_scale", "weight_decay")  # of the optimizer's groups: what the options say, not the checkpoint


def find_resume(args: Namespace) -> Path | None:
    """The checkpoint file that ``--resume`` names; without a path, the latest one in the folder of the run."""
    if args.resume == "auto":
        return find_latest(Path(args.output) / (args.experiment or run_name(args)))
    return Path(args.resume) if args.resume else None


def find_latest(folder: str | os.PathLike[str]) -> Path:
    """The checkpoint in a run's folder that has seen the most updates; of the files only the plain values are read.

    Raises:
        UsageError: if there is none.
    """
    files = [*Path(folder).glob("last.pth.tar"), *Path(folder).glob("recovery-*.pth.tar")]
    if not files:
        raise UsageError(f"nothing to resume: no checkpoint in {Path(folder).resolve()}; leave out --resume")
    if len(files) == 1:
        return files[0]
    return max(files, key=lambda file: read_checkpoint(file, plain_values=True).get("progress", {}).get("updates", 0))


def require_same(pairs: Iterable[tuple[str, Any, Any]]) -> None:
    """Make sure that a run can continue from a checkpoint.

    Args:
        pairs: What it is, as the options say it, and as the checkpoint has it.

    Raises:
        UsageError: naming the first that differs.
    """
    for key, new, old in pairs:
        if _plain(new) != _plain(old):
            raise UsageError(
                f"--resume: the checkpoint has another {key}, {_short(old)} instead of {_short(new)}; "
                "give the same options, or --initial-checkpoint to start anew from its weights"
            )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def restore(
    checkpoint: Mapping[str, Any], task: Task, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    """Load what training changes from a checkpoint; learning rate and weight decay stay those of the options.

    Args:
        checkpoint: The content of the file.
        task: Model and averages, not yet wrapped.
        optimizer: The optimizer.
        scaler: The loss scaler.

    Raises:
        UsageError: if the checkpoint lacks something, or is of another optimizer.
    """
    load_state(task.get_trainable_module(), clean_state_dict(checkpoint["state_dict"]), "--resume")
    if task.has_ema():
        if "state_dict_ema" not in checkpoint:
            raise UsageError("--resume: the checkpoint has no averaged weights; leave out --model-ema")
        try:
            task.load_checkpoint_state(clean_state_dict(checkpoint["state_dict_ema"]), ema=True)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise UsageError(
                f"--resume: the averaged weights do not fit the model ({reason}); give its options"
            ) from error
    given = [{name: group[name] for name in _GIVEN if name in group} for group in optimizer.param_groups]
    try:
        check_optimizer_state(optimizer.param_groups, checkpoint["optimizer"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    except Exception as error:  # torch and timm meet almost any in a state that is none
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"--resume: the checkpoint has another optimizer ({reason}); give the same options") from error
    for group, values in zip(optimizer.param_groups, given, strict=True):
        group.update(values, initial_lr=values["lr"])
    if checkpoint.get("amp_scaler"):  # empty without a scaler
        try:
            scaler.load_state_dict(checkpoint["amp_scaler"])
        except (KeyError, RuntimeError, TypeError) as error:
            raise UsageError(f"--resume: the checkpoint has no whole loss scaler ({error}); leave out --amp") from error
