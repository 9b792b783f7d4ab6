"""Scores to strengths in [0, 1], and strengths to colours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["STRONG", "WEAK", "hex_color", "mix_colors", "to_strength"]

WEAK, STRONG = (178, 204, 255), (74, 190, 96)  # blue and green, both light enough for black letters


def to_strength(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Scale scores from the smallest, 0, to the largest, 1; equal ones are all 1 if positive, else 0; finite."""
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
    """The colour of a strength, from blue (weak) to green (strong)."""
    red, green, blue = (round(weak + (strong - weak) * strength) for weak, strong in zip(WEAK, STRONG, strict=True))
    return red, green, blue


def hex_color(strength: float) -> str:
    """:func:`mix_colors` as HTML and matplotlib write it."""
    return "#{:02x}{:02x}{:02x}".format(*mix_colors(strength))
