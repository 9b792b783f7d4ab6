"""The training task: a model with its loss, as ``timm.task`` has it, and the optimizer of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay, param_groups_weight_decay
from timm.task import ClassificationTask
from torch import Tensor, nn

from sot_base.errors import UsageError
from vision.models.head_mixin import HeadMixin

__all__ = ["Task", "create_optimizer", "head_modules", "top_modules"]


class Task(ClassificationTask):
    """timm's task with the steps that differ between kinds of training; one subclass for each kind.

    timm's part is the forward pass to ``loss`` and ``output``, averaged weights, wrapping for compilation and several
    processes, and the state of a checkpoint.

    Args:
        model: The model.
        criterion: The loss of the model's output and targets.
        device: Where the model is.
        describe: Returns the entries of a checkpoint that say what the model is and how far the run has come.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        device: torch.device,
        describe: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        super().__init__(model, criterion, device=device, verbose=False)
        self.describe = describe

    def start_epoch(self, epoch: int) -> None:
        """Prepare for an epoch."""

    def prepare(self, images: Tensor, targets: Any) -> tuple[Tensor, Any]:
        """Turn a batch of the loader into what the model and the loss take, on the device.

        Random numbers may be drawn from the global generators, which are seeded for each step.
        """
        return images, targets

    def share(self, count: int, planned: int) -> float:
        """The weight of a batch's loss in its update, which has ``planned`` images: each image counts the same."""
        return count / planned

    def get_checkpoint_state(self, ema: bool = False, **kwargs: Any) -> dict[str, Any]:
        state = super().get_checkpoint_state(ema=ema, **kwargs)
        return state if ema else {**state, **self.describe()}


def create_optimizer(model: nn.Module, head_lr_scale: float = 1.0, **kwargs: Any) -> torch.optim.Optimizer:
    """``timm.optim.create_optimizer_v2`` with a separate learning rate for the head.

    Args:
        model: The model; frozen parameters are in no group.
        head_lr_scale: The head's learning rate as a multiple of the others', which timm's schedulers keep
            (``lr_scale`` of a group).
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


def head_modules(model: nn.Module) -> list[nn.Module]:
    """The modules of a model's classification head.

    Raises:
        UsageError: if there are none with parameters.
    """
    if isinstance(model, HeadMixin):
        return [model.head]
    classifier = model.get_classifier()
    modules = list(classifier) if isinstance(classifier, tuple) else [classifier]
    if not any(list(module.parameters()) for module in modules):
        raise UsageError(f"{type(model).__name__} has no classification head to train alone")
    return modules


def top_modules(model: nn.Module, count: int) -> list[nn.Module]:
    """The top blocks of a transformer (> 0) and the modules above them, the head among them.

    Raises:
        UsageError: for a model without a list of blocks, or with fewer of them.
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or not hasattr(model, "patch_embed"):
        raise UsageError(
            f"{type(model).__name__} is no vision transformer with blocks: --train-layers; give --freeze-backbone to "
            "train its head alone"
        )
    if count > len(blocks):
        raise UsageError(f"the model has {len(blocks)} blocks: --train-layers {count}; give at most {len(blocks)}")
    names = [name for name, _ in model.named_children()]
    above = names[names.index("blocks") + 1 :]
    return [*blocks[-count:], *(model.get_submodule(name) for name in above)]
