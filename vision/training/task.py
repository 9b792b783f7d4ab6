"""The training task: timm's, for heads with two classifiers, frozen backbones and self-describing checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay, param_groups_weight_decay
from timm.task import ClassificationTask
from torch import Tensor, nn

from vision.models.build import head_modules
from vision.models.dense_mixin import DenseOutput

__all__ = ["HeadTask", "create_optimizer"]


class HeadTask(ClassificationTask):
    """`timm.task.ClassificationTask` with what the second-order head needs.

    - A model that gives two logits in training (``sum_loss``) gets the sum of their losses.
    - With a frozen backbone only the head learns; the rest stays in evaluation mode, statistics included.
    - A checkpoint also holds ``describe()``: plain values that say what the model is.

    Args:
        model: The model.
        criterion: The loss, or arguments of ``timm.loss.create_classification_loss``.
        device: Where the model is.
        freeze_backbone: Whether only the head learns.
        describe: Gives the further entries of a checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module | dict[str, Any],
        device: torch.device,
        freeze_backbone: bool = False,
        describe: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        given = {"criterion_kwargs" if isinstance(criterion, dict) else "criterion": criterion}
        super().__init__(model, **given, device=device, verbose=False)
        self.describe = describe
        head = {module for part in head_modules(model) for module in part.modules()} if freeze_backbone else set()
        self._frozen = [module for module in model.modules() if module not in head] if freeze_backbone else []
        if freeze_backbone:
            trained = {parameter for part in head_modules(model) for parameter in part.parameters()}
            for parameter in model.parameters():
                parameter.requires_grad_(parameter.requires_grad and parameter in trained)

    def train(self, mode: bool = True) -> HeadTask:
        super().train(mode)
        for module in self._frozen:
            module.training = False
        return self

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        outputs = self.trainable_module(input)
        if isinstance(outputs, DenseOutput):
            raise TypeError("logits of patches need labels: train with TokenLabelTask")
        if isinstance(outputs, Tensor):
            outputs = (outputs,)
        return {"loss": sum(self.criterion(output.float(), target) for output in outputs), "output": sum(outputs)}

    def get_checkpoint_state(self, ema: bool = False, **kwargs: Any) -> dict[str, Any]:
        state = super().get_checkpoint_state(ema=ema, **kwargs)
        return state if ema else {**state, **self.describe()}


def create_optimizer(model: nn.Module, head_lr_scale: float = 1.0, **kwargs: Any) -> torch.optim.Optimizer:
    """``timm.optim.create_optimizer_v2`` with the head's learning rate as a multiple of the others.

    Args:
        model: The model; what is frozen gets no group.
        head_lr_scale: The multiple, which timm's schedulers keep (``lr_scale`` of a group).
        **kwargs: Arguments of ``create_optimizer_v2``: ``opt``, ``lr``, ``weight_decay``, ``layer_decay``, ...
    """
    layer_decay, weight_decay = kwargs.pop("layer_decay", None), kwargs["weight_decay"]
    skip = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    if layer_decay is None:
        groups = param_groups_weight_decay(model, weight_decay, no_weight_decay_list=skip)
    else:
        groups = param_groups_layer_decay(model, weight_decay, no_weight_decay_list=skip, layer_decay=layer_decay)
    if head_lr_scale != 1.0:
        head = {parameter for part in head_modules(model) for parameter in part.parameters()}
        groups = [part for group in groups for part in _split(group, head, head_lr_scale)]
    return create_optimizer_v2(groups, **kwargs)


def _split(group: dict[str, Any], head: set[nn.Parameter], scale: float) -> list[dict[str, Any]]:
    own = {**group, "params": [p for p in group["params"] if p in head], "lr_scale": group.get("lr_scale", 1.0) * scale}
    rest = {**group, "params": [p for p in group["params"] if p not in head]}
    return [part for part in (rest, own) if part["params"]]
