"""Plots of runs and predictions: learning curves, confusion, calibration, and spectra of singular values."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sot_base.errors import UsageError
from sot_visual.figures import new_figure, save_figure

__all__ = ["draw_calibration", "draw_confusion", "draw_curves", "draw_spectrum"]

logger = logging.getLogger(__name__)

BINS = 10  # of a calibration curve
Rows = Sequence[Mapping[str, Any]]


def draw_curves(runs: Mapping[str, Rows], path: Path, metric: str = "eval_top1", title: str = "top-1") -> bool:
    """Plot loss and metric of runs over their epochs, if matplotlib is installed.

    Args:
        runs: Name and rows of each run, with ``epoch``, ``train_loss``, ``eval_loss`` and the metric.
        path: The figure to write.
        metric: The column of the metric.
        title: Name of the metric in the figure.

    Returns:
        Whether it was written.
    """
    try:
        figure = new_figure(9, 4)
    except UsageError:
        logger.info("matplotlib is not installed: no picture of the curves")
        return False
    left, right = figure.subplots(1, 2)
    for color, (name, rows) in enumerate(runs.items()):
        epochs = [int(row["epoch"]) for row in rows]
        for column, style in (("train_loss", "-"), ("eval_loss", "--")):
            values = [float(row[column]) for row in rows]
            left.plot(epochs, values, style, color=f"C{color}", label=f"{name}, {column.replace('_', ' ')}")
        right.plot(epochs, [float(row[metric]) for row in rows], color=f"C{color}", label=name)
    left.set(xlabel="epoch", ylabel="loss")
    right.set(xlabel="epoch", ylabel=f"{title}, %")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    save_figure(figure, path)
    return True


def draw_confusion(counts: Tensor, class_names: Sequence[str], path: str | Path) -> None:
    """Draw scikit-learn's confusion matrix, each row in percent of the images of its class.

    Classes without images that are never predicted are left out. More than 20 classes are drawn without numbers, more
    than 100 without names.

    Args:
        counts: (K * K,) or (K, K), row: true class.
        class_names: (K,) names.
        path: The figure to write; its suffix says the format.

    Raises:
        UsageError: if matplotlib is not installed or does not know the format.
    """
    display_class = _sklearn("metrics").ConfusionMatrixDisplay
    counts = counts.view(len(class_names), -1).cpu()
    seen = (counts.sum(0) + counts.sum(1)).nonzero().flatten().tolist()
    shares = (100 * counts / counts.sum(1, keepdim=True).clamp_min(1))[seen][:, seen]
    size = min(30.0, 3 + 0.35 * len(seen))
    figure = new_figure(size + 1, size)
    display = display_class(shares.numpy(), display_labels=[class_names[index] for index in seen])
    display.plot(
        ax=figure.add_subplot(),
        cmap="Blues",
        include_values=len(seen) <= 20,
        values_format=".0f",
        xticks_rotation="vertical",
        colorbar=False,
        im_kw={"vmin": 0, "vmax": 100},
    )
    if len(seen) > 100:
        display.ax_.set(xticks=[], yticks=[])
    figure.colorbar(display.im_, label="% of the class")
    save_figure(figure, path)


def draw_calibration(confidence: np.ndarray, correct: np.ndarray, path: str | Path) -> float:
    """Draw a reliability diagram, scikit-learn's calibration display, with a histogram of the confidence.

    Args:
        confidence: (R,) probability of each predicted class.
        correct: (R,) bool, whether the prediction is right.
        path: The figure to write.

    Returns:
        The expected calibration error: the mean gap between confidence and accuracy over ten bins, weighted by size.

    Raises:
        UsageError: if matplotlib is not installed or does not know the format.
    """
    figure = new_figure(5, 5.5)
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    display = _sklearn("calibration").CalibrationDisplay
    display.from_predictions(correct, confidence, n_bins=BINS, ax=upper, pos_label=True, name="model")
    upper.set(xlabel="", ylabel="share that is right", xlim=(0, 1), ylim=(0, 1))
    lower.hist(confidence, bins=np.linspace(0, 1, BINS + 1), color="0.6")
    lower.set(xlabel="probability of the predicted class", ylabel="count")
    places = np.clip((confidence * BINS).astype(int), 0, BINS - 1)
    error = sum(abs((confidence - correct)[places == place].sum()) for place in range(BINS)) / max(len(confidence), 1)
    upper.set_title(f"expected calibration error {100 * error:.1f} %")
    save_figure(figure, path)
    return float(error)


def draw_spectrum(before: np.ndarray, after: np.ndarray, path: str | Path, title: str = "") -> None:
    """Plot singular values before and after a normalisation, on a logarithmic scale.

    Args:
        before: (R, r) singular values in descending order.
        after: (R, r) singular values of the same matrices after the normalisation.
        path: The figure to write.
        title: Title of the figure.

    Raises:
        UsageError: if matplotlib is not installed or does not know the format.
    """
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    ranks = np.arange(1, before.shape[1] + 1)
    for values, label in ((before, "before"), (after, "after")):
        low, middle, high = np.percentile(values, (5, 50, 95), axis=0)
        (line,) = axes.plot(ranks, middle, marker="o", markersize=3, label=label)
        axes.fill_between(ranks, low, high, color=line.get_color(), alpha=0.2)
    largest = max(before.max(), after.max())
    if largest > 0:  # below that is rounding noise
        axes.set(yscale="log", ylim=(largest * 1e-6, largest * 2))
    axes.set(xlabel="singular value", ylabel="size", title=title)
    axes.grid(alpha=0.3)
    axes.legend(title="median, 5 to 95 %")
    save_figure(figure, path)


def _sklearn(module: str) -> Any:
    try:
        importlib.import_module("matplotlib.figure")
        return importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        name = (error.name or "matplotlib").partition(".")[0]
        raise UsageError(f"{name} is not installed: the figure needs it; pip install {name}") from error
