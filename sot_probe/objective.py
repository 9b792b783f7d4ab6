"""Losses and predictions for the kinds of targets: classes, sets of classes, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sot_base.class_weights import class_weights

__all__ = ["Kind", "Objective", "as_targets", "weigh_classes"]

Kind = Literal["classes", "sets", "numbers"]
TYPES = {"classes": torch.int64, "sets": torch.bool, "numbers": torch.float32}


@dataclass(frozen=True)
class Objective:
    """The loss of a head, and predictions from its logits.

    Args:
        kind: ``classes`` (one for each row), ``sets`` (multi-label) or ``numbers`` (regression).
        num_classes: Width K of the logits; 1 for numbers.
        class_weights: (K,) weights of the classes in the loss; for ``sets``, of the positive rows. None: 1.
    """

    kind: Kind
    num_classes: int
    class_weights: Tensor | None = None

    def on(self, device: torch.device) -> Objective:
        """The same, with its weights on a device."""
        return self if self.class_weights is None else replace(self, class_weights=self.class_weights.to(device))

    def loss(self, logits: Tensor | tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """The mean loss of a batch; for a tuple of logits (``sum_loss``) the sum of their losses.

        Shape:
            logits (B, K), targets (B,) or with ``sets`` (B, K) -> ().
        """
        parts = logits if isinstance(logits, tuple) else (logits,)
        return torch.stack([self._loss(part, targets) for part in parts]).sum()

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.kind == "numbers":
            return F.mse_loss(logits.view(-1), targets)
        weights = None if self.class_weights is None else self.class_weights.to(logits.device)
        if self.kind == "sets":
            return F.binary_cross_entropy_with_logits(logits, targets.float(), pos_weight=weights)
        return F.cross_entropy(logits, targets, weight=weights)

    def decide(self, logits: Tensor) -> np.ndarray:
        """Predictions from logits (B, K): class indices (B,), sets of classes (B, K), bool, or numbers (B,)."""
        if self.kind == "numbers":
            return logits[:, 0].numpy()
        return (logits > 0 if self.kind == "sets" else logits.argmax(dim=-1)).numpy()

    def probabilities(self, logits: Tensor) -> np.ndarray:
        """Probability of each class, (B, K) -> (B, K), float64; independent for ``sets``."""
        logits = logits.double()
        return (logits.sigmoid() if self.kind == "sets" else logits.softmax(dim=-1)).numpy()


def as_targets(values: np.ndarray, kind: Kind) -> Tensor:
    """Targets in the type that the loss expects."""
    return torch.from_numpy(np.asarray(values)).to(TYPES[kind])


def weigh_classes(
    text: str, labels: Sequence[str], targets: Tensor, kind: Kind, option: str = "--class-weights"
) -> Tensor:
    """Weights of the classes (K,) from the training targets, see `sot_base.class_weights.class_weights`."""
    sets = kind == "sets"
    counts = targets.sum(dim=0) if sets else targets.bincount(minlength=len(labels))
    found = class_weights(text, list(labels), counts.tolist(), len(targets), sets, option=option)
    return torch.from_numpy(found).float()
