"""What a run leaves beside its checkpoints: summary.csv, TensorBoard's events where it is installed, a picture."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import yaml
from timm.utils import update_summary
from timm.utils.summary import trim_summary

from sot_base.atomic import atomic_file
from vision.evaluation.metrics import save_figure

__all__ = ["RunLog", "draw_curves", "write_options", "write_rows"]

_logger = logging.getLogger(__name__)


class RunLog:
    """Write an epoch's numbers to ``summary.csv`` and TensorBoard.

    Args:
        folder: The run's folder.
        start_epoch: First epoch to come; later rows of a run that goes on are dropped.
        tensorboard: Whether to log for TensorBoard too, if it is installed.
    """

    def __init__(self, folder: Path, start_epoch: int = 0, tensorboard: bool = True) -> None:
        self.summary = folder / "summary.csv"
        trim_summary(self.summary, start_epoch)
        self._writer = _tensorboard_writer(folder, start_epoch) if tensorboard else None

    def write(self, epoch: int, train: Mapping[str, float], evaluation: Mapping[str, float], lr: float) -> None:
        """Add an epoch."""
        update_summary(epoch, train, evaluation, self.summary, lr=lr)
        if self._writer is not None:
            for group, values in (("train", train), ("eval", evaluation), ("", {"lr": lr})):
                for name, value in values.items():
                    self._writer.add_scalar(f"{group}/{name}".lstrip("/"), value, epoch)
            self._writer.flush()


def _tensorboard_writer(folder: Path, start_epoch: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        _logger.info("TensorBoard is not installed: the log is summary.csv alone")
        return None
    return SummaryWriter(folder, purge_step=start_epoch or None)


def write_rows(path: str | PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file of rows, at least one, with the first one's keys as its header."""
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_options(folder: Path, options: Mapping[str, Any]) -> None:
    """Write the options of a run to ``options.yaml``, which ``--config`` reads."""
    with atomic_file(folder / "options.yaml") as temporary:
        temporary.write_text(to_yaml(options), encoding="utf-8")


def to_yaml(options: Mapping[str, Any]) -> str:
    """Options as YAML, in their order; those that are not given are left out."""
    given = {name: value for name, value in options.items() if value is not None and name != "config"}
    return yaml.safe_dump(given, sort_keys=False)


def draw_curves(summaries: Mapping[str, Path], path: Path) -> bool:
    """Draw loss and accuracy of runs over their epochs, if matplotlib is installed.

    Args:
        summaries: Name and ``summary.csv`` of each run.
        path: A picture file.

    Returns:
        Whether there is a picture.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        _logger.info("matplotlib is not installed: no picture of the curves")
        return False
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for color, (name, summary) in enumerate(summaries.items()):
        with summary.open(newline="") as file:
            rows = list(csv.DictReader(file))
        epochs = [int(row["epoch"]) for row in rows]
        for column, style in (("train_loss", "-"), ("eval_loss", "--")):
            values = [float(row[column]) for row in rows]
            left.plot(epochs, values, style, color=f"C{color}", label=f"{name}, {column.replace('_', ' ')}")
        right.plot(epochs, [float(row["eval_top1"]) for row in rows], color=f"C{color}", label=name)
    left.set(xlabel="epoch", ylabel="loss")
    right.set(xlabel="epoch", ylabel="top-1, %")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    save_figure(figure, path)
    return True
