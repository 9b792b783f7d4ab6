"""Strings that fairseq evaluates are plain values here: no expression of a configuration runs.

fairseq passes some of its options (``--adam-betas``, ``--encoder-xformers-att-config``, ``--pipeline-balance``,
``--adaptive-softmax-cutoff`` and those of its convolutional models) to ``eval``. Its modules find the function below
under that name instead. It takes what these options are written for: numbers, strings, lists, tuples and dictionaries,
and lists put together as ``[(512, 3)] * 4 + [(512, 2)]``.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

from sot_base.errors import UsageError

__all__ = ["plain_value", "replace_eval"]

MAX_TEXT = 10_000  # characters
MAX_ITEMS = 10_000  # of a list that is put together


def plain_value(text: str) -> Any:
    """Read a value that is written as a Python literal.

    Args:
        text: For example ``(0.9, 0.98)`` or ``[(512, 3)] * 4``.

    Raises:
        UsageError: If it is anything else, such as a name or a call.
        TypeError: If `text` is not a string, as ``eval`` has it.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a string, got {type(text).__name__}")
    try:
        if len(text) > MAX_TEXT:
            raise ValueError("too long")
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise UsageError(f"not a plain value: {shown!r}; write a number, a list, a tuple or a dictionary") from None


def replace_eval() -> None:
    """Let every module of fairseq that is loaded find :func:`plain_value` under the name ``eval``."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fairseq" and module is not None:
            module.__dict__["eval"] = plain_value


def _value(node: ast.expr) -> Any:
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_value(item) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        return _combined(node.op, _value(node.left), _value(node.right))
    return ast.literal_eval(node)


def _combined(operator: ast.operator, left: Any, right: Any) -> Any:
    """Add two lists, repeat a list, or calculate with two numbers."""
    lengths = [len(side) for side in (left, right) if isinstance(side, (list, tuple, str, bytes))]
    counts = [side for side in (left, right) if isinstance(side, int)]
    if isinstance(operator, ast.Add):
        if sum(lengths) > MAX_ITEMS:
            raise ValueError("too long")
        return left + right
    if lengths and max(counts, default=0) * lengths[0] > MAX_ITEMS:
        raise ValueError("too long")
    return left * right
