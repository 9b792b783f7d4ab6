"""The checkpoint that a training starts from: its weights and, where it has the data's classes, its head."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import timm
from torch import nn

from sot_base.errors import UsageError
from vision.models.head_mixin import HeadMixin
from vision.models.weights.fit import classifier_names
from vision.models.weights.load import choose_weights, load_checkpoint
from vision.models.weights.published_names import is_published
from vision.models.weights.read import read_checkpoint
from vision.models.weights.wrappers import unwrap_names

__all__ = ["InitialCheckpoint"]

_logger = logging.getLogger(__name__)

_CLASSIFIERS = ("head.cls_fc.", "head.word_fc.", "head.dense_fc.")
_MOVED_NORM = {f"head.norm.{name}": f"fc_norm.{name}" for name in ("weight", "bias")}  # by `attach_head`


class InitialCheckpoint:
    """A checkpoint of a probe, of a training or from elsewhere, possibly of other classes or another image size.

    Args:
        path: The file.

    Raises:
        UsageError: if it is missing or is not a checkpoint.
    """

    def __init__(self, path: str) -> None:
        self.path, self.content = path, read_checkpoint(path)

    def with_saved_head(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe of a model with the checkpoint's head, unless the recipe has fields of a head itself."""
        saved = self.content.get("recipe")
        head = saved.get("head") if isinstance(saved, Mapping) else None
        return {**recipe, "head": recipe["head"] or dict(head or {})}

    def load(
        self, model: nn.Module, name: str, class_names: Sequence[str], multi_label: bool = False, strict: bool = False
    ) -> None:
        """Load the weights into a new model.

        The classifier that a timm model had before `attach_head` replaced it is ignored, and so are all classifiers
        where the checkpoint names other classes than the data.

        Args:
            model: The model.
            name: Its name in timm.
            class_names: The data's classes.
            multi_label: Whether an image may have several.
            strict: Whether other classes, or a head that does not fit, are an error.

        Raises:
            UsageError: if the backbone does not fit.
        """
        _, state = choose_weights(self.content)
        if not (isinstance(model, HeadMixin) and is_published(state, model.published_family)):
            state = unwrap_names(state, model.state_dict().keys())
        plain = tuple(f"{layer}." for layer in classifier_names(timm.get_pretrained_cfg(name)))
        if not self._has_classes(class_names, multi_label, strict):
            ignored = _CLASSIFIERS if isinstance(model, HeadMixin) else plain
            state = {key: value for key, value in state.items() if not key.startswith(ignored)}
        if isinstance(model, HeadMixin):
            own = model.state_dict()
            moved = {old: new for old, new in _MOVED_NORM.items() if new in own and old not in own}
            state = {moved.get(key, key): value for key, value in state.items()}
            state = {key: value for key, value in state.items() if key in own or not key.startswith(plain)}
            head = {key: value.shape for key, value in own.items() if key.startswith("head.")}
            if all(key in state and state[key].shape == shape for key, shape in head.items()):
                config = model.head.config
                kind = f"pooling {config.pooling}, fusion {config.fusion}"
                _logger.info(f"the training starts from the saved head ({kind}): {self.path}")
        load_checkpoint(model, state, strict=strict)

    def _has_classes(self, class_names: Sequence[str], multi_label: bool, strict: bool) -> bool:
        """Whether the checkpoint's classes, if it names any, are the data's."""
        names = self.content.get("class_names")
        if not isinstance(names, list):
            return True
        several = bool(self.content.get("multi_label", False))
        if strict and several != multi_label:
            kinds = ("one label an image", "several labels an image")
            raise UsageError(
                f"the checkpoint's head gives {kinds[several]}, the data have {kinds[multi_label]}: {self.path}; leave "
                "out --strict-head"
            )
        if names == list(class_names):
            return True
        if strict:
            raise UsageError(
                f"the checkpoint has the classes {_some(names)}, the data {_some(class_names)}: {self.path}; give data "
                "of the same classes, or leave out --strict-head"
            )
        _logger.warning(f"other classes than the data's: {self.path}; its classifiers are ignored")
        return False


def _some(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:5])) + (", ..." if len(names) > 5 else "")
