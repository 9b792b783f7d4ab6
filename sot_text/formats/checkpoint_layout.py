"""The layout of a fairseq checkpoint that no training wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["fairseq_checkpoint"]


def fairseq_checkpoint(
    task: Mapping[str, Any], model: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Lay out a fairseq checkpoint of plain values, which ``torch.load(weights_only=True)`` reads as it is.

    Args:
        task: Options of the task, with its ``_name``.
        model: Options of the model, with the architecture as its ``_name``.
        tensors: The model's tensors.
    """
    common = {"seed": 1}
    return {
        "cfg": {"common": common, "task": dict(task), "model": dict(model), "bpe": None, "tokenizer": None},
        "model": dict(tensors),
        "optimizer_history": [
            {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0},
        ],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
