"""A training run: epochs with their evaluations, and its end."""

from __future__ import annotations

import logging
import math
import sys
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from sot_base.errors import UsageError
from vision.training.build_trainer import build_trainer
from vision.training.epoch import train_one_epoch
from vision.training.finite import NonFiniteError, check_parameters
from vision.training.outputs import Result, RunFiles
from vision.training.progress import Progress
from vision.training.session import Session
from vision.training.stop import Stop, StopSignals
from vision.training.trainer import Trainer

__all__ = ["Result", "train"]

_logger = logging.getLogger(__name__)


def train(session: Session, name: str | None = None) -> Result | None:
    """Train the model of a session.

    SIGTERM and SIGHUP let an update end, save, and end the program with status 128 plus the signal's number.

    Args:
        session: Options, data and model.
        name: Name of the run's folder; None: from model and data.

    Returns:
        The result; None on every process but the first one.

    Raises:
        NonFiniteError: for losses or weights that are not finite, with the last good checkpoint.
        UsageError: for anything in options, data or checkpoint that does not fit.
        SystemExit: after a signal.
    """
    with StopSignals(session.device) as signals:
        trainer, progress = build_trainer(session)
        files = RunFiles(session, trainer, progress, name)
        interval = session.args.checkpoint_steps

        def after_update(progress: Progress) -> None:
            signals.check()
            if interval and progress.updates % interval == 0:
                trainer.losses.settle()
                check_parameters(trainer.model, trainer.place_and_rate(progress))
                files.save_within_epoch(progress)

        trainer.after_update = after_update
        try:
            try:
                _train_epochs(session, trainer, progress, files, signals)
            except Stop as stop:
                _save_and_exit(stop, trainer, progress, files)
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}; the last good checkpoint: {files.latest()}") from error
        return files.result(progress)


def _save_and_exit(stop: Stop, trainer: Trainer, progress: Progress, files: RunFiles) -> None:
    """Save between two updates, and end the program as the signal would have."""
    trainer.losses.settle()
    check_parameters(trainer.model, trainer.place_and_rate(progress))
    files.save_within_epoch(progress)
    if files.folder is not None:
        sys.stderr.write(
            f"stopped by {stop}: {trainer.place(progress)}, saved {files.latest()}; --resume continues the run\n"
        )
    sys.exit(128 + stop.number)


def _train_epochs(
    session: Session, trainer: Trainer, progress: Progress, files: RunFiles, signals: StopSignals
) -> None:
    loader = session.create_eval_loader()
    while not _finished(session, trainer, progress):
        epoch = progress.epoch
        train_metrics = train_one_epoch(trainer, progress)
        check_parameters(trainer.model, trainer.place_and_rate(progress))
        if not trainer.evaluates(progress):
            files.save_within_epoch(progress)
            break
        try:
            metrics = _evaluate_weights(session, trainer, progress, loader, signals)
        except NonFiniteError:
            raise
        except UsageError:  # such as a file that cannot be read: the training is not lost, --resume evaluates again
            files.save_within_epoch(progress)
            raise
        row = session.log_row(progress, train_metrics, metrics, trainer.lr)
        progress.history.append(row)
        if trainer.completed(progress):
            progress.note_evaluation(session.score(metrics)[0])
            progress.next_epoch()
        files.save_epoch(epoch, metrics, progress)
        place, *values = row.items()
        _logger.info(f"{place[0]} {place[1]}: {', '.join(f'{key} {value:.4g}' for key, value in values)}")
        signals.check()


def _finished(session: Session, trainer: Trainer, progress: Progress) -> bool:
    """Whether there is nothing to train or to evaluate any more."""
    patience = session.options.patience
    if patience and progress.stale >= patience:
        _logger.info(f"{session.metric} was not better in {progress.stale} evaluations: stopped early (--patience)")
        return True
    return progress.epoch >= session.num_epochs or (trainer.done(progress) and not trainer.completed(progress))


def _evaluate_weights(
    session: Session, trainer: Trainer, progress: Progress, loader: Any, signals: StopSignals
) -> dict[str, float]:
    """Metrics of the weights, and with the prefix ``ema_`` of the averaged ones."""
    metrics = {}
    for ema in (False, True) if trainer.task.has_ema() else (False,):
        model = trainer.task.get_eval_model(ema=ema)
        model = model.module if isinstance(model, DistributedDataParallel) else model
        values = session.evaluate(model, signals.watch(loader))
        if not math.isfinite(values.get("loss", 0.0)):
            raise NonFiniteError(
                f"the evaluation's loss is {values['loss']}: {trainer.place_and_rate(progress)}; "
                f"lower --lr, lengthen --warmup-{session.unit}s or set --clip-grad"
            )
        metrics |= {("ema_" if ema else "") + key: value for key, value in values.items()}
    return metrics
