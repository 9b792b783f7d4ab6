"""Paired comparisons over seeds and over test items, corrected for their number, and average ranks.

- Over seeds: the t test on the differences of the seeds, and its confidence interval. It says whether another training
  on the same rows would give the same order, and takes the test items as given.
- Over items: the bootstrap of the test items, each resampled with its predictions of all seeds and heads. It says
  whether other test items would give the same order, and takes the trained heads as given. With one seed it agrees with
  McNemar's test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from sot_base.errors import UsageError

__all__ = [
    "METRICS",
    "Comparison",
    "PairedT",
    "average_ranks",
    "compare",
    "format_interval",
    "format_p",
    "holm",
    "paired_t",
    "resample",
]

SAMPLES = 10_000  # of the bootstrap
AT_ONCE = 500


class PairedT(NamedTuple):
    """The paired t test of two settings with the same seeds.

    Attributes:
        difference: Mean difference.
        low: Lower end of its 95 % confidence interval; NaN with one seed.
        high: Upper end.
        p: Two-sided p value; NaN with one seed.
    """

    difference: float
    low: float
    high: float
    p: float


class Comparison(NamedTuple):
    """A head against another one on the same seeds and items.

    Attributes:
        difference: Mean difference of the metric over the seeds, in points.
        low: Lower end of its 95 % confidence interval over the seeds; NaN with one seed.
        high: Upper end.
        p_seeds: Two-sided p value over the seeds; NaN with one seed.
        p_items: Two-sided p value over the items.
    """

    difference: float
    low: float
    high: float
    p_seeds: float
    p_items: float


def accuracy(counts: np.ndarray, predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Accuracy in percent of samples that contain each item so many times, averaged over the seeds.

    Shape:
        counts (samples, items), predictions (seeds, items), targets (items,) -> (samples,).
    """
    right = (predictions == targets).mean(axis=0)
    return 100.0 * (counts @ right) / counts.sum(axis=1)


def mcc(counts: np.ndarray, predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Matthews correlation in percent, 0 where it is undefined; as `accuracy`."""
    classes = int(max(predictions.max(), targets.max())) + 1
    values = []
    for own in predictions:
        cells = np.eye(classes * classes)[own * classes + targets]
        confusion = (counts @ cells).reshape(-1, classes, classes)  # predicted, true
        total, right = confusion.sum(axis=(1, 2)), confusion.trace(axis1=1, axis2=2)
        predicted, true = confusion.sum(axis=2), confusion.sum(axis=1)
        spread = (total**2 - (predicted**2).sum(axis=1)) * (total**2 - (true**2).sum(axis=1))
        shared = right * total - (predicted * true).sum(axis=1)
        values.append(np.divide(shared, np.sqrt(spread), out=np.zeros_like(shared), where=spread > 0))
    return 100.0 * np.mean(values, axis=0)


METRICS = {"accuracy": accuracy, "top1": accuracy, "mcc": mcc}


def resample(
    predictions: Mapping[str, np.ndarray], targets: np.ndarray, metric: str, samples: int = SAMPLES, seed: int = 0
) -> dict[str, np.ndarray]:
    """The metric of each head, averaged over its seeds, on bootstrap samples of the items; all heads share the samples.

    Args:
        predictions: Predicted classes of each head, (seeds, items).
        targets: True classes, (items,).
        metric: A name in `METRICS`.
        samples: Number of samples.
        seed: Seed of the samples.

    Returns:
        For each head the metric (percent) of each sample, (samples,).

    Raises:
        UsageError: for another metric.
    """
    if metric not in METRICS:
        raise UsageError(f"no such metric: {metric!r}; the comparison knows {', '.join(METRICS)}")
    rng, items = np.random.default_rng(seed), len(targets)
    parts: dict[str, list[np.ndarray]] = {head: [] for head in predictions}
    for start in range(0, samples, AT_ONCE):
        draws = rng.multinomial(items, np.full(items, 1 / items), size=min(AT_ONCE, samples - start))
        counts = draws.astype(np.float64)
        for head, own in predictions.items():
            parts[head].append(METRICS[metric](counts, own, targets))
    return {head: np.concatenate(part) for head, part in parts.items()}


def paired_t(first: Sequence[float], second: Sequence[float]) -> PairedT:
    """Compare two settings over the seeds.

    Args:
        first: Value of the first setting with each seed.
        second: Value of the second one with the same seeds.
    """
    differences = np.asarray(first) - np.asarray(second)
    mean, low, high, p = float(differences.mean()), np.nan, np.nan, np.nan
    if len(differences) > 1:
        error = stats.sem(differences)
        low, high = mean + error * stats.t.ppf([0.025, 0.975], len(differences) - 1)
        p = stats.ttest_1samp(differences, 0.0).pvalue if error > 0 else float(mean == 0)
    return PairedT(mean, float(low), float(high), float(p))


def compare(
    first: Sequence[float], second: Sequence[float], first_samples: np.ndarray, second_samples: np.ndarray
) -> Comparison:
    """Compare two heads.

    Args:
        first: Metric of the first head with each seed.
        second: Metric of the second head with the same seeds.
        first_samples: Metric of the first head on each bootstrap sample of the items, see `resample`.
        second_samples: Of the second head on the same samples.
    """
    by_seeds = paired_t(first, second)
    gaps = first_samples - second_samples
    beyond = 1 + min((gaps <= 0).sum(), (gaps >= 0).sum())
    p_items = min(1.0, 2.0 * beyond / (1 + len(gaps)))
    return Comparison(*by_seeds, float(p_items))


def holm(values: Sequence[float]) -> list[float]:
    """Correct p values for their number by Holm's method; NaN stays and does not count.

    Reference:
        Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    given = np.asarray(values, dtype=float)
    corrected = np.full(len(given), np.nan)
    order = [place for place in given.argsort() if not np.isnan(given[place])]
    largest = 0.0
    for number, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - number) * given[place]))
        corrected[place] = largest
    return corrected.tolist()


def average_ranks(means: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average rank of each head over data sets, 1 the best; equal heads share a rank.

    Args:
        means: Mean metric of each head on each data set. Heads that some set lacks are left out.
    """
    heads = [head for head in means[0] if all(head in own for own in means)]
    ranks = [stats.rankdata([-own[head] for head in heads]) for own in means]
    return dict(zip(heads, np.mean(ranks, axis=0).tolist(), strict=True))


def format_interval(difference: float, low: float, high: float) -> str:
    """A difference with its interval, such as ``+1.52 [+0.30, +2.74]``; the interval is left out if it is NaN."""
    interval = "" if math.isnan(low) else f" [{low:+.2f}, {high:+.2f}]"
    return f"{difference:+.2f}{interval}"


def format_p(value: float) -> str:
    """A p value in a table; ``-`` if it is NaN."""
    if math.isnan(value):
        return "-"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
