"""Accuracy over a whole data set: overall, of each class, and which classes are confused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from timm.task.evaluator import ClassificationEvaluator
from torch import Tensor

from sot_base.errors import UsageError

__all__ = ["ClassEvaluator"]


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
        """Loss, top1 and top5 over all processes; the counts of each class are summed over them too.

        Raises:
            UsageError: if no image was counted.
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
