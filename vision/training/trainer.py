"""What a run of training consists of, and how far it has come."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timm.utils import unwrap_model
from torch import Tensor, nn

from vision.training.task import HeadTask

__all__ = ["Progress", "Trainer"]


@dataclass
class Progress:
    """How far a run has come, in plain values.

    Attributes:
        epoch: The epoch in progress, or the next one.
        step: Batches done in it, on each process.
        updates: Updates done in all.
        loss_sum: Sum of the losses of this process's images in this epoch.
        part_sums: The same of each part of the loss, by name, where the task tells them.
        images: Those images.
        skipped: Updates of this epoch that mixed precision skipped.
    """

    epoch: int = 0
    step: int = 0
    updates: int = 0
    loss_sum: float = 0.0
    images: int = 0
    skipped: int = 0
    part_sums: dict[str, float] = dataclasses.field(default_factory=dict)

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch, self.step, self.loss_sum, self.images, self.skipped = self.epoch + 1, 0, 0.0, 0, 0
        self.part_sums = {}

    @property
    def mean_loss(self) -> float:
        """Mean loss of this process's images in this epoch."""
        return self.loss_sum / max(1, self.images)

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dictionary."""
        return dataclasses.asdict(self)


@dataclass
class Trainer:
    """What an epoch of training works with.

    Attributes:
        task: Model and loss.
        loader: As of `vision.data.create_train_loader`.
        optimizer: The optimizer.
        scaler: The loss scaler; a disabled one does nothing.
        autocast: Gives the context of mixed precision.
        scheduler: A timm scheduler that counts updates.
        make_targets: From what the loader gives beside the images to targets, or None: they are targets.
        mixup: From images and targets to mixed ones, or None.
        erase: Random erasing, or None.
        batch_size: Images a batch and process.
        accum_steps: Batches an update.
        clip_grad: Gradient clipping, or None.
        clip_mode: ``norm``, ``value`` or ``agc``.
        max_updates: Updates after which training ends, or None.
        seed: The run's seed.
        rank: This process.
        memory_format: Layout of the images.
        log_interval: Updates between log lines.
        after_update: Called after each update.
    """

    task: HeadTask
    loader: Any
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    autocast: Callable[[], contextlib.AbstractContextManager[Any]]
    scheduler: Any = None
    make_targets: Callable[[Any], Any] | None = None
    mixup: Callable[[Tensor, Any], tuple[Tensor, Any]] | None = None
    erase: Callable[[Tensor], Tensor] | None = None
    batch_size: int = 1
    accum_steps: int = 1
    clip_grad: float | None = None
    clip_mode: str = "norm"
    max_updates: int | None = None
    seed: int = 0
    rank: int = 0
    memory_format: torch.memory_format = torch.contiguous_format
    log_interval: int = 50
    after_update: Callable[[Progress], None] = lambda progress: None

    @property
    def model(self) -> nn.Module:
        """The model without wrappers."""
        return unwrap_model(self.task.get_trainable_module())

    @property
    def lr(self) -> float:
        """The present learning rate, without a group's scale."""
        group = max(self.optimizer.param_groups, key=lambda group: group.get("lr_scale", 1.0))
        return group["lr"] / (group.get("lr_scale", 1.0) or 1.0)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, on each process."""
        return -(-self.loader.sampler.samples_per_process // self.batch_size)

    @property
    def updates_per_epoch(self) -> int:
        """Updates of an epoch."""
        return -(-self.steps_per_epoch // self.accum_steps)

    def images_of_update(self, step: int) -> int:
        """Images of this process in the update that a step belongs to."""
        first = step // self.accum_steps * self.accum_steps
        end = min((first + self.accum_steps) * self.batch_size, self.loader.sampler.samples_per_process)
        return end - first * self.batch_size

    def ends_update(self, step: int) -> bool:
        """Whether the batch at a step is the last one of its update."""
        return (step + 1) % self.accum_steps == 0 or step + 1 == self.steps_per_epoch

    def done(self, progress: Progress) -> bool:
        """Whether the updates that were asked for are done."""
        return self.max_updates is not None and progress.updates >= self.max_updates
