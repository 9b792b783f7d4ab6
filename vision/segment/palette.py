"""Colours of classes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from sot_base.errors import UsageError

__all__ = ["bit_palette", "read_palette"]


def bit_palette(count: int) -> np.ndarray:
    """Colours of the values 0 to ``count - 1``, black first: the bits of a value, spread over the channels.

    The pattern of PASCAL VOC: bits 0, 1 and 2 are the highest bits of red, green and blue, the next three the second
    highest, and so on.

    Shape:
        (count, 3), uint8.
    """
    values = np.arange(count)
    colors = np.zeros((count, 3), dtype=np.uint8)
    for bit in range(24):
        colors[:, bit % 3] |= (((values >> bit) & 1) << (7 - bit // 3)).astype(np.uint8)
    return colors


def read_palette(path: str, num_classes: int) -> np.ndarray:
    """Read a file with a colour per line, ``#rrggbb`` or three numbers from 0 to 255; empty lines are ignored.

    Shape:
        (num_classes, 3), uint8.

    Raises:
        UsageError: naming the file and line.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"no such palette: {file.resolve()}; give a text file, one colour per line")
    colors = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if line.strip():
            colors.append(_read_color(line.strip(), f"{path}, line {number}"))
    if len(colors) != num_classes:
        raise UsageError(f"{len(colors)} colours for {num_classes} classes: {path}; write one per class")
    return np.array(colors, dtype=np.uint8)


def _read_color(text: str, where: str) -> tuple[int, ...]:
    if re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        return tuple(bytes.fromhex(text[1:]))
    words = re.split(r"[\s,]+", text)
    if len(words) == 3 and all(word.isdecimal() and int(word) <= 255 for word in words):
        return tuple(map(int, words))
    raise UsageError(f"no colour: {where}, {text[:40]!r}; write #rrggbb or three numbers from 0 to 255")
