"""The split of the training rows into a training and a held-out part."""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import train_test_split

from sot_base.errors import UsageError
from sot_probe.objective import Kind

__all__ = ["hold_out"]


def hold_out(
    targets: np.ndarray, fraction: float, kind: Kind, seed: int = 0, option: str = "--held-out"
) -> tuple[np.ndarray, np.ndarray]:
    """Split rows at random, stratified by class if there are enough rows of each.

    Args:
        targets: Targets of the rows.
        fraction: Share of the rows to hold out, in (0, 1).
        kind: Kind of the targets.
        seed: Seed of the split.
        option: Name of the fraction in error messages.

    Returns:
        Indices of the rows to train on and of the held-out rows, sorted.

    Raises:
        UsageError: if one of the parts would be empty.
    """
    rows = len(targets)
    held = round(rows * fraction)
    if not 0 < held < rows:
        raise UsageError(f"{held} of {rows} rows would be held out: {option} {fraction}; give another fraction")
    counts = np.unique(targets, return_counts=True)[1] if kind == "classes" else np.ones(1)
    stratify = targets if counts.min() > 1 and min(held, rows - held) >= len(counts) else None
    split = train_test_split(np.arange(rows), test_size=held, random_state=seed % 2**32, stratify=stratify)
    return np.sort(split[0]), np.sort(split[1])
