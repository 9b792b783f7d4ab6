"""The model of a run: a plain backbone with a new head, or a saved model with its own."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PretrainedConfig

from sot_base.errors import UsageError
from sot_base.names import name_key
from sot_hf.configuration import SoTConfig
from sot_hf.error_text import first_sentence, model_location
from sot_hf.load_config import load_config, saved_labels
from sot_hf.modeling import SoTForSequenceClassification
from sot_text.glue import GlueTask

__all__ = ["keeps_head", "load_backbone", "load_model", "load_trained", "load_weights"]

logger = logging.getLogger(__name__)

MULTI_LABEL = "multi_label_classification"


def load_weights(path: str, config: PretrainedConfig, **arguments: Any) -> SoTForSequenceClassification:
    """Load a model whose configuration is known.

    Args:
        path: Folder or name of the model.
        config: What :func:`sot_hf.load_config.load_config` gave for a model saved with its head.
        **arguments: As `PreTrainedModel.from_pretrained`.

    Raises:
        UsageError: For whatever keeps the weights from loading.
    """
    return _load(SoTForSequenceClassification.from_saved, path, config, arguments)


def load_trained(path: str, **arguments: Any) -> SoTForSequenceClassification:
    """Load a model that was saved with its head.

    Args:
        path: Folder or name of the model.
        **arguments: As `PreTrainedModel.from_pretrained`.

    Raises:
        UsageError: For a backbone without a head, or whatever keeps the weights from loading.
    """
    config = load_config(path)
    if not isinstance(config, SoTConfig):
        raise UsageError(f"no trained head: {model_location(path)}; give a model of sot_hf.run_glue or sot_hf.probe")
    config.freeze_backbone, config.train_layers = False, None
    return load_weights(path, config, **arguments)


def load_backbone(path: str, config: PretrainedConfig) -> SoTForSequenceClassification:
    """Load a plain backbone, in float32, with a head that is not trained.

    Args:
        path: Folder or name of the model.
        config: What :func:`sot_hf.load_config.load_config` gave.

    Raises:
        UsageError: For whatever keeps the weights from loading, or a backbone that no head fits.
    """
    try:
        config = SoTConfig(config)
    except ValueError as error:
        raise UsageError(f"no head fits the backbone ({error}): {model_location(path)}; give an encoder") from error
    return _load(SoTForSequenceClassification.from_backbone, path, config, {"dtype": torch.float32})


def load_model(
    path: str,
    config: PretrainedConfig,
    task: GlueTask,
    head: Mapping[str, Any],
    recipe: Mapping[str, Any],
    train: bool,
    strict_head: bool = False,
    freeze_backbone: bool = False,
    train_layers: int | None = None,
    layers: Sequence[int] | None = None,
    layer_pair: str | None = None,
    cache_dir: str | None = None,
) -> tuple[SoTForSequenceClassification, GlueTask]:
    """Load a model for a task.

    A saved head is used if it has the task's labels, in whatever order, and the settings asked for. Otherwise
    training re-initialises it, with a warning.

    Args:
        path: Folder or name of the model.
        config: What :func:`sot_hf.load_config.load_config` gave.
        task: The task with its labels.
        head: Fields of `HeadConfig` that the user gives.
        recipe: Fields of `HeadConfig` for a new head on a plain backbone, where the user gives none.
        train: Whether the model will be trained.
        strict_head: Whether a saved head that does not fit is an error.
        freeze_backbone: Whether only the head learns.
        train_layers: Number of layers from the top that learn with the head; None: all.
        layers: Layers that the head reads, as in `SoTConfig`; -1 is the last one. None: the last one, or
            those of a saved head.
        layer_pair: How it reads two of them, as in `SoTConfig`.
        cache_dir: Where downloads are kept.

    Returns:
        The model, in float32, and the task with its labels in the model's order.

    Raises:
        UsageError: If there is no head and no training, or a saved head does not fit and may not be replaced.
    """
    arguments: dict[str, Any] = {"cache_dir": cache_dir, "dtype": torch.float32}
    own = {"freeze_backbone": freeze_backbone, "train_layers": train_layers}
    own |= {"layers": _count_from_below(layers, config), "layer_pair": layer_pair}
    if not isinstance(config, SoTConfig):
        if not train:
            where = model_location(path)
            raise UsageError(f"a backbone without a trained head: {where}; give --do_train, or a trained model")
        config = _new_config(config, {**recipe, **head}, task, own, path)
        return _load(SoTForSequenceClassification.from_backbone, path, config, arguments), task
    wanted, changes = _compare(config, task, head)
    if layers is not None and (own["layers"], layer_pair) != (_layers_of(config), config.layer_pair):
        found, asked = (" ".join(map(str, part)) for part in (_layers_of(config), own["layers"]))
        reads = f"the saved head reads layers {found} (pair: {config.layer_pair}), not {asked} (pair: {layer_pair})"
        changes = f"{changes}; {reads}" if changes else reads
    if changes and (strict_head or not train):
        remedy = "leave out --strict_head" if train else "train one with --do_train"
        raise UsageError(f"{changes}: {model_location(path)}; give a model of this task, or {remedy}")
    config.freeze_backbone, config.train_layers = False, None
    model = load_weights(path, config, **arguments)
    if not changes:
        if freeze_backbone:
            model.freeze_backbone()
        elif train_layers is not None:
            model.train_top_layers(train_layers)
        return model, _in_saved_order(task, saved_labels(config))
    logger.warning("%s: the whole head is re-initialised", changes)
    config = _new_config(config.backbone, wanted, task, own, path)
    return SoTForSequenceClassification(config, backbone=model.backbone), task


def keeps_head(config: PretrainedConfig, task: GlueTask, head: Mapping[str, Any]) -> bool:
    """Whether :func:`load_model` uses the head that was saved with a model."""
    return isinstance(config, SoTConfig) and not _compare(config, task, head)[1]


def _load(loader: Any, path: str, config: PretrainedConfig, arguments: Mapping[str, Any]) -> Any:
    try:
        return loader(path, config=config, **arguments)
    except UsageError:
        raise
    except Exception as error:  # files that are cut off, or no weights at all
        raise UsageError(
            f"cannot load the weights ({first_sentence(error)}): {model_location(path)}; give a model folder"
        ) from error


def _compare(config: SoTConfig, task: GlueTask, head: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the head that the task needs, and how the saved one differs from it, empty if it does not."""
    saved, names = saved_labels(config), _names(task)
    try:
        wanted = SoTConfig(config.backbone, head={**config.head, **head}, num_labels=len(names)).head
    except ValueError as error:
        raise UsageError(f"the head cannot be built: {error}; see docs/heads.md") from error
    changed = [f"{key} {config.head[key]!r} -> {value!r}" for key, value in wanted.items() if config.head[key] != value]
    what = "settings"
    several = config.problem_type == MULTI_LABEL
    if sorted(map(name_key, saved or [])) != sorted(map(name_key, task.labels)):
        changed.insert(0, f"labels {', '.join(saved or ['a number'])} -> {', '.join(names)}")
        what = "labels"
    elif several != task.multi_label:
        kinds = ("one label a row", "several labels a row")
        changed.insert(0, f"{kinds[several]} -> {kinds[task.multi_label]}")
        what = "labels"
    return wanted, f"the saved head has other {what} ({'; '.join(changed)})" if changed else ""


def _in_saved_order(task: GlueTask, saved: list[str] | None) -> GlueTask:
    """The task with its labels in the order of the model's."""
    if saved is None:
        return task
    names = {name_key(name): name for name in task.labels}
    if len(names) < len(saved):  # labels that differ in upper and lower case only are told apart by it
        return dataclasses.replace(task, labels=tuple(saved))
    return dataclasses.replace(task, labels=tuple(names[name_key(name)] for name in saved))


def _count_from_below(layers: Sequence[int] | None, config: PretrainedConfig) -> list[int] | None:
    """Numbers of layers, of which negative ones count from the last layer."""
    if layers is None:
        return None
    count = _num_layers(config)
    return [layer + count + 1 if layer < 0 else layer for layer in layers]


def _layers_of(config: SoTConfig) -> list[int]:
    return [_num_layers(config)] if config.layers is None else list(config.layers)


def _num_layers(config: PretrainedConfig) -> int:
    return int(config.get_text_config().num_hidden_layers)


def _problem_type(task: GlueTask) -> str:
    return "regression" if task.regression else MULTI_LABEL if task.multi_label else "single_label_classification"


def _names(task: GlueTask) -> list[str]:
    return ["score"] if task.regression else list(task.labels)


def _new_config(
    backbone: PretrainedConfig,
    head: Mapping[str, Any],
    task: GlueTask,
    own: Mapping[str, Any],
    path: str,
) -> SoTConfig:
    try:
        return SoTConfig(
            backbone,
            head=head,
            **own,
            id2label=dict(enumerate(_names(task))),
            problem_type=_problem_type(task),
        )
    except ValueError as error:
        raise UsageError(f"the head cannot be built ({error}): {model_location(path)}; see docs/heads.md") from error
