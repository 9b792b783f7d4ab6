"""The training task of a classifier: images are erased and mixed, the backbone may be frozen, a head has its losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vision.models.dense_mixin import DenseOutput
from vision.training.task import Task, head_modules, top_modules

__all__ = ["HeadTask", "Mixup"]

Mixup = Callable[[Tensor, Any], tuple[Tensor, Any]]


class HeadTask(Task):
    """The task of a classifier with the second-order head, or any other.

    - The loss of a model that returns two logits in training (``sum_loss``) is the sum of their losses.
    - With a frozen backbone only the head is trained; the rest stays in evaluation mode, statistics included. With
      ``train_layers`` so is what lies below the top blocks, and nothing is stored for a backward pass through it.

    Args:
        model: The model.
        criterion: The loss of logits and targets.
        device: Where the model is.
        freeze_backbone: Whether to train the head alone.
        train_layers: Number of blocks from the top that are trained with the head; 0: none; None: the whole model.
        erase: Random erasing of a batch of images.
        mixup: From images and targets to mixed ones.
        mixup_off_epoch: The epoch from which on nothing is mixed; 0: none.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        device: torch.device,
        freeze_backbone: bool = False,
        erase: Callable[[Tensor], Tensor] | None = None,
        mixup: Mixup | None = None,
        mixup_off_epoch: int = 0,
        train_layers: int | None = None,
    ) -> None:
        super().__init__(model, criterion, device)
        self.erase, self.mixup, self.mixup_off_epoch = erase, mixup, mixup_off_epoch
        self._frozen: list[nn.Module] = []
        if freeze_backbone or train_layers is not None:
            parts = top_modules(model, train_layers) if train_layers else head_modules(model)
            learning = {module for part in parts for module in part.modules()}
            trained = {parameter for module in learning for parameter in module.parameters()}
            self._frozen = [module for module in model.modules() if module not in learning]
            for parameter in model.parameters():
                parameter.requires_grad_(parameter.requires_grad and parameter in trained)

    def train(self, mode: bool = True) -> HeadTask:
        super().train(mode)
        for module in self._frozen:
            module.training = False
        return self

    def start_epoch(self, epoch: int) -> None:
        if self.mixup is not None and self.mixup_off_epoch:
            self.mixup.mixup_enabled = epoch < self.mixup_off_epoch

    def make_targets(self, targets: Any) -> Any:
        """Turn what the loader yields beside the images into targets."""
        return targets

    def prepare(self, images: Tensor, targets: Any) -> tuple[Tensor, Any]:
        if self.erase is not None:
            images = self.erase(images)
        targets = self.make_targets(targets)
        return (images, targets) if self.mixup is None else self.mixup(images, targets)

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        outputs = self.trainable_module(input)
        if isinstance(outputs, DenseOutput):
            raise TypeError("logits of patches need labels: train with TokenLabelTask")
        if isinstance(outputs, Tensor):
            outputs = (outputs,)
        return {"loss": sum(self.criterion(output.float(), target) for output in outputs), "output": sum(outputs)}
