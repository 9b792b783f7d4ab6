"""A training run: epochs with their evaluations, the files of the run, and its end."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from sot_base.errors import UsageError
from vision.cli.run_files import RunLog, choose_folder, write_options
from vision.training.build_trainer import build_trainer
from vision.training.epoch import train_one_epoch
from vision.training.finite import NonFiniteError, check_parameters
from vision.training.progress import Progress
from vision.training.session import Session
from vision.training.trainer import Trainer

__all__ = ["Result", "train"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """How a run has ended.

    Attributes:
        best: The best value of the session's metric; None before the first evaluation.
        folder: The run's folder.
    """

    best: float | None
    folder: Path

    def line(self, metric: str) -> str:
        """What a command prints at its end: the best metric (percent), and the checkpoint."""
        best = "no validation in this run" if self.best is None else f"best {metric}: {self.best:.2f} %"
        return f"{best}, checkpoint {self.checkpoint}"

    @property
    def summary(self) -> Path:
        """The run's log."""
        return self.folder / "summary.csv"

    @property
    def checkpoint(self) -> Path:
        """The best checkpoint; before the first evaluation the last one."""
        return self.folder / f"{'last' if self.best is None else 'model_best'}.pth.tar"


class RunFiles:
    """The files of a run, on the first process; on the others it does nothing.

    Args:
        session: The run.
        trainer: Its trainer.
        progress: How far it has come.
        name: Name of a new folder; None: from model and data.
    """

    def __init__(self, session: Session, trainer: Trainer, progress: Progress, name: str | None) -> None:
        self.folder: Path | None = None
        if session.args.rank:
            return
        self.folder = choose_folder(session.args, session.resumed, name)
        self.saver = session.saver_class(
            trainer.model,
            trainer.optimizer,
            checkpoint_dir=str(self.folder),
            recovery_dir=str(self.folder),
            max_history=session.options.checkpoint_hist,
            task=trainer.task,
        )
        if session.checkpoint is not None:
            self.saver.load_state_dict(session.checkpoint["saver"])
        write_options(self.folder, session.args)
        self.log = RunLog(self.folder, progress.epoch, session.options.tensorboard)
        _logger.info(f"output: {self.folder}")

    def save_epoch(self, epoch: int, metric: float, metrics: dict[str, float], progress: Progress) -> None:
        """Save the end of an epoch, and write its row of the log."""
        if self.folder is not None:
            self.saver.save_epoch(epoch, metric, metrics)
            self.log.write(progress.history)

    def save_within_epoch(self, progress: Progress) -> None:
        """Save between two updates."""
        if self.folder is not None:
            self.saver.save_within_epoch(progress.epoch, progress.updates)

    def latest(self) -> str:
        """The newest checkpoint, for messages."""
        if self.folder is None:
            return "in the run's folder"
        files = [file for name in ("last", "recovery-*") for file in self.folder.glob(f"{name}.pth.tar")]
        return str(max(files, key=lambda file: file.stat().st_mtime, default="none yet"))


def train(session: Session, name: str | None = None) -> Result | None:
    """Train the model of a session.

    Args:
        session: Options, data and model.
        name: Name of the run's folder; None: from model and data.

    Returns:
        The result; None on every process but the first one.

    Raises:
        NonFiniteError: for losses or weights that are not finite, with the last good checkpoint.
        UsageError: for anything in options, data or checkpoint that does not fit.
    """
    trainer, progress = build_trainer(session)
    files = RunFiles(session, trainer, progress, name)
    interval = session.args.checkpoint_steps

    def save_if_due(progress: Progress) -> None:
        if interval and progress.updates % interval == 0:
            check_parameters(trainer.model)
            files.save_within_epoch(progress)

    trainer.after_update = save_if_due
    try:
        _train_epochs(session, trainer, progress, files)
    except NonFiniteError as error:
        raise NonFiniteError(f"{error}; the last good checkpoint: {files.latest()}") from error
    return None if files.folder is None else Result(files.saver.best_metric, files.folder)


def _train_epochs(session: Session, trainer: Trainer, progress: Progress, files: RunFiles) -> None:
    loader = session.create_eval_loader()
    while progress.epoch < session.num_epochs and (trainer.completed(progress) or not trainer.done(progress)):
        epoch = progress.epoch
        train_metrics = train_one_epoch(trainer, progress)
        check_parameters(trainer.model)
        if not trainer.evaluates(progress):
            files.save_within_epoch(progress)
            break
        try:
            metrics = _evaluate_weights(session, trainer, progress, loader)
        except NonFiniteError:
            raise
        except UsageError:  # such as a file that cannot be read: the training is not lost, --resume evaluates again
            files.save_within_epoch(progress)
            raise
        row = session.log_row(progress, train_metrics, metrics, trainer.lr)
        progress.history.append(row)
        if trainer.completed(progress):
            progress.next_epoch()
        files.save_epoch(epoch, metrics.get(f"ema_{session.metric}", metrics[session.metric]), metrics, progress)
        place, *values = row.items()
        _logger.info(f"{place[0]} {place[1]}: {', '.join(f'{key} {value:.4g}' for key, value in values)}")


def _evaluate_weights(session: Session, trainer: Trainer, progress: Progress, loader: Any) -> dict[str, float]:
    """Metrics of the weights, and with the prefix ``ema_`` of the averaged ones."""
    metrics = {}
    for ema in (False, True) if trainer.task.has_ema() else (False,):
        model = trainer.task.get_eval_model(ema=ema)
        model = model.module if isinstance(model, DistributedDataParallel) else model
        values = session.evaluate(model, loader)
        if not math.isfinite(values.get("loss", 0.0)):
            raise NonFiniteError(
                f"the evaluation's loss is {values['loss']}: epoch {progress.epoch}, lr {trainer.lr:.3e}; "
                f"lower --lr, lengthen --warmup-{session.unit}s or set --clip-grad"
            )
        metrics |= {("ema_" if ema else "") + key: value for key, value in values.items()}
    return metrics
