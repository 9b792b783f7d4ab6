"""Scores to strengths in [0, 1], and strengths to colours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["RIGHT", "STRONG", "WEAK", "WRONG", "hex_color", "mix_colors", "to_strength"]

WEAK, STRONG = (178, 204, 255), (74, 190, 96)  # blue and green, both light enough for black text
RIGHT, WRONG = "#14692a", "#b00020"  # of captions


def to_strength(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Scale scores linearly to [0, 1], minimum to maximum; equal scores become 1 if positive, else 0."""
    values = np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    if not values.size:
        return values
    low, high = values.min(), values.max()
    scale = max(abs(low), abs(high))
    if high - low <= 1e-7 * scale:
        return np.full_like(values, float(high > 0))
    scaled: np.ndarray = (values - low) / (high - low)
    return scaled


def mix_colors(strength: float) -> tuple[int, int, int]:
    """The RGB colour of a strength, from blue (weak) to green (strong)."""
    red, green, blue = (round(weak + (strong - weak) * strength) for weak, strong in zip(WEAK, STRONG, strict=True))
    return red, green, blue


def hex_color(strength: float) -> str:
    """:func:`mix_colors` in hexadecimal notation."""
    return "#{:02x}{:02x}{:02x}".format(*mix_colors(strength))
