"""The loops: an epoch of training, and an evaluation.

Everything random in a run is a function of its seed and the place in it: the order and augmentation of the images of
seed, epoch and position (`vision.data.sampling`), dropout, mixup and erasing of seed, epoch, step and process. So a
run that is stopped anywhere goes on to the same result, with any number of loading processes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from timm.task.evaluator import ClassificationEvaluator
from timm.utils import dispatch_clip_grad, random_seed
from torch import Tensor, nn
from tqdm import tqdm

from sot_base.errors import UsageError
from vision.training.batch_norm import single_values_evaluated
from vision.training.finite import NonFiniteError, find_culprit
from vision.training.trainer import Progress, Trainer

__all__ = ["evaluate", "train_one_epoch"]

_logger = logging.getLogger(__name__)


def train_one_epoch(trainer: Trainer, progress: Progress) -> dict[str, float]:
    """Train from where ``progress`` stands to the end of its epoch, or to the last update that was asked for.

    Args:
        trainer: What to work with.
        progress: Is brought forward; at the end of the epoch it stands at the next one.

    Returns:
        The mean loss of the epoch's images over all processes and its parts, unreadable images, skipped updates.

    Raises:
        NonFiniteError: at the first loss that is not finite, before it can change a weight.
        UsageError: if no image of the epoch can be read.
        ImageError: for an unreadable image, where that is an error.
    """
    trainer.task.train()
    trainer.loader.sampler.set_epoch(progress.epoch, progress.step * trainer.batch_size)
    trainer.optimizer.zero_grad()
    begun, images_before, images_at_update = time.perf_counter(), progress.images, progress.images
    for images, targets in _with_bar(trainer.loader, f"epoch {progress.epoch}", trainer.rank == 0):
        if len(images):
            _train_step(trainer, progress, images, targets)
        elif dist.is_initialized():
            raise UsageError("no image of a batch can be read; python -m vision.check_data DIR lists the bad files")
        ends_update = trainer.ends_update(progress.step)
        progress.step += 1
        if not ends_update:
            continue
        _update(trainer, progress, learn=progress.images > images_at_update)
        images_at_update = progress.images
        if progress.updates % trainer.log_interval == 0:
            speed = (progress.images - images_before) / (time.perf_counter() - begun)
            _logger.info(
                f"epoch {progress.epoch}, step {progress.step}/{trainer.steps_per_epoch}: "
                f"loss {progress.mean_loss:.4f}, lr {trainer.lr:.3e}, {speed:.0f} images/s"
            )
        if progress.step < trainer.steps_per_epoch:
            trainer.after_update(progress)
        if trainer.done(progress):
            break
    return _finish(trainer, progress)


def _finish(trainer: Trainer, progress: Progress) -> dict[str, float]:
    bad_images = trainer.loader.loader.bad_images
    names = sorted(progress.part_sums)
    sums = [progress.loss_sum, progress.images, bad_images.count, *(progress.part_sums[name] for name in names)]
    sums = torch.tensor(sums, dtype=torch.float64)
    if dist.is_initialized():
        sums = sums.to(trainer.task.device)
        dist.all_reduce(sums)
    loss_sum, images, bad, *part_sums = sums.tolist()
    if not images:
        raise UsageError("nothing to learn: no image can be read; python -m vision.check_data DIR lists the bad files")
    parts = {f"{name}_loss": value / images for name, value in zip(names, part_sums, strict=True)}
    metrics = {"loss": loss_sum / images, **parts, "bad_images": int(bad), "skipped": progress.skipped}
    bad_images.count = 0
    if progress.step >= trainer.steps_per_epoch:
        if progress.skipped == trainer.updates_per_epoch:
            raise NonFiniteError(
                f"every update was skipped: epoch {progress.epoch}, lr {trainer.lr:.1e}, gradients overflow float16; "
                "use --amp-dtype bfloat16 or a lower --lr"
            )
        progress.next_epoch()
    return metrics


def _train_step(trainer: Trainer, progress: Progress, images: Tensor, targets: Any) -> None:
    """Forward and backward of a batch, weighted by its share of the update's images."""
    count, share = len(images), len(images) / trainer.images_of_update(progress.step)
    step_seed = np.random.SeedSequence([trainer.seed, progress.epoch, progress.step, trainer.rank])
    random_seed(int(step_seed.generate_state(1)[0]))
    if trainer.erase is not None:
        images = trainer.erase(images)
    if trainer.make_targets is not None:
        targets = trainer.make_targets(targets)
    if trainer.mixup is not None:
        images, targets = trainer.mixup(images, targets)
    images = images.contiguous(memory_format=trainer.memory_format)
    synchronize = contextlib.nullcontext() if trainer.ends_update(progress.step) else trainer.task.no_sync()
    with single_values_evaluated(trainer.model, images):
        with synchronize:
            with trainer.autocast():
                outputs = trainer.task(images, targets)
            loss, parts = outputs["loss"], outputs.get("parts", {})
            read_losses = _start_reading(torch.stack([loss, *parts.values()]).detach())
            trainer.scaler.scale(loss * share).backward()
        value, *part_values = read_losses()
        if not np.isfinite(value):
            raise _not_finite(trainer, progress, images, value)
    progress.loss_sum += value * count
    for name, part in zip(parts, part_values, strict=True):
        progress.part_sums[name] = progress.part_sums.get(name, 0.0) + part * count
    progress.images += count


def _start_reading(losses: Tensor) -> Callable[[], list[float]]:
    """Copy losses to the host without waiting for what is computed after them."""
    if losses.device.type != "cuda":
        return losses.tolist
    host = torch.empty(losses.shape, dtype=losses.dtype, pin_memory=True)
    host.copy_(losses, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def read() -> list[float]:
        copied.synchronize()
        return host.tolist()

    return read


def _not_finite(trainer: Trainer, progress: Progress, images: Tensor, value: float) -> NonFiniteError:
    with trainer.autocast():
        culprit = find_culprit(trainer.model, images)
    return NonFiniteError(
        f"the loss is {value}: epoch {progress.epoch}, step {progress.step}, lr {trainer.lr:.3e}, first in {culprit}; "
        "lower --lr, lengthen --warmup-epochs or set --clip-grad"
    )


def _update(trainer: Trainer, progress: Progress, learn: bool) -> None:
    """Change the weights by the gradients, if there are any, and count."""
    if learn:
        trainer.scaler.unscale_(trainer.optimizer)
        if trainer.clip_grad is not None:
            dispatch_clip_grad(trainer.task.get_clip_parameters(), trainer.clip_grad, mode=trainer.clip_mode)
        scale = trainer.scaler.get_scale()
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
        progress.skipped += int(trainer.scaler.get_scale() < scale)
        trainer.optimizer.zero_grad()
    progress.updates += 1
    trainer.scheduler.step_update(progress.updates)
    trainer.task.update_ema(step=progress.updates)


def _with_bar(loader: Iterable[Any], what: str, shown: bool) -> Iterator[Any]:
    return iter(tqdm(loader, desc=what, leave=False, disable=None if shown else True))


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    evaluator: ClassificationEvaluator,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    memory_format: torch.memory_format = torch.contiguous_format,
    on_output: Callable[[Tensor], None] | None = None,
) -> None:
    """Run a model over a loader in evaluation mode.

    Args:
        model: The model.
        loader: Gives images and targets.
        evaluator: Counts outputs and targets; its ``compute`` gives the metrics.
        autocast: Gives the context of mixed precision.
        memory_format: Layout of the images.
        on_output: Also sees each batch's logits, in the loader's order.
    """
    model.eval()
    for images, targets in _with_bar(loader, "evaluation", not dist.is_initialized() or dist.get_rank() == 0):
        if len(images):
            with autocast():
                output = model(images.contiguous(memory_format=memory_format))
            evaluator.update(output.float(), targets)
            if on_output is not None:
                on_output(output)
