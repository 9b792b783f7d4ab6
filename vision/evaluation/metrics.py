"""Accuracy over a whole data set: overall, of each class, and which classes are confused."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from timm.task.evaluator import ClassificationEvaluator
from torch import Tensor

from sot_base.errors import UsageError

__all__ = ["ClassEvaluator", "collapsed_class", "warn_if_collapsed"]

_logger = logging.getLogger(__name__)


class ClassEvaluator(ClassificationEvaluator):
    """timm's evaluator (loss, top-1, top-5 in percent) that also counts each class.

    Args:
        num_classes: Outputs K of the model.
        device: Where the outputs are.
        allowed: Indices of the classes that may be predicted; None: all.
        confusion: Whether to count each pair of true and predicted class, K * K numbers.

    Attributes:
        totals: (K,) images of each class.
        hits: (K,) those of them that were predicted correctly.
        predicted: (K,) images that were predicted as each class.
        confusion: (K * K,) images of class i predicted as class j at i * K + j, or None.
    """

    def __init__(
        self,
        num_classes: int,
        device: torch.device | str = "cpu",
        allowed: Sequence[int] | None = None,
        confusion: bool = False,
    ) -> None:
        super().__init__(device)
        zeros = (torch.zeros(num_classes, dtype=torch.int64, device=device) for _ in range(3))
        self.totals, self.hits, self.predicted = zeros
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
        predicted = output.argmax(1)
        count = torch.ones_like(target)
        self.totals.index_add_(0, target, count)
        self.hits.index_add_(0, target, (predicted == target).to(count.dtype))
        self.predicted.index_add_(0, predicted, count)
        if self.confusion is not None:
            self.confusion.index_add_(0, target * len(self.totals) + predicted, count)

    def compute(self, distributed: bool = False) -> dict[str, float]:
        """Loss, top1 and top5 over all processes; the counts of each class are summed over them too.

        Raises:
            UsageError: if no image was counted.
        """
        if distributed:
            for counts in (self.totals, self.hits, self.predicted, self.confusion):
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

    @property
    def num_images(self) -> int:
        """Images counted, after `compute` those of all processes."""
        return int(self.totals.sum())

    def headline(self, metrics: Mapping[str, Any]) -> str:
        """The metrics of the whole in words."""
        return f"top-1 {metrics['top1']:.2f} %, top-5 {metrics['top5']:.2f} %, loss {metrics['loss']:.4f}"

    def worst(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """The classes of the lowest accuracy in words."""
        lines = []
        for row in sorted(rows, key=lambda row: row["accuracy"])[:5]:
            taken_for = f", mostly taken for {row['taken_for']}" if row.get("taken_for") else ""
            lines.append(f"{row['class']}: {row['accuracy']:.2f} % of {row['images']}{taken_for}")
        return lines

    def collapsed(self, class_names: Sequence[str]) -> str | None:
        """The class that all images were predicted as, though they are of several; None otherwise."""
        return collapsed_class(self.predicted, self.totals, class_names)


def collapsed_class(predicted: Tensor, truth: Tensor, class_names: Sequence[str]) -> str | None:
    """The only class that was predicted, with its share of the truth, if that has several; None otherwise.

    Args:
        predicted: (K,) how often each class was predicted.
        truth: (K,) how often it should have been.
        class_names: Their names.
    """
    if (predicted > 0).sum() != 1 or (truth > 0).sum() < 2:
        return None
    index = int(predicted.argmax())
    return f"{class_names[index]!r}, as are {(truth[index] / truth.sum()).item():.0%} of the targets"


def warn_if_collapsed(collapsed: str | None, where: str) -> None:
    """Say that a model predicts the same for everything, which its metrics hide."""
    if collapsed is not None:
        _logger.warning(
            f"all predictions of {where} are {collapsed}: the model has collapsed; if that stays so after a few "
            "evaluations, lower --lr, lengthen the warm-up, or give another --seed"
        )
