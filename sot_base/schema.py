"""Values from a file, checked against the types that are expected: one line names the file and the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from sot_base.errors import UsageError

__all__ = ["describe_problem", "of_type"]

T = TypeVar("T")


def of_type(value: Any, kind: type[T], where: str, remedy: str, strict: bool = True) -> T:
    """Convert plain values (dictionaries, lists, numbers, strings) to a type, a struct or dataclass for example.

    Args:
        value: What was read.
        kind: The type, as msgspec takes it.
        where: The file, for messages.
        remedy: What to do, for messages.
        strict: Whether a string may not stand for a number.

    Raises:
        UsageError: ``<field>: expected <type>, got <type>: <where>; <remedy>``.
    """
    try:
        return msgspec.convert(value, kind, strict=strict)
    except (msgspec.ValidationError, RecursionError, UnicodeError) as error:
        raise UsageError(f"{describe_problem(error)}: {where}; {remedy}") from None


def describe_problem(error: Exception) -> str:
    """Say what msgspec or a parser found, with the field first."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text, _, field = " ".join(str(error).split()).replace("`", "").partition(" - at ")
    text = text[:1].lower() + text[1:]
    missing = re.fullmatch(r"object missing required field (\S+)", text)
    field = re.sub(r"^(key in )?\$\.?", "", field)
    if missing:
        return f"{field}.{missing[1]} is missing" if field else f"{missing[1]} is missing"
    return f"{field}: {text}" if field else text
