"""Pictures: the curves of runs, and which classes are confused. They need matplotlib."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError
from vision.cli.run_files import read_rows

__all__ = ["draw_confusion", "draw_curves"]

_logger = logging.getLogger(__name__)


def draw_curves(summaries: Mapping[str, Path], path: Path, metric: str = "eval_top1", title: str = "top-1") -> bool:
    """Draw loss and metric of runs over their epochs, if matplotlib is installed.

    Args:
        summaries: Name and ``summary.csv`` of each run.
        path: The picture to write.
        metric: The column of the metric.
        title: What it is called.

    Returns:
        Whether it was written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        _logger.info("matplotlib is not installed: no picture of the curves")
        return False
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for color, (name, summary) in enumerate(summaries.items()):
        rows = read_rows(summary)
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
    _save(figure, path)
    return True


def draw_confusion(counts: Tensor, class_names: Sequence[str], path: str | Path) -> None:
    """Draw scikit-learn's confusion matrix, rows in percent of each class's images.

    Classes without images that are never predicted are left out. More than 20 classes are drawn without numbers, more
    than 100 without names.

    Args:
        counts: (K * K,) or (K, K), row: true class.
        class_names: (K,) names.
        path: The picture to write; its suffix says the format.

    Raises:
        UsageError: if matplotlib is missing or does not know the format.
    """
    try:
        from matplotlib.figure import Figure
        from sklearn.metrics import ConfusionMatrixDisplay
    except ImportError as error:
        raise UsageError(f"{error.name} is missing: a confusion picture needs it; pip install {error.name}") from error
    counts = counts.view(len(class_names), -1).cpu()
    seen = (counts.sum(0) + counts.sum(1)).nonzero().flatten().tolist()
    shares = (100 * counts / counts.sum(1, keepdim=True).clamp_min(1))[seen][:, seen]
    size = min(30.0, 3 + 0.35 * len(seen))
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    display = ConfusionMatrixDisplay(shares.numpy(), display_labels=[class_names[index] for index in seen])
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
    _save(figure, path)


def _save(figure: Any, path: str | Path) -> None:
    """Write a figure; the file appears whole or not at all."""
    kind = Path(path).suffix.lstrip(".") or "png"
    if kind not in figure.canvas.get_supported_filetypes():
        raise UsageError(f"unknown picture format: {path}; use .png, .svg or .pdf")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=120)
