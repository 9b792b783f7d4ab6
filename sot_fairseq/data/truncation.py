"""Shorten pairs of texts to a number of tokens, the longer text first."""

from __future__ import annotations

import numpy as np

__all__ = ["longest_first", "shorten"]


def longest_first(first: np.ndarray, second: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of each text of a pair to keep: the longer one loses its last token until both fit.

    Of two equally long texts the second loses first, as with Hugging Face's ``longest_first``.

    Args:
        first: Tokens of the first texts, special tokens not counted.
        second: Tokens of the second texts; all 0 for single texts.
        budget: Tokens that a pair may have together.

    Example:
        >>> longest_first(np.array([10, 10, 2]), np.array([2, 9, 2]), budget=9)
        (array([7, 5, 2]), array([2, 4, 2]))
    """
    half = (budget + 1) // 2
    kept = np.minimum(first, np.maximum(budget - second, half))
    return kept, np.minimum(second, budget - kept)


def shorten(ids: np.ndarray, lengths: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep the first `kept` tokens and the last one (``</s>``) of each text.

    Args:
        ids: Ids of all texts, one after the other, each with ``</s>`` at its end.
        lengths: Ids of each text.
        kept: Ids to keep of each text besides ``</s>``; less than `lengths`.
    """
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(ids)) - np.repeat(starts, lengths)
    keep = (place < np.repeat(kept, lengths)) | (place == np.repeat(lengths - 1, lengths))
    return ids[keep], kept + 1
