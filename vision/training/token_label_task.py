"""The training task of token labeling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vision.models.dense_mixin import DenseOutput
from vision.token_label.targets import TokenLabelTarget
from vision.training.task import HeadTask
from vision.training.token_label_loss import TokenLabelLoss

__all__ = ["TokenLabelTask"]


class TokenLabelTask(HeadTask):
    """`HeadTask` for a model that gives a `DenseOutput` in training.

    A classifier whose part of the loss has weight 0 stays as it is: no gradient reaches it.

    Args:
        model: The model; its classifier of patches is ``head.dense_fc``.
        criterion: The loss.
        device: Where the model is.
        **kwargs: As `HeadTask`.
    """

    def __init__(self, model: nn.Module, criterion: TokenLabelLoss, device: torch.device, **kwargs: Any) -> None:
        super().__init__(model, criterion, device, **kwargs)
        dense = set(model.head.dense_fc.parameters())
        unused = set() if criterion.dense_weight else dense
        unused |= set() if criterion.cls_weight else set(model.head.parameters()) - dense
        for parameter in unused:
            parameter.requires_grad_(False)

    def forward(self, input: Tensor, target: TokenLabelTarget | Tensor) -> dict[str, Any]:
        """Loss, class logits and the parts of the loss, see `TokenLabelLoss.parts`; computed in single precision."""
        output: DenseOutput = self.trainable_module(input)
        logits = output.logits if isinstance(output.logits, tuple) else (output.logits,)
        logits = tuple(part.float() for part in logits)
        parts = self.criterion.parts(DenseOutput(logits, output.dense.float(), output.box), target)
        return {"loss": self.criterion.weighted(parts), "output": sum(logits), "parts": parts}
