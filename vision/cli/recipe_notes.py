"""What a recipe says of the options of a training."""

from __future__ import annotations

from argparse import Namespace

import yaml

from vision.cli.config_file import find_config, parse_args, read_yaml
from vision.cli.recipes import NO_RECIPE
from vision.cli.train_options import train_parser

__all__ = ["recipe_notes"]


def recipe_notes(args: Namespace) -> dict[str, str]:
    """Notes on the options of a training's recipe, by their names.

    Args:
        args: The options of the training.

    Returns:
        ``recipe`` for an option that has the recipe's value, and ``recipe: VALUE`` for one that has another.
    """
    if args.train_recipe == NO_RECIPE:
        return {}
    path, parser = find_config(args.train_recipe), train_parser()
    recipe = vars(parse_args(parser, [f"--config={path}", f"--recipe={NO_RECIPE}"]))
    options = parser.options()
    names = [options[key.replace("-", "_")].dest for key in read_yaml(path) if key != "model"]
    return {name: "recipe" if getattr(args, name) == recipe[name] else _other(recipe[name]) for name in names}


def _other(value: object) -> str:
    return f"recipe: {yaml.safe_dump([value], default_flow_style=True).strip()[1:-1]}"
