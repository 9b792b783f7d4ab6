"""Markdown tables of text cells."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["markdown_table"]


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of equal length as an aligned Markdown table; the first one is its header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, re.sub(r"[^|]", "-", lines[0]))
    return "\n".join(lines)
