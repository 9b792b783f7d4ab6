"""Small files that people and programs write: text, JSON and YAML, with limits on size and nesting, checked by type.

Every mistake in such a file is one line with the file and the field. Nothing is read before its size is known.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, TypeVar

from sot_base.errors import UsageError
from sot_base.schema import describe_problem, of_type

__all__ = ["parse_json", "parse_yaml", "read_json", "read_text", "read_yaml"]

T = TypeVar("T")
MAX_BYTES = 16 * 2**20
MAX_YAML_BYTES = 2**20
MAX_DEPTH = 100  # of lists and mappings in YAML
MAX_DIGITS = 100  # of a whole number
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
LONG_NUMBER = re.compile(r"[-+0-9_:.a-fA-Fxo]{100,}")
MAX_NODES = 100_000  # of a YAML file, each counted as often as an alias repeats it


def read_text(path: str | os.PathLike[str], remedy: str, max_bytes: int = MAX_BYTES) -> str:
    """Read a UTF-8 file whole.

    Args:
        path: The file.
        remedy: What to do if it cannot be read, for messages.
        max_bytes: Its largest size.

    Raises:
        UsageError: If it is absent, no file, too large, not readable, or not UTF-8.
    """
    path = Path(path)
    where = path.absolute()
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
        if is_file:
            with path.open("rb") as file:
                content = file.read(max_bytes + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path.name} ({error.strerror}): {where}; {remedy}") from None
    if not is_file:
        what = "a folder" if path.is_dir() else "a device or a pipe"
        raise UsageError(f"{what} where a file is expected: {where}; {remedy}")
    if len(content) > max_bytes:
        raise UsageError(f"larger than {max_bytes / 2**20:.0f} MiB: {where}; {remedy}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 (byte {error.start}): {where}; {remedy}") from None


def read_json(
    path: str | os.PathLike[str], kind: type[T], remedy: str = "get it again", max_bytes: int = MAX_BYTES
) -> T:
    """Read a JSON file into a type.

    Args:
        path: The file.
        kind: What it holds: ``dict[str, Any]``, a dataclass, a `msgspec.Struct`.
        remedy: What to do about a mistake, for messages.
        max_bytes: Its largest size.

    Raises:
        UsageError: As :func:`read_text`; if it is not JSON; or naming the field that is missing or of another type.
    """
    return parse_json(read_text(path, remedy, max_bytes), kind, str(Path(path).absolute()), remedy)


def parse_json(text: str, kind: type[T], where: str, remedy: str) -> T:
    """Read JSON into a type; `where` is what messages name.

    Raises:
        UsageError: If it is not JSON, or naming the field that is missing or of another type.
    """
    try:
        content = json.loads(text, parse_int=_bounded_int)
        if SURROGATE.search(text):  # half a character, which cannot be written; a byte of a file name can
            json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a JSON file ({describe_problem(error)}): {where}; {remedy}") from None
    return of_type(content, kind, where, remedy)


def read_yaml(path: str | os.PathLike[str], kind: type[T], remedy: str = "correct it") -> T:
    """Read a YAML file into a type; only plain values are built.

    Raises:
        UsageError: As :func:`read_text`; as :func:`parse_yaml`.
    """
    return parse_yaml(read_text(path, remedy, MAX_YAML_BYTES), kind, str(Path(path).absolute()), remedy)


def parse_yaml(text: str, kind: type[T], where: str, remedy: str) -> T:
    """Read YAML into a type; `where` is what messages name.

    Raises:
        UsageError: If it is not YAML, nested too deeply or too large once its aliases are replaced; or naming the field
            that is missing or of another type.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, loader))
        content = yaml.load(text, loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UsageError(f"not a YAML file ({' '.join(problem.split())}{line}): {where}; {remedy}") from None
    except (TypeError, KeyError, AttributeError, OverflowError):  # of an explicit tag, as in !!timestamp x
        raise UsageError(f"not a YAML file (a value is not what its tag says): {where}; {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a YAML file ({describe_problem(error)}): {where}; {remedy}") from None
    return of_type(content, kind, where, remedy)


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _check_events(events: Any) -> None:
    """Count what a YAML text would make, before it is made.

    Raises:
        ValueError: If it is nested too deeply, holds itself, or repeats parts too often.
    """
    import yaml

    sizes: dict[str, int] = {}  # of each anchor that is complete
    opened: list[list[Any]] = [[None, 0]]  # lists and mappings: anchor, values within
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append([event.anchor, 1])
            continue
        anchor, size = opened.pop() if isinstance(event, yaml.CollectionEndEvent) else _leaf(event, sizes)
        if anchor:
            sizes[anchor] = size
        opened[-1][1] += size
        if opened[-1][1] > MAX_NODES or len(opened) > MAX_DEPTH:
            raise ValueError(f"more than {MAX_NODES} values, or {MAX_DEPTH} levels")


def _leaf(event: Any, sizes: dict[str, int]) -> tuple[str | None, int]:
    """The anchor of an event that is not a list or mapping, and for how many values it stands."""
    import yaml

    if isinstance(event, yaml.AliasEvent):
        if event.anchor not in sizes:
            raise ValueError(f"the alias {event.anchor} holds itself or stands for nothing")
        return None, sizes[event.anchor]
    if not isinstance(event, yaml.ScalarEvent):
        return None, 0
    if event.implicit[0] and LONG_NUMBER.fullmatch(event.value):
        raise ValueError(f"a number of {len(event.value)} digits")
    return event.anchor, 1
