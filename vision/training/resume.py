"""Continue an interrupted run, bit for bit as if it had not been interrupted.

Why a resumed run is the same:

- a checkpoint holds all that training changes: weights and their averages, the optimizer's state, the loss scaler, and
  the progress (epoch, step, updates, the sums of the epoch's losses, the rows of the log);
- no random state has to be restored: every random number is a function of the seed and of the place in the run
  (`vision.training.seeding`), and the sampler starts an epoch at any position;
- the learning rate is a function of the place in the run, of which batches may change (`vision.training.schedule`);
- a checkpoint is written between two updates, whole or not at all (`vision.training.saver`);
- model, data and batch must be the same; only what cannot change the past may differ, such as the learning rate.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from timm.models import clean_state_dict

from sot_base.errors import UsageError
from sot_base.optimizer_state import check_optimizer_state
from vision.models.weights.load import load_state
from vision.training.task import Task

__all__ = ["require_same", "require_whole", "restore"]

PARTS = ("options", "state_dict", "optimizer", "progress", "saver", "images_per_step")


def require_whole(checkpoint: Mapping[str, Any], where: object) -> None:
    """Make sure that a checkpoint has what every run needs to continue.

    Raises:
        UsageError: naming what is missing.
    """
    missing = [part for part in PARTS if part not in checkpoint]
    if missing:
        raise UsageError(f"no {', '.join(missing)} in the checkpoint: {where}; resume from another one")


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
                "give the same options, or --initial-checkpoint to start a new run from its weights"
            )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def restore(
    checkpoint: Mapping[str, Any], task: Task, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    """Load what training changes from a checkpoint; the optimizer's settings stay those of the options.

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
    _restore_optimizer(optimizer, checkpoint["optimizer"])
    if checkpoint.get("amp_scaler"):  # empty without a scaler
        try:
            scaler.load_state_dict(checkpoint["amp_scaler"])
        except (KeyError, RuntimeError, TypeError) as error:
            raise UsageError(f"--resume: the checkpoint has no whole loss scaler ({error}); leave out --amp") from error


def _restore_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load an optimizer's state; its settings, such as learning rate, momentum and betas, are those of the options."""
    settings = _settings(optimizer) | {"lr_scale"}
    given = [{name: value for name, value in group.items() if name in settings} for group in optimizer.param_groups]
    try:
        check_optimizer_state(optimizer.param_groups, saved)
        _check_switches(optimizer, saved)
        optimizer.load_state_dict(saved)
    except Exception as error:  # torch and timm meet almost any in a state that is none
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"--resume: the checkpoint has another optimizer ({reason}); give the same options") from error
    for group, values in zip(optimizer.param_groups, given, strict=True):
        group.update(values, initial_lr=values["lr"])


def _settings(optimizer: torch.optim.Optimizer) -> set[str]:
    """The names of an optimizer's arguments; other values of a group are state, such as a number of steps."""
    wrapped = getattr(optimizer, "_base_optimizer", optimizer)  # timm's Lookahead
    return {name for kind in (type(optimizer), type(wrapped)) for name in inspect.signature(kind).parameters} - {
        "params"
    }


def _check_switches(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Make sure that settings which decide what an optimizer keeps of its parameters are the same.

    Raises:
        ValueError: naming one that is not.
    """
    for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for name in own.keys() & saved.keys():
            switched = isinstance(own[name], bool) and own[name] is not saved[name]
            if switched or (name == "momentum" and bool(own[name]) != bool(saved[name])):
                raise ValueError(f"{name} is {str(saved[name])[:60]}")
