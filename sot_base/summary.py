"""Mean, deviation and median of metrics over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypedDict

__all__ = ["Summary", "summarize"]


class Summary(TypedDict):
    """A metric over seeds; the deviation is that of a sample, None for one seed."""

    n: int
    mean: float
    std: float | None
    median: float


def summarize(seeds: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, Summary]]:
    """Mean, standard deviation and median over seeds of ``{split: {metric: value}}``."""
    return {
        split: {
            name: {
                "n": len(seeds),
                "mean": statistics.fmean(values),
                "std": statistics.stdev(values) if len(values) > 1 else None,
                "median": statistics.median(values),
            }
            for name in metrics
            for values in [[seed[split][name] for seed in seeds]]
        }
        for split, metrics in seeds[0].items()
    }
