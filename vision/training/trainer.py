"""What a training run works with, and how far it has come."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timm.scheduler.scheduler import Scheduler
from timm.utils import unwrap_model
from torch import nn

from vision.cli.device import Autocast
from vision.training.schedule import current_lr
from vision.training.task import Task

__all__ = ["Progress", "Trainer"]


@dataclass
class Progress:
    """How far a run has come, in plain values.

    An epoch ends with its evaluation. In a run that counts in steps, an epoch is what lies between two evaluations.

    Attributes:
        epoch: The epoch in progress, or the next one.
        step: Batches done in it, on each process.
        updates: Updates done in all.
        loss_sum: Sum of the losses of this process's images in this epoch.
        part_sums: The same of each part of the loss, by name, where the task tells them.
        images: Those images.
        bad_images: Images of this process in this epoch that could not be read.
        skipped: Updates of this epoch that mixed precision skipped.
        history: The rows of the log: the numbers of each evaluation.
    """

    epoch: int = 0
    step: int = 0
    updates: int = 0
    loss_sum: float = 0.0
    images: int = 0
    skipped: int = 0
    bad_images: int = 0
    part_sums: dict[str, float] = dataclasses.field(default_factory=dict)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def next_epoch(self) -> None:
        """Start the next epoch."""
        self.epoch, self.step, self.skipped = self.epoch + 1, 0, 0
        self.clear_sums()

    def clear_sums(self) -> None:
        """Set the sums over this process's images to 0."""
        self.loss_sum, self.images, self.bad_images = 0.0, 0, 0
        self.part_sums = dict.fromkeys(self.part_sums, 0.0)

    @property
    def mean_loss(self) -> float:
        """Mean loss of this process's images in this epoch."""
        return self.loss_sum / max(1, self.images)


@dataclass
class Trainer:
    """What an epoch of training works with.

    Attributes:
        task: Model and loss.
        loader: Yields images and targets; its ``sampler`` has ``set_epoch`` and ``samples_per_process``.
        optimizer: The optimizer.
        scaler: The loss scaler; a disabled one does nothing.
        autocast: The context of mixed precision.
        scheduler: Sets the learning rate after each update.
        unit: What the run counts in, ``epoch`` or ``step``.
        batch_size: Images of a batch on each process.
        accum_steps: Batches of an update.
        clip_grad: Gradient clipping, or None.
        clip_mode: ``norm``, ``value`` or ``agc``.
        max_updates: Updates after which training stops, or None.
        seed: The run's seed.
        rank: This process.
        memory_format: Layout of the images.
        log_interval: Updates between log lines.
        after_update: Called after each update but the last one of an epoch.
    """

    task: Task
    loader: Any
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    autocast: Autocast
    scheduler: Scheduler | None = None
    unit: str = "epoch"
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
        """The present learning rate, without the scale of a group."""
        return current_lr(self.optimizer)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of the sampler's epoch, on each process."""
        return -(-self.loader.sampler.samples_per_process // self.batch_size)

    @property
    def updates_per_epoch(self) -> int:
        """Updates of the sampler's epoch."""
        return -(-self.steps_per_epoch // self.accum_steps)

    def planned_images(self, step: int, count: int = 1) -> int:
        """Images of this process in ``count`` batches from ``step`` on; fewer at the end of the epoch."""
        samples = self.loader.sampler.samples_per_process
        return min((step + count) * self.batch_size, samples) - step * self.batch_size

    def images_of_update(self, step: int) -> int:
        """Images of this process in the update that a step belongs to."""
        return self.planned_images(step // self.accum_steps * self.accum_steps, self.accum_steps)

    def ends_update(self, step: int) -> bool:
        """Whether the batch at a step is the last one of its update."""
        return (step + 1) % self.accum_steps == 0 or step + 1 == self.steps_per_epoch

    def completed(self, progress: Progress) -> bool:
        """Whether all steps of the epoch are done, so that its evaluation is what comes next."""
        return progress.step >= self.steps_per_epoch

    def done(self, progress: Progress) -> bool:
        """Whether the requested number of updates is done."""
        return self.max_updates is not None and progress.updates >= self.max_updates

    def place(self, progress: Progress) -> str:
        """Where the run stands, in words for messages."""
        return f"step {progress.updates}" if self.unit == "step" else f"epoch {progress.epoch}, step {progress.step}"
