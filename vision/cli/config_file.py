"""A parser that also reads options from YAML and JSON files, with one-line errors."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sot_base.errors import UsageError
from sot_base.small_files import read_json
from sot_base.small_files import read_yaml as read_small_yaml
from vision.cli.hvt_files import HVT_SIZES, is_hvt_config, translate_hvt_config
from vision.cli.recipes import NO_RECIPE, TOKEN_LABELING, find_recipe, is_saved_run, without_rivals

__all__ = ["CONFIG_FOLDER", "Parser", "find_config", "given_options", "parse_args", "read_yaml"]

CONFIG_FOLDER = Path(__file__).resolve().parents[1] / "configs"


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Show the default of an option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are `UsageError`; options are never abbreviated.

    ``--local-rank``, which older launchers add, is accepted: a process finds its rank in the environment.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **kwargs)
        self.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help lists the options")

    def parse_args(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse a command line; the error for an unknown option names the nearest one."""
        values, unknown = self.parse_known_args(argv)
        for word in unknown:
            if word.startswith("-"):
                near = _nearest(word.split("=")[0].lstrip("-").replace("-", "_"), self.options())
                hint = f"did you mean --{near.replace('_', '-')}?" if near else f"{self.prog} --help lists the options"
                raise UsageError(f"unknown option {word}; {hint}")
        if unknown:
            raise UsageError(f"unexpected arguments: {' '.join(unknown)}; {self.prog} --help shows the order")
        del values.local_rank
        return values

    def options(self) -> dict[str, argparse.Action]:
        """The actions that a configuration file may set, by their names: ``batch_size``, ``b``, ..."""
        names = {}
        for action in self._actions:
            if action.option_strings and action.dest not in ("config", "help", "local_rank"):
                names |= {flag.lstrip("-").replace("-", "_"): action for flag in _positive_flags(action)}
        return names


def _positive_flags(action: argparse.Action) -> list[str]:
    switch = isinstance(action, argparse.BooleanOptionalAction)
    return [flag for flag in action.option_strings if not (switch and flag.startswith("--no-"))]


def parse_args(parser: Parser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line, which overrides its ``--config`` file, which overrides the recipe of a published model.

    Args:
        parser: A parser with an option ``--config``; a file may give options and optional positionals.
            Options stored as ``data_path`` and ``model_name`` are other spellings of the positionals ``data_dir`` and
            ``model``. With an option ``--recipe`` the model's recipe lies beneath, see `vision.cli.recipes`.
        argv: The arguments; None: those of the program.

    Raises:
        UsageError: for an unknown option or key, naming the nearest one, or an invalid value.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(argv)
    given, values, words = given_options(parser, argv), {}, []
    positionals: dict[str, Any] = {}
    if args.config is not None:
        path = find_config(args.config)
        values = _read_options(parser, path)
        positionals = {
            action.dest: values.pop(action.dest, None)
            for action in parser._actions
            if not action.option_strings and action.nargs == "?"
        }
        values = without_rivals(values, given)
        words = [*_checked_words(parser, values, path), f"--config={path}"]  # the last one ends an open list of values
        args = parser.parse_args([*words, *argv])
    if "train_recipe" in args:
        args = _on_recipe(parser, args, values, words, argv)
    _join_arguments(args, values, given)
    args = _one_spelling(args)
    for name, value in positionals.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def _read_options(parser: Parser, path: Path) -> dict[str, Any]:
    """The options in a configuration file, in our names where it is a published one of HVT."""
    values = read_yaml(path)
    return translate_hvt_config(values, parser.options()) if is_hvt_config(values) else values


def given_options(parser: Parser, argv: Sequence[str]) -> set[str]:
    """Names of the options that a command line gives."""
    absent = object()
    names = [action.dest for action in parser._actions if action.option_strings]
    args, _ = parser.parse_known_args(argv, argparse.Namespace(**dict.fromkeys(names, absent)))
    return {name for name in names if getattr(args, name, absent) is not absent}


def _checked_words(parser: Parser, values: Mapping[str, Any], path: Path) -> list[str]:
    """The arguments that are equivalent to a configuration; its errors name the file."""
    words = _as_words(parser, values, path)
    try:
        parser.parse_args(words)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return words


def _on_recipe(
    parser: Parser, args: argparse.Namespace, values: Mapping[str, Any], words: Sequence[str], argv: Sequence[str]
) -> argparse.Namespace:
    """Parse again: the file overrides the recipe, the command line overrides both.

    Args:
        parser: The parser.
        args: What file and command line say without a recipe.
        values: The file's options.
        words: The same as arguments.
        argv: The command line.
    """
    name = args.train_recipe
    if name in (None, "auto"):
        alone = args.eval or (name is None and is_saved_run(values))  # nothing is trained, or all is said
        name = NO_RECIPE if alone else find_recipe(args.model)
    if name != NO_RECIPE:
        path = find_config(name)
        options = parser.options()
        given = given_options(parser, argv) | {options[str(key).replace("-", "_")].dest for key in values}
        recipe = without_rivals(read_yaml(path), given, recipe=True)
        if not args.token_label and not recipe.get("token_label"):
            recipe = {key: value for key, value in recipe.items() if key not in TOKEN_LABELING}
        args = parser.parse_args([*_checked_words(parser, recipe, path), f"--recipe={name}", *words, *argv])
    args.train_recipe = name
    return args


def _join_arguments(args: argparse.Namespace, values: Mapping[str, Any], given: set[str]) -> None:
    """Put ``name=value`` arguments of the command line on top of those of a file for the same model or optimizer."""
    for key, value in values.items():
        name = str(key).replace("-", "_")
        own = vars(args).get(name)
        if isinstance(value, Mapping) and own and name in given and name.removesuffix("_kwargs") not in given:
            setattr(args, name, {**value, **own})


def _one_spelling(args: argparse.Namespace) -> argparse.Namespace:
    """Move ``data_path`` to ``data_dir``, and ``model_name`` to ``model``."""
    for other, name, what in (("data_path", "data_dir", "the data"), ("model_name", "model", "the model")):
        value = vars(args).pop(other, None)
        if value is not None and getattr(args, name) not in (None, value):
            flag = "--data-path" if other == "data_path" else "--model"
            raise UsageError(f"{what} is named twice: {getattr(args, name)} and {flag} {value}; give one")
        if value is not None:
            setattr(args, name, value)
    return args


def _nearest(name: str, names: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.4)), "")


def find_config(name: str) -> Path:
    """A configuration file by its path, or by its name among the package's (``sot_tiny``).

    Raises:
        UsageError: if there is none, with the package's names.
    """
    for path in (Path(name), CONFIG_FOLDER / f"{name}.yaml", CONFIG_FOLDER / name):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in CONFIG_FOLDER.glob("*.yaml")))
    raise UsageError(f"no such configuration: {name}; give a file, or one of {known}")


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file.

    Raises:
        UsageError: with file and line where it is not valid YAML or JSON, or no mapping of options.
    """
    remedy = "write lines of the form 'lr: 0.001'"
    if path.suffix == ".json":  # YAML does not allow tabs
        return read_json(path, dict[str, Any], "write an object of options")
    return read_small_yaml(path, dict[str, Any] | None, remedy) or {}


def _as_words(parser: Parser, values: Mapping[str, Any], path: Path) -> list[str]:
    """The arguments that are equivalent to a configuration."""
    options = parser.options()
    words = []
    for key, value in values.items():
        action = options.get(str(key).replace("-", "_"))
        if action is None:
            near = _nearest(str(key), [*options, *HVT_SIZES])
            hint = f"did you mean {near!r}?" if near else f"{parser.prog} --help lists the options"
            raise UsageError(f"unknown key {key!r}: {path}; {hint}")
        flag = max(_positive_flags(action), key=len)
        if value is None:
            continue
        if action.nargs == 0:
            words += _switch(action, key, value, path)
        elif isinstance(value, dict):
            words += [flag, *(f"{name}={item!r}" for name, item in value.items())]
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        else:
            words.append(f"{flag}={value}")
    return words


def _switch(action: argparse.Action, key: str, value: Any, path: Path) -> list[str]:
    if not isinstance(value, bool):
        raise UsageError(f"{key} is true or false: {path}, not {value!r}; correct the file")
    if value:
        return [_positive_flags(action)[0]]
    return [f"--no-{key.replace('_', '-')}"] if isinstance(action, argparse.BooleanOptionalAction) else []
