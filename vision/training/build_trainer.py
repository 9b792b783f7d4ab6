"""Put a trainer together from a session, and continue from its checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator

from sot_base.errors import UsageError
from vision.training.progress import Progress
from vision.training.resume import restore
from vision.training.schedule import create_schedule
from vision.training.session import Session
from vision.training.task import create_optimizer
from vision.training.trainer import Trainer

__all__ = ["build_trainer"]

_logger = logging.getLogger(__name__)
SLOW = 0.05  # share of the initial weights in the average at the end, beyond which a warning says so


def build_trainer(session: Session) -> tuple[Trainer, Progress]:
    """Build what trains a session's model, wrapped for compilation and several processes.

    Args:
        session: Options, data and model.

    Returns:
        The trainer, and how far the run has come.

    Raises:
        UsageError: for options that timm refuses, or a checkpoint of another run.
    """
    options, progress = session.options, Progress()
    task = session.create_task()
    task.describe = lambda: {
        **session.describe(),
        "progress": dataclasses.asdict(progress),
        "amp_scaler": session.scaler.state_dict(),
    }
    with _refusals_as_usage_errors():
        loader = session.create_train_loader()
        optimizer = create_optimizer(
            session.model,
            options.head_lr_scale,
            opt=options.opt,
            lr=options.lr,
            weight_decay=options.weight_decay,
            momentum=options.momentum,
            layer_decay=options.layer_decay,
            **options.opt_kwargs,
        )
    if getattr(optimizer, "is_second_order", False):
        raise UsageError(f"--opt {options.opt} needs second derivatives, which are not computed here; give another")
    if options.model_ema:
        task.setup_ema(decay=options.model_ema_decay, use_warmup=options.model_ema_warmup)
    if session.checkpoint is not None:
        restore(session.checkpoint, task, optimizer, session.scaler)
        vars(progress).update(vars(session.read_progress()))
        if options.rank:
            progress.clear_sums()  # the first process counts for all
    if options.compile:
        task.compile()
    if options.world_size > 1:
        task.prepare_distributed(device_ids=[session.device] if session.device.type == "cuda" else None)
    trainer = Trainer(session, task, loader, optimizer)
    loader.sampler.set_epoch(progress.epoch)
    updates_per_epoch = trainer.updates_per_epoch if session.unit == "epoch" else 1
    with _refusals_as_usage_errors():
        trainer.scheduler = create_schedule(optimizer, updates_per_epoch, **session.schedule())
    trainer.scheduler.step_update(trainer.schedule_position(progress))
    if options.model_ema and not options.model_ema_warmup:
        _warn_of_slow_average(trainer)
    return trainer, progress


def _warn_of_slow_average(trainer: Trainer) -> None:
    """Say how much of the initial weights the averaged ones still hold at the end of the run."""
    options = trainer.options
    updates = trainer.updates_per_epoch * trainer.session.num_epochs
    updates = min(updates, options.max_steps or updates)
    share = options.model_ema_decay**updates
    if share > SLOW:
        _logger.warning(
            f"the averaged weights are {share:.0%} initial weights after the {updates} updates of this run: "
            f"--model-ema-decay {options.model_ema_decay:g}; add --model-ema-warmup, or lower it"
        )


@contextlib.contextmanager
def _refusals_as_usage_errors() -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(f"timm refuses the options: {' '.join(str(error).split())}; see --help") from error
