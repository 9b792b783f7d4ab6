"""The loop of training: an epoch, its steps and its updates, the same for every kind of training."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from timm.utils import dispatch_clip_grad
from torch import Tensor

from sot_base.errors import UsageError
from vision.evaluation.evaluate import progress_bar
from vision.training.batch_norm import single_values_evaluated
from vision.training.finite import NonFiniteError, find_culprit
from vision.training.progress import Progress
from vision.training.seeding import seed_step
from vision.training.trainer import Trainer

__all__ = ["train_one_epoch"]

_logger = logging.getLogger(__name__)
_CHECK_DATA = "python -m vision.check_data DIR lists the bad files"


def train_one_epoch(trainer: Trainer, progress: Progress) -> dict[str, float]:
    """Train from where ``progress`` stands to the end of its epoch, or to the last requested update.

    Args:
        trainer: What to work with.
        progress: Advanced in place; at the end of the epoch its step is the epoch's number of steps.

    Returns:
        The mean loss of the epoch's images over all processes and its parts, unreadable images, skipped updates.

    Raises:
        NonFiniteError: at the first loss that is not finite; on the CPU before it can change a weight, on a GPU some
            steps later, before anything is saved or evaluated.
        UsageError: if no image of the epoch can be read.
        ImageError: for an unreadable image, where that is an error.
    """
    trainer.task.train()
    trainer.task.start_epoch(progress.epoch)
    trainer.loader.sampler.set_epoch(progress.epoch, progress.step * trainer.options.batch_size)
    trainer.optimizer.zero_grad()
    start, images_before, images_at_update = time.perf_counter(), progress.images, progress.images
    batches = () if trainer.completed(progress) else progress_bar(trainer.loader, trainer.place(progress))
    for images, targets in batches:
        progress.bad_images += trainer.planned_images(progress.step) - len(images)
        if len(images):
            _train_step(trainer, progress, images, targets)
        elif dist.is_initialized():
            raise UsageError(f"no image of a batch can be read; {_CHECK_DATA}")
        ends_update = trainer.ends_update(progress.step)
        progress.step += 1
        if not ends_update:
            continue
        _update(trainer, progress, learn=progress.images > images_at_update)
        images_at_update = progress.images
        if progress.updates % trainer.options.log_interval == 0:
            trainer.losses.settle()
            speed = (progress.images - images_before) / (time.perf_counter() - start)
            _logger.info(
                f"{trainer.place(progress)}: loss {progress.mean_loss:.4f}, lr {trainer.lr:.3e}, {speed:.1f} images/s"
            )
        if not trainer.completed(progress):
            trainer.after_update(progress)
        if trainer.done(progress):
            break
    trainer.losses.settle()
    return _summarize(trainer, progress)


def _summarize(trainer: Trainer, progress: Progress) -> dict[str, float]:
    """The metrics of the epoch so far, over all processes."""
    names = sorted(progress.part_sums)
    sums = [progress.loss_sum, progress.images, progress.bad_images, *(progress.part_sums[name] for name in names)]
    sums = torch.tensor(sums, dtype=torch.float64)
    if dist.is_initialized():
        sums = sums.to(trainer.task.device)
        dist.all_reduce(sums)
    loss_sum, images, bad, *part_sums = sums.tolist()
    if not images and trainer.evaluates(progress):
        raise UsageError(f"nothing to learn: no image can be read; {_CHECK_DATA}")
    whole_epoch = trainer.session.unit == "epoch" and trainer.completed(progress)  # a few steps may all be skipped
    if whole_epoch and progress.skipped == trainer.updates_per_epoch:
        raise NonFiniteError(
            f"every update was skipped: {trainer.place_and_rate(progress)}, gradients overflow float16; "
            "use --amp-dtype bfloat16 or a lower --lr"
        )
    images = max(1, images)
    parts = {f"{name}_loss": value / images for name, value in zip(names, part_sums, strict=True)}
    return {"loss": loss_sum / images, **parts, "bad_images": int(bad), "skipped": progress.skipped}


def _train_step(trainer: Trainer, progress: Progress, images: Tensor, targets: Any) -> None:
    """Forward and backward of a batch, weighted by its share of the update."""
    count = len(images)
    session, options = trainer.session, trainer.options
    step = (progress.updates,) if session.unit == "step" else (progress.epoch, progress.step)
    seed_step(options.seed, step, options.rank)
    images, targets = trainer.task.prepare(images, targets)
    images = images.contiguous(memory_format=session.memory_format)
    share = trainer.task.share(count, trainer.images_of_update(progress.step))
    synchronize = contextlib.nullcontext() if trainer.ends_update(progress.step) else trainer.task.no_sync()
    with single_values_evaluated(trainer.model, images):
        with synchronize:
            with session.autocast():
                outputs = trainer.task(images, targets)
            loss, parts = outputs["loss"], outputs.get("parts", {})
            session.scaler.scale(loss * share).backward()
        place = trainer.place_and_rate(progress)
        trainer.losses.read(
            torch.stack([loss, *parts.values()]).detach(),
            partial(_count_losses, trainer, progress, place, images, list(parts)),
        )
    progress.images += count


def _count_losses(
    trainer: Trainer, progress: Progress, place: str, images: Tensor, names: Sequence[str], losses: Sequence[float]
) -> None:
    """Add the losses of a step, the whole one and its parts, to the epoch's."""
    value, *part_values = losses
    if not math.isfinite(value):
        raise _not_finite(trainer, place, images, value)
    progress.loss_sum += value * len(images)
    for name, part in zip(names, part_values, strict=True):
        progress.part_sums[name] = progress.part_sums.get(name, 0.0) + part * len(images)


def _not_finite(trainer: Trainer, place: str, images: Tensor, value: float) -> NonFiniteError:
    with trainer.session.autocast():
        culprit = find_culprit(trainer.model, images)
    return NonFiniteError(
        f"the loss is {value}: {place}, first in {culprit}; "
        f"lower --lr, lengthen --warmup-{trainer.session.unit}s or set --clip-grad"
    )


def _overflow(trainer: Trainer, progress: Progress) -> NonFiniteError:
    first = next(name for name, parameter in trainer.model.named_parameters() if parameter.grad is not None)
    return NonFiniteError(
        f"the update of the weight {first} overflows: {trainer.place_and_rate(progress)}; lower --lr or set --clip-grad"
    )


def _update(trainer: Trainer, progress: Progress, learn: bool) -> None:
    """Update the weights by the gradients, if there are any, and count."""
    options, scaler = trainer.options, trainer.session.scaler
    if learn:
        scaler.unscale_(trainer.optimizer)
        if options.clip_grad is not None:
            dispatch_clip_grad(trainer.task.get_clip_parameters(), options.clip_grad, mode=options.clip_mode)
        scale = scaler.get_scale()
        try:
            scaler.step(trainer.optimizer)
        except (RuntimeError, OverflowError) as error:
            if "overflow" not in str(error) and not isinstance(error, OverflowError):
                raise
            raise _overflow(trainer, progress) from error
        scaler.update()
        progress.skipped += int(scaler.get_scale() < scale)
        trainer.optimizer.zero_grad()
    progress.updates += 1
    trainer.scheduler.step_update(trainer.schedule_position(progress))
    trainer.task.update_ema(step=progress.updates)
