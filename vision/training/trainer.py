"""What a training run works with."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from timm.scheduler.scheduler import Scheduler
from timm.utils import unwrap_model
from torch import nn

from sot_base.later_values import LaterValues
from vision.training.progress import Progress
from vision.training.schedule import current_lr
from vision.training.session import Session
from vision.training.task import Task

__all__ = ["Trainer"]


@dataclass
class Trainer:
    """What an epoch of training works with.

    Attributes:
        session: The run: its options, precision and unit.
        task: Model and loss.
        loader: Yields images and targets; its ``sampler`` has ``set_epoch`` and ``samples_per_process``.
        optimizer: The optimizer.
        scheduler: Sets the learning rate after each update.
        after_update: Called after each update but the last one of an epoch.
        losses: The losses of steps, which ``progress`` counts when they have arrived from a GPU.
    """

    session: Session
    task: Task
    loader: Any
    optimizer: torch.optim.Optimizer
    scheduler: Scheduler | None = None
    after_update: Callable[[Progress], None] = lambda progress: None
    losses: LaterValues = field(default_factory=LaterValues)

    @property
    def options(self) -> Namespace:
        """The options of the run."""
        return self.session.options

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
        return -(-self.loader.sampler.samples_per_process // self.options.batch_size)

    @property
    def updates_per_epoch(self) -> int:
        """Updates of the sampler's epoch."""
        return -(-self.steps_per_epoch // self.options.grad_accum_steps)

    def planned_images(self, step: int, count: int = 1) -> int:
        """Images of this process in ``count`` batches from ``step`` on; fewer at the end of the epoch."""
        size, samples = self.options.batch_size, self.loader.sampler.samples_per_process
        return min((step + count) * size, samples) - step * size

    def images_of_update(self, step: int) -> int:
        """Images of this process in the update that a step belongs to."""
        count = self.options.grad_accum_steps
        return self.planned_images(step // count * count, count)

    def ends_update(self, step: int) -> bool:
        """Whether the batch at a step is the last one of its update."""
        return (step + 1) % self.options.grad_accum_steps == 0 or step + 1 == self.steps_per_epoch

    def completed(self, progress: Progress) -> bool:
        """Whether all steps of the epoch are done."""
        return progress.step >= self.steps_per_epoch

    def evaluates(self, progress: Progress) -> bool:
        """Whether the epoch is evaluated where training has stopped: in a run in steps only once it is completed."""
        return self.session.unit == "epoch" or self.completed(progress)

    def done(self, progress: Progress) -> bool:
        """Whether the requested number of updates is done."""
        return self.options.max_steps is not None and progress.updates >= self.options.max_steps

    def schedule_position(self, progress: Progress) -> int:
        """The update of the schedule, which has as many an epoch as this run's batches make, whatever it was before."""
        if self.session.unit == "step":
            return progress.updates
        return progress.epoch * self.updates_per_epoch + -(-progress.step // self.options.grad_accum_steps)

    def place(self, progress: Progress) -> str:
        """Where the run stands, in words for messages."""
        in_steps = self.session.unit == "step"
        return f"step {progress.updates}" if in_steps else f"epoch {progress.epoch}, step {progress.step}"

    def place_and_rate(self, progress: Progress) -> str:
        """Where the run stands, and the learning rate there."""
        return f"{self.place(progress)}, lr {self.lr:.3e}"
