"""What a run leaves: its folder with checkpoints, options and log, and its result."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from sot_base.atomic import remove_unfinished
from vision.cli.run_files import RunLog, choose_folder, write_options
from vision.training.find_run import changed_options
from vision.training.progress import Progress
from vision.training.session import Session
from vision.training.trainer import Trainer

__all__ = ["Result", "RunFiles"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """How a run has ended.

    Attributes:
        best: The best value of the session's metric; None before the first evaluation.
        folder: The run's folder.
        checkpoint: The best checkpoint; before the first evaluation the last one.
        averaged: The best value of the averaged weights, and of the raw ones; None in a run without an average.
    """

    best: float | None
    folder: Path
    checkpoint: Path
    averaged: tuple[float, float] | None = None

    def line(self, metric: str) -> str:
        """What a command prints at its end: the best metric (percent), and the checkpoint."""
        if self.best is None:
            best = "stopped before the first evaluation"
        elif self.averaged is None:
            best = f"best {metric}: {self.best:.2f} %"
        else:
            averaged, raw = self.averaged
            best = f"best {metric}: {averaged:.2f} % with averaged weights, {raw:.2f} % with raw ones"
        return f"{best}, checkpoint {self.checkpoint}"

    @property
    def summary(self) -> Path:
        """The run's log."""
        return self.folder / "summary.csv"


class RunFiles:
    """The files of a run, on the first process; on the others it does nothing.

    What a run that was killed left half written is removed, and its log completed from the checkpoint.

    Args:
        session: The run.
        trainer: Its trainer.
        progress: How far it has come.
        name: Name of a new folder; None: from model and data.
    """

    def __init__(self, session: Session, trainer: Trainer, progress: Progress, name: str | None) -> None:
        self.folder: Path | None = None
        self._session = session
        if session.args.rank:
            return
        self.folder = choose_folder(session.args, session.resumed, name)
        remove_unfinished(self.folder)
        self.saver = session.saver_class(
            trainer.model,
            trainer.optimizer,
            checkpoint_dir=str(self.folder),
            recovery_dir=str(self.folder),
            max_history=session.options.checkpoint_hist,
            task=trainer.task,
        )
        if session.checkpoint is not None:
            self._go_on(progress)
        write_options(self.folder, session.args)
        self.log = RunLog(self.folder, progress.history, session.options.tensorboard)
        _logger.info(f"output: {self.folder}")

    def _go_on(self, progress: Progress) -> None:
        """Continue from the files of the resumed run, which may lie in another folder."""
        checkpoint, resumed = self._session.checkpoint, self._session.resumed
        self.saver.load_state_dict(checkpoint["saver"])
        if resumed.parent == self.folder:
            self.saver.remove_recoveries(but=resumed, updates=progress.updates)
        else:
            self.saver.take_over(resumed.parent)
        changed = changed_options(checkpoint["options"], self._session.args)
        if changed:
            _logger.info(f"--resume: other options than before: {', '.join(changed)}")

    def save_epoch(self, epoch: int, metrics: dict[str, float], progress: Progress) -> None:
        """Save the end of an epoch, and write its row of the log."""
        if self.folder is None:
            return
        metric, weights = self._session.score(metrics)
        entries = {"better_weights": weights} if self._session.options.model_ema else {}
        self.saver.save_epoch(epoch, metric, metrics, **entries)
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

    def result(self, progress: Progress) -> Result | None:
        """How the run has ended."""
        if self.folder is None:
            return None
        files = [self.folder / f"{name}.pth.tar" for name in ("model_best", "last")]
        checkpoint = next((file for file in files if file.exists()), self._session.resumed)
        columns = [self._session.column(ema) for ema in (True, False)]
        values = [[float(row[column]) for row in progress.history if column in row] for column in columns]
        averaged = (max(values[0]), max(values[1])) if all(values) and self._session.options.model_ema else None
        return Result(self.saver.best_metric, self.folder, checkpoint, averaged)
