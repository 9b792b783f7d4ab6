"""The loop of training: one batch a step, from the step where the run stands.

Everything random is a function of the run's seed and the step: the order and augmentation of the images of their
position in the stream, dropout and stochastic depth of step and process. So a run that is stopped anywhere goes on to
the same result, with any number of loading processes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from timm.scheduler.scheduler import Scheduler
from timm.utils import random_seed
from torch import Tensor, nn
from tqdm import tqdm

from sot_base.errors import UsageError
from vision.segment.dataset import normalize
from vision.segment.loss import SegmentationLoss
from vision.segment.run_state import RunState
from vision.training.batch_norm import single_values_evaluated
from vision.training.finite import NonFiniteError, find_culprit

__all__ = ["Trainer"]

_logger = logging.getLogger(__name__)


@dataclass
class Trainer:
    """What a step works with.

    Attributes:
        model: The model.
        wrapped: The model as it is called in training: compiled, over processes.
        criterion: The loss.
        optimizer: The optimizer.
        scheduler: Sets the learning rate after a number of updates.
        scaler: The loss scaler.
        autocast: Gives the context of mixed precision.
        images: ``mean`` and ``std``.
        seed: The run's seed.
        rank: This process.
        clip_grad: Largest norm of the gradient; None: any.
        memory_format: Layout of the images.
        log_interval: Steps between log lines.
    """

    model: nn.Module
    wrapped: nn.Module
    criterion: SegmentationLoss
    optimizer: torch.optim.Optimizer
    scheduler: Scheduler
    scaler: torch.amp.GradScaler
    autocast: Callable[[], contextlib.AbstractContextManager[Any]]
    images: dict[str, Any]
    seed: int = 42
    rank: int = 0
    clip_grad: float | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    log_interval: int = 50

    @property
    def lr(self) -> float:
        """Learning rate of the new layers."""
        return max(group["lr"] for group in self.optimizer.param_groups)

    def steps(self, loader: Any, state: RunState, last: int) -> Iterator[RunState]:
        """Train up to a step.

        Args:
            loader: Gives a batch for each step.
            state: Is brought forward.
            last: Updates after the last step, for the bar.

        Yields:
            ``state``, after each step.

        Raises:
            NonFiniteError: at the first loss that is not finite, before it can change a weight.
            UsageError: if over several processes no image of a batch can be read.
        """
        self.scheduler.step_update(state.step)
        bar = tqdm(loader, desc="training", initial=state.step, total=last, disable=None if self.rank == 0 else True)
        begun, count = time.perf_counter(), 0
        for pixels, classes in bar:
            state.bad_images += loader.bad_images.count
            loader.bad_images.count = 0
            if len(pixels):
                self._step(state, pixels, classes)
            elif dist.is_initialized():
                raise UsageError("no image of a batch can be read; leave the bad files out of the data")
            state.step += 1
            count += len(pixels)
            self.scheduler.step_update(state.step)
            if state.step % self.log_interval == 0:
                mean = state.loss_sum / max(1, state.loss_steps)
                speed = count / (time.perf_counter() - begun)
                _logger.info(f"step {state.step}: loss {mean:.4f}, lr {self.lr:.3e}, {speed:.1f} images/s")
            yield state

    def _step(self, state: RunState, pixels: Tensor, classes: Tensor) -> None:
        random_seed(int(np.random.SeedSequence([self.seed, state.step, self.rank]).generate_state(1)[0]))
        images = normalize(pixels, self.images["mean"], self.images["std"])
        images = images.contiguous(memory_format=self.memory_format)
        self.wrapped.train()
        with single_values_evaluated(self.model, images):
            with self.autocast():
                loss = self.criterion(self.wrapped(images), classes)
            value = loss.item()
            if not np.isfinite(value):
                with self.autocast():
                    culprit = find_culprit(self.model, images)
                raise NonFiniteError(
                    f"the loss is {value}: step {state.step}, lr {self.lr:.3e}, first in {culprit}; "
                    "lower --lr, lengthen --warmup-steps or set --clip-grad"
                )
            self.scaler.scale(loss).backward()
        if self.clip_grad is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        state.loss_sum += value
        state.loss_steps += 1
