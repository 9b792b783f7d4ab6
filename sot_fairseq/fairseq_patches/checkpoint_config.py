"""The configuration inside a checkpoint is checked before fairseq builds anything from it.

A checkpoint carries the options of its training: as ``cfg``, a dictionary of sections, or in old files as ``args``, a
flat namespace. fairseq takes names of classes, paths, sizes and strings that it evaluates from there. Here

* tasks, criteria, architectures, optimizers and schedulers are those of this package and of fairseq's plain text
  encoders;
* every value has the type of its option, and a string that fairseq evaluates is a literal of the right type;
* no string is an interpolation of omegaconf;
* options that are unknown are left out, with a warning; paths and other free text that no model is built from as well.
"""

from __future__ import annotations

import argparse
import ast
import enum
import logging
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sot_base.errors import UsageError
from sot_fairseq.fairseq_patches.option_types import (
    LITERALS,
    SECTIONS,
    allowed_names,
    building_options,
    fields_of,
    option_types,
)
from sot_fairseq.fairseq_patches.plain_values import plain_value

__all__ = ["check_configuration", "check_literals"]

logger = logging.getLogger(__name__)

MAX_TEXT = 65_536  # characters of a string
Scalar = bool | int | float | str | None
PLAIN = Scalar | list[Scalar]  # of options whose type fairseq does not say


class _OptionError(ValueError):
    """What is wrong with a value; its field is added where it is known."""


def check_configuration(state: dict[str, Any], where: str) -> None:
    """Check and clean ``state["cfg"]`` and ``state["args"]``, in place.

    Args:
        state: What a checkpoint file holds.
        where: The file, for messages.

    Raises:
        UsageError: With the first field that is not allowed.
    """
    checker = _Checker(where)
    if state.get("args") is not None:
        state["args"] = checker.namespace("args", state["args"], flat=True)
    if state.get("cfg") is not None:
        state["cfg"] = checker.sections(state["cfg"])
    if checker.ignored:
        shown = ", ".join(checker.ignored[:10]) + (", ..." if len(checker.ignored) > 10 else "")
        logger.warning("%d unknown options of %s are ignored: %s", len(checker.ignored), where, shown)


def check_literals(config: Mapping[str, Any]) -> None:
    """Check that the options of a run that fairseq evaluates are literals: they may come from a YAML file.

    Raises:
        UsageError: With the first field that is not.
    """
    for section, options in config.items():
        values = options if isinstance(options, Mapping) else getattr(options, "__dict__", {})
        for name in [name for name in LITERALS if isinstance(values.get(name), str)]:
            try:
                _check_literal(name, values[name])
            except _OptionError as problem:
                raise UsageError(f"{section}.{name} is {problem}: the configuration of the run; correct it") from None


class _Checker:
    """Checks one file and collects what it ignores."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.ignored: list[str] = []

    def sections(self, config: Any) -> dict[str, Any]:
        checked: dict[str, Any] = {}
        for section, options in self._mapping("cfg", config).items():
            if section == "_name" and options is None:
                continue
            if section not in SECTIONS:
                self._ignore(section)
            elif options is None or (isinstance(options, str) and section in allowed_names()):
                checked[section] = self._checked(section, section, options)
            elif isinstance(options, argparse.Namespace):
                checked[section] = self.namespace(section, options)
            else:
                checked[section] = self._section(section, self._mapping(section, options))
        return checked

    def namespace(self, section: str, options: Any, flat: bool = False) -> argparse.Namespace:
        if not isinstance(options, argparse.Namespace):
            raise self._error(section, f"a {type(options).__name__} where options are expected")
        checked = self._options(section, vars(options), None)
        if flat:  # fairseq turns these into a text for hydra's parser, to which a backslash means something
            checked = {
                name: value for name, value in checked.items() if not any("\\" in text for text in _strings(value))
            }
        return argparse.Namespace(**checked)

    def _section(self, section: str, options: Mapping[Any, Any]) -> dict[str, Any]:
        name = self._checked(f"{section}._name", section, options.get("_name"))
        return self._options(section, options, fields_of(section, name))

    def _options(self, section: str, options: Mapping[Any, Any], fields: frozenset[str] | None) -> dict[str, Any]:
        types = option_types()
        checked: dict[str, Any] = {}
        for name, value in options.items():
            if name == "_name":
                checked[name] = self._checked(f"{section}._name", section, value)
            elif name in types and (fields is None or name in fields):
                checked_value = self._checked(f"{section}.{name}", name, value)
                if name in building_options() or name in LITERALS or not _is_free_text(value, types[name]):
                    checked[name] = checked_value
            elif name != "user_dir":  # every checkpoint has it
                self._ignore(f"{section}.{name}")
        return checked

    def _checked(self, field: str, option: str, value: Any) -> Any:
        try:
            _check_value(option, value)
        except _OptionError as problem:
            raise self._error(field, str(problem)) from None
        return value

    def _mapping(self, section: str, value: Any) -> dict[Any, Any]:
        """Return a section's options as a dictionary; some old files hold omegaconf's containers."""
        if isinstance(value, DictConfig):
            try:
                value = OmegaConf.to_container(value, resolve=False)
            except (OmegaConfBaseException, ValueError, TypeError, AttributeError, KeyError) as error:
                raise self._error(section, f"damaged ({type(error).__name__})") from None
        if not isinstance(value, dict):
            raise self._error(section, f"a {type(value).__name__} where options are expected")
        return value

    def _ignore(self, field: Any) -> None:
        self.ignored.append(str(field)[:80])

    def _error(self, field: str, problem: str) -> UsageError:
        return UsageError(
            f"option {field[:80]} of the checkpoint is {problem}: {self.where}; the file is damaged or was made to "
            "harm: get it again from its source"
        )


def _check_value(option: str, value: Any) -> None:
    for text in _strings(value):
        if len(text) > MAX_TEXT:
            raise _OptionError(f"{len(text)} characters long")
        if "${" in text:
            raise _OptionError(f"an interpolation, {_shown(text)}")
        if not text.isprintable():
            raise _OptionError(f"not printable text, {_shown(text)}")
    if option in LITERALS:
        _check_literal(option, value)
    elif value is not None:
        types = option_types().get(option, [type(None)])  # most sections have no class to name
        if not any(_has_type(value, kind) for kind in types):
            raise _OptionError(f"{_shown(value)}, expected {' or '.join(dict.fromkeys(map(_described, types)))}")


def _check_literal(option: str, value: Any) -> None:
    if value is None:
        return
    try:
        msgspec.convert(plain_value(value) if isinstance(value, str) else value, LITERALS[option])
    except (UsageError, msgspec.ValidationError):
        raise _OptionError(f"not a literal of type {_described(LITERALS[option])}, {_shown(value)}") from None


def _is_free_text(value: Any, types: list[Any]) -> bool:
    """Whether a value holds text that is not a choice, such as a path of that training."""
    return any(_strings(value)) and not any(_is_choice(kind) for kind in types)


def _is_choice(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Literal or any(
        isinstance(part, type) and issubclass(part, enum.Enum) for part in (kind, *typing.get_args(kind))
    )


def _has_type(value: Any, kind: Any) -> bool:
    """Whether a value, or what a string is the literal of, has a type; numbers may stand for each other."""
    kind = PLAIN if kind is Any else kind
    try:
        msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        if isinstance(value, bool):
            return _has_type(int(value), kind)
        if not isinstance(value, str):
            return False
        try:
            return _has_type(ast.literal_eval(value), kind)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return False
    return True


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*_strings(key), *_strings(item))
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _strings(item)


def _described(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"one of {', '.join(str(member.value) for member in kind)}"
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    return "a plain value" if kind is Any else getattr(kind, "__name__", "") or str(kind).replace("typing.", "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
