"""Recipes: the hyper-parameters that a published model was trained with, files of ``vision/configs``.

The name of a published model brings its recipe. Whatever the command line or a ``--config`` file says comes first, and
what belongs to another choice of theirs is left out: a recipe's warm-up is for its own number of epochs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["NO_RECIPE", "TOKEN_LABELING", "find_recipe", "is_saved_run", "log_recipe", "without_rivals"]

_logger = logging.getLogger(__name__)

NO_RECIPE = "none"
TOKEN_LABELING = ("token_label_data", "token_label_size", "dense_weight", "cls_weight", "ground_truth", "mix_token")
_RECIPES = {  # by patterns of models' names; None: the file is called like the model
    "sot_tiny": None,
    "sot_small": None,
    "sot_base": None,
    "so_vit_*": None,
    "hvt*": "hvt",
    "scale_hvt*": "hvt",
    "lvvit_*": "lvvit",
}
_RIVALS = {"lr": ("lr_base",), "lr_base": ("lr",)}  # two ways to say the same
_RECIPE_RIVALS = {**_RIVALS, "epochs": ("warmup_epochs",)}


def find_recipe(model: str) -> str:
    """The name of the recipe that a model was published with, or `NO_RECIPE`; capitals do not matter."""
    name = model.lower()
    for pattern, recipe in _RECIPES.items():
        if fnmatchcase(name, pattern):
            return recipe or name
    return NO_RECIPE


def is_saved_run(values: Mapping[str, Any]) -> bool:
    """Whether the values of a configuration file are all the options of a run, ``options.yaml``."""
    return "dry_run" in values


def without_rivals(values: Mapping[str, Any], given: Collection[str], recipe: bool = False) -> dict[str, Any]:
    """The values of a file without those that given options leave without a meaning.

    Args:
        values: Options of the file, by their names with ``_`` or ``-``.
        given: Names of the options that come first, with ``_``.
        recipe: Whether the file is a recipe, whose warm-up is for its own epochs.
    """
    rivals = _RECIPE_RIVALS if recipe else _RIVALS
    out = {other for name in given for other in rivals.get(name, ())}
    return {name: value for name, value in values.items() if str(name).replace("-", "_") not in out}


def log_recipe(name: str) -> None:
    """Say which recipe a training has, and how to train without it."""
    if name != NO_RECIPE:
        path = f"vision/configs/{name}.yaml"
        _logger.info(
            f"recipe {name} ({path}): published hyper-parameters for what you did not give; --recipe none leaves it out"
        )
