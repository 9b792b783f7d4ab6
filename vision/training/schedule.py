"""The learning rate over a run: timm's schedules, in updates."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from timm.scheduler import create_scheduler_v2, scheduler_kwargs
from timm.scheduler.scheduler import Scheduler

__all__ = ["create_schedule", "current_lr", "epoch_schedule", "step_schedule"]


def epoch_schedule(args: Namespace) -> dict[str, Any]:
    """What the options of a run in epochs say of its schedule, as arguments of `create_schedule`."""
    return scheduler_kwargs(args)


def step_schedule(args: Namespace) -> dict[str, Any]:
    """What the options of a run in steps say of its schedule, as arguments of `create_schedule`."""
    return {
        "sched": args.sched,
        "num_epochs": args.steps,
        "warmup_epochs": args.warmup_steps,
        "warmup_lr": args.lr * 1e-6,
        "min_lr": args.min_lr,
        "decay_rate": args.poly_power,
    }


def create_schedule(optimizer: torch.optim.Optimizer, updates_per_epoch: int, **options: Any) -> Scheduler:
    """Timm's scheduler, advanced by ``step_update`` after each update.

    Args:
        optimizer: Its groups may have an ``lr_scale``, which the schedule keeps.
        updates_per_epoch: Updates of what ``options`` call an epoch.
        **options: Arguments of ``timm.scheduler.create_scheduler_v2``.
    """
    in_updates = {"step_on_epochs": False, "updates_per_epoch": updates_per_epoch}
    return create_scheduler_v2(optimizer, **{**options, **in_updates})[0]


def current_lr(optimizer: torch.optim.Optimizer) -> float:
    """The present learning rate, without the scale of a group."""
    group = max(optimizer.param_groups, key=lambda group: group.get("lr_scale", 1.0))
    return group["lr"] / (group.get("lr_scale", 1.0) or 1.0)
