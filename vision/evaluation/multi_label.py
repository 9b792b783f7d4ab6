"""Metrics of images that have any number of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from timm.task.evaluator import MultiLabelClassificationEvaluator
from torch import Tensor

from sot_base.errors import UsageError

__all__ = ["MultiLabelEvaluator"]


class MultiLabelEvaluator(MultiLabelClassificationEvaluator):
    """Mean average precision, F1 and exact matches over a whole data set, in percent, and the numbers of each class.

    The means over classes are over those that any of the images has. `timm`'s evaluator keeps outputs and targets; its
    own means count classes without images as 0.

    Args:
        device: Where the outputs are.
        threshold: Probability from which an image is said to have a class.
    """

    default_metric = "map"

    def compute(self, distributed: bool = False) -> dict[str, float]:
        """``loss``, ``map``, ``f1_micro``, ``f1_macro`` and ``accuracy`` (exact matches) over all processes.

        Raises:
            UsageError: if no image was counted.
        """
        if distributed:
            self._gather()
        loss = super(MultiLabelClassificationEvaluator, self).compute(distributed=distributed)["loss"]
        if not self.outputs:
            raise UsageError("nothing to evaluate: no image can be read; python -m vision.check_data DIR lists them")
        predicted, targets = self._sets()
        rows = [row for row in self.per_class([""] * targets.shape[1]) if row["images"]]
        hits, count = (predicted & targets).sum(), predicted.sum() + targets.sum()
        return {
            "loss": loss,
            "map": _mean(row["average_precision"] for row in rows),
            "f1_micro": 200 * hits.item() / max(1, count.item()),
            "f1_macro": _mean(row["f1"] for row in rows),
            "accuracy": 100 * (predicted == targets).all(1).double().mean().item(),
        }

    def per_class(self, class_names: Sequence[str]) -> list[dict[str, Any]]:
        """For each class its name and images, and average precision (None without images), precision, recall and F1."""
        from sklearn.metrics import average_precision_score  # here: its import takes over a second

        outputs, (predicted, targets) = torch.cat(self.outputs), self._sets()
        rows = []
        for index, name in enumerate(class_names):
            truth, given = targets[:, index], predicted[:, index]
            hits, images, count = (int(part.sum()) for part in (truth & given, truth, given))
            average = 100 * average_precision_score(truth, outputs[:, index]) if images else None
            rows.append(
                {
                    "class": name,
                    "images": images,
                    "average_precision": average,
                    "precision": _percent(hits, count),
                    "recall": _percent(hits, images),
                    "f1": _percent(2 * hits, images + count),
                }
            )
        return rows

    @property
    def num_images(self) -> int:
        """Images counted, after `compute` those of all processes."""
        return sum(len(part) for part in self.outputs)

    def headline(self, metrics: dict[str, Any]) -> str:
        """The metrics of the whole in words."""
        return (
            f"mAP {metrics['map']:.2f} %, F1 {metrics['f1_micro']:.2f} % micro, {metrics['f1_macro']:.2f} % macro, "
            f"exact {metrics['accuracy']:.2f} %, loss {metrics['loss']:.4f}"
        )

    def worst(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """The classes of the lowest average precision in words."""
        known = sorted((row for row in rows if row["images"]), key=lambda row: row["average_precision"])
        return [
            f"{row['class']}: average precision {row['average_precision']:.2f} %, F1 {row['f1']:.2f} %, "
            f"{row['images']} images"
            for row in known[:5]
        ]

    def collapsed(self, class_names: Sequence[str]) -> str | None:
        """What all images were said to have, if that is the same of all and not the truth; None otherwise."""
        predicted, targets = self._sets()
        if len(targets) < 2 or (predicted != predicted[0]).any() or (targets == targets[0]).all():
            return None
        names = ", ".join(repr(class_names[index]) for index in predicted[0].nonzero().flatten())
        return names or "without any class"

    def _sets(self) -> tuple[Tensor, Tensor]:
        """Which classes each image is said to have, and which it has."""
        return torch.cat(self.outputs).sigmoid() >= self.threshold, torch.cat(self.targets)

    def _gather(self) -> None:
        """Collect outputs and targets of all processes, in the order of these."""
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (self.outputs, self.targets))
        self.outputs = [output for outputs, _ in parts for output in outputs]
        self.targets = [target for _, targets in parts for target in targets]


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _mean(values: Any) -> float:
    values = list(values)
    return sum(values) / max(1, len(values))
