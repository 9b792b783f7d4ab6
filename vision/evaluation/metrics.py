"""Accuracy over a whole data set: in all, for each class, and what was taken for what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from timm.task.evaluator import ClassificationEvaluator
from torch import Tensor

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError

__all__ = ["ClassEvaluator", "draw_confusion"]


class ClassEvaluator(ClassificationEvaluator):
    """`timm`'s evaluator (loss, top-1, top-5 in percent) that also counts by class.

    Args:
        num_classes: Outputs K of the model.
        device: Where the outputs are.
        allowed: Indices of the classes that may be predicted; None: all.
        confusion: Whether to count predictions for each pair of classes, a (K, K) table.

    Attributes:
        totals: (K,) images of each class.
        hits: (K,) those predicted right.
        confusion: (K, K) images of class i predicted as class j, or None.
    """

    def __init__(
        self,
        num_classes: int,
        device: torch.device | str = "cpu",
        allowed: Sequence[int] | None = None,
        confusion: bool = False,
    ) -> None:
        super().__init__(device)
        self.totals, self.hits = (torch.zeros(num_classes, dtype=torch.int64, device=device) for _ in range(2))
        self.confusion = torch.zeros(num_classes**2, dtype=torch.int64, device=device) if confusion else None
        self.excluded = None
        if allowed is not None:
            self.excluded = torch.ones(num_classes, dtype=torch.bool, device=device)
            self.excluded[list(allowed)] = False

    @torch.no_grad()
    def update(self, output: Tensor, target: Tensor) -> None:
        """Count a batch.

        Shape:
            output (B, K), target (B,).
        """
        if self.excluded is not None:
            output = output.float().masked_fill(self.excluded, float("-inf"))
        super().update(output, target)
        num_classes, predicted = len(self.totals), output.argmax(1)
        self.totals += torch.bincount(target, minlength=num_classes)
        self.hits += torch.bincount(target[predicted == target], minlength=num_classes)
        if self.confusion is not None:
            self.confusion += torch.bincount(target * num_classes + predicted, minlength=num_classes**2)

    def compute(self, distributed: bool = False) -> dict[str, float]:
        """Loss, top1 and top5 over all processes; the counts by class are summed over them too.

        Raises:
            UsageError: if there was no image at all.
        """
        if distributed:
            for counts in (self.totals, self.hits, self.confusion):
                if counts is not None:
                    dist.all_reduce(counts)
        if not self.totals.any():
            raise UsageError("nothing to evaluate: no image can be read; python -m vision.check_data DIR lists them")
        return dict(super().compute(distributed=distributed))

    def per_class(self, class_names: Sequence[str]) -> list[dict[str, Any]]:
        """A row for each class of the data: name, images, accuracy in percent, what it is most often taken for."""
        rows = []
        for index, (name, total, hits) in enumerate(
            zip(class_names, self.totals.tolist(), self.hits.tolist(), strict=False)
        ):
            if total:
                row = {"class": name, "images": total, "accuracy": round(100 * hits / total, 2)}
                if self.confusion is not None:
                    wrong = self.confusion.view(len(self.totals), -1)[index].clone()
                    wrong[index] = 0
                    row["taken_for"] = class_names[int(wrong.argmax())] if wrong.any() else ""
                rows.append(row)
        return rows


def draw_confusion(counts: Tensor, class_names: Sequence[str], path: str | Path) -> None:
    """Draw what was taken for what, rows in percent of each class's images; classes without images are left out.

    Args:
        counts: (K * K,) or (K, K), row: true class.
        class_names: (K,) names.
        path: A picture file; its ending says the format.

    Raises:
        UsageError: if matplotlib is missing or does not know the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("matplotlib is missing: a confusion picture needs it; pip install matplotlib") from error
    counts = counts.view(len(class_names), -1).cpu()
    present = [index for index, row in enumerate(counts.tolist()) if sum(row)]
    seen = sorted({*present, *counts.sum(0).nonzero().flatten().tolist()})
    shares = (100 * counts / counts.sum(1, keepdim=True).clamp_min(1))[present][:, seen]
    size = min(30.0, 3 + 0.35 * len(seen))
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, vmin=0, vmax=100, cmap="Blues")
    if len(seen) <= 100:
        axes.set_xticks(range(len(seen)), [class_names[index] for index in seen], rotation=90)
        axes.set_yticks(range(len(present)), [class_names[index] for index in present])
    if len(seen) <= 20:
        for (row, column), share in zip(
            torch.ones_like(shares).nonzero().tolist(), shares.flatten().tolist(), strict=True
        ):
            axes.text(column, row, f"{share:.0f}", ha="center", va="center", color="white" if share > 50 else "black")
    axes.set(xlabel="predicted", ylabel="true class")
    figure.colorbar(image, label="% of the class")
    save_figure(figure, path)


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure; the file appears whole or not at all."""
    kind = Path(path).suffix.lstrip(".") or "png"
    if kind not in figure.canvas.get_supported_filetypes():
        raise UsageError(f"unknown picture format: {path}; use .png, .svg or .pdf")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=120)
