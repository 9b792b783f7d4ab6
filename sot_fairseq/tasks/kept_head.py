"""The head of a checkpoint that a training goes on with: ``--finetune-from-model FILE --keep-head``."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from sot_base.errors import UsageError
from sot_core.options import HEAD_OPTIONS
from sot_fairseq.fairseq_patches.safe_loading import read_checked_checkpoint, task_settings
from sot_fairseq.models.sot_roberta import HEADS

__all__ = ["KeptHead", "read_head", "take_head"]

TASK = "sentence_prediction_mgcrp"


class KeptHead(NamedTuple):
    """What a checkpoint says of its head.

    Attributes:
        name: Its name in the checkpoint.
        options: The options of the head, by their names on the command line.
        labels: Names of its classes in order; empty for regression.
        multi_label: Whether a row may have several labels, or none.
    """

    name: str
    options: dict[str, Any]
    labels: list[str]
    multi_label: bool

    @property
    def kind(self) -> str:
        """What the head is called in ``HEAD`` of the scripts: ``cls``, or its pooling."""
        return "cls" if str(self.options["head_fusion"]) == "cls" else str(self.options["head_pooling"])


def read_head(path: str | os.PathLike[str]) -> KeptHead:
    """Read what a checkpoint of a probe or of a training says of its head.

    Raises:
        UsageError: if it is not a classifier of this task.
    """
    state = read_checked_checkpoint(path)
    task = task_settings(state)
    name = task.get("classification_head_name")
    if task.get("_name") != TASK or not any(key.startswith(f"{HEADS}{name}.") for key in state["model"]):
        raise UsageError(
            f"no head of the task {TASK}: {os.path.abspath(path)}; give a checkpoint of a probe or of a training with "
            "it, or leave out --keep-head"
        )
    options = {option.name: task.get(option.name, option.default) for option in HEAD_OPTIONS}
    labels = (state.get("task_state") or {}).get("label_names") or []
    return KeptHead(str(name), options, list(labels), bool(task.get("multi_label", False)))


def take_head(cfg: Any) -> KeptHead:
    """Replace the head's options of a run by those of the checkpoint that it starts from.

    Args:
        cfg: The task's options; changed in place.

    Raises:
        UsageError: without ``--finetune-from-model``, for other options than the head's, or another kind of data.
    """
    if cfg.finetune_from_model is None:
        raise UsageError("no checkpoint whose head is kept: --keep-head; give --finetune-from-model FILE")
    path = os.path.abspath(cfg.finetune_from_model)
    kept = read_head(path)
    for option in HEAD_OPTIONS:
        given, saved = str(cfg[option.name]), str(kept.options[option.name])
        if given not in (str(option.default), saved):
            raise UsageError(f"{option.flag} {given}, but the head has {saved}: {path}; leave it out, or --keep-head")
    if kept.multi_label != cfg.multi_label:
        kinds = ("one label a row", "several labels a row")
        raise UsageError(
            f"the head gives {kinds[kept.multi_label]}, the data have {kinds[cfg.multi_label]}: {path}; leave out "
            "--keep-head"
        )
    cfg.update(kept.options)
    return kept
