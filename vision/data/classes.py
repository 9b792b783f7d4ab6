"""Class names: their order, matching those of data and model, and ImageNet's subsets."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from timm.data import ImageNetInfo
from timm.utils.misc import natural_key

from sot_base.errors import UsageError

__all__ = ["describe", "imagenet_a_names", "imagenet_names", "match_classes", "names_for_model", "natural_order"]


def natural_order(names: Iterable[str]) -> list[str]:
    """Distinct names in natural order: ``2`` before ``10``."""
    return sorted(set(names), key=lambda name: (natural_key(name), name))


@cache
def imagenet_names() -> tuple[str, ...]:
    """The 1,000 synsets of ImageNet-1K in the order of the classifiers' outputs."""
    return tuple(ImageNetInfo().label_names())


@cache
def imagenet_a_names() -> tuple[str, ...]:
    """The 200 synsets of ImageNet-A (arXiv:1907.07174), as timm's package lists them."""
    return tuple(pkgutil.get_data("timm.data", "_info/imagenet_a_synsets.txt").decode().split())


@cache
def _descriptions() -> dict[str, str]:
    return ImageNetInfo().label_descriptions(as_dict=True)


def describe(name: str) -> str:
    """A readable name: the description of an ImageNet synset; any other name unchanged."""
    return _descriptions().get(name, name)


def _some(names: Sequence[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def match_classes(data_names: Sequence[str], model_names: Sequence[str], where: str) -> np.ndarray:
    """The model's index of each of the data's classes, by name; the data need not have all of the model's.

    Args:
        data_names: Classes of a data set.
        model_names: Classes of the model in the order of its outputs.
        where: What the data set is, for the message.

    Raises:
        UsageError: if the data has a class that the model does not know.
    """
    index = {name: position for position, name in enumerate(model_names)}
    unknown = [name for name in data_names if name not in index]
    if unknown:
        raise UsageError(
            f"unknown class {_some(unknown)}: {where}; the model knows {len(model_names)} classes: {_some(model_names)}"
        )
    return np.array([index[name] for name in data_names], dtype=np.int64)


def names_for_model(num_classes: int, data_names: Sequence[str]) -> list[str]:
    """Class names for a model that was saved without them.

    Args:
        num_classes: Outputs of the model.
        data_names: Classes of the data, in natural order.

    Returns:
        ImageNet's synsets for a model of 1,000 classes on data whose classes are synsets; else ``data_names``.

    Raises:
        UsageError: if the numbers differ.
    """
    synsets = imagenet_names()
    if num_classes == len(synsets) and set(data_names) <= set(synsets):
        return list(synsets)
    if num_classes != len(data_names):
        raise UsageError(
            f"the checkpoint names no classes: {num_classes} outputs for the data's {len(data_names)} classes; "
            "give data with the classes it was trained on, or a checkpoint of vision/train.py"
        )
    return list(data_names)
