"""Count the pixels of each class before training: a set from which nothing can be learnt looks like success."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from sot_base.errors import UsageError
from vision.evaluation.evaluate import progress_bar
from vision.segment.files import PairSource
from vision.segment.labels import LabelRules, read_values

__all__ = ["PixelCounts", "check_classes", "count_pixels"]

_logger = logging.getLogger(__name__)
_VALUES = 2**16  # that an annotation can have
_SHOWN = 20  # classes or values that a message lists


@dataclass(frozen=True)
class PixelCounts:
    """Pixels by the values of annotations.

    Attributes:
        values: (65536,) pixels of each value.
        annotations: Annotations that were read.
        rules: What the values mean.
    """

    values: np.ndarray
    annotations: int
    rules: LabelRules

    @property
    def classes(self) -> np.ndarray:
        """(K,) pixels of each class."""
        first = 1 if self.rules.reduce_zero_label else 0
        counts = self.values[first : first + self.rules.num_classes].copy()
        counts.resize(self.rules.num_classes)
        return counts


class _Histograms(Dataset[np.ndarray]):
    """How often each annotation has each value; an empty one for what cannot be read, which loading reports."""

    def __init__(self, source: PairSource, order: Sequence[int]) -> None:
        self.source, self.order = source, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> np.ndarray:
        index = self.order[place]
        name = self.source.names(index)[1]
        try:
            values = read_values(self.source.read_annotation(index), name, self.source.max_pixels)
        except (UsageError, OSError):
            return np.zeros(0, dtype=np.int64)
        return np.bincount(values[(values >= 0) & (values < _VALUES)].ravel())


def count_pixels(
    source: PairSource, rules: LabelRules, workers: int, enough: Callable[[PixelCounts], bool] | None = None
) -> PixelCounts:
    """Count the pixels of annotations, on the first process for all.

    Args:
        source: The files.
        rules: What values mean.
        workers: Reading processes.
        enough: Whether no more annotations need be read; None: all are.
    """
    found: list[PixelCounts | None] = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        found = [_count(source, rules, workers, enough)]
    if dist.is_initialized():
        dist.broadcast_object_list(found)
    return found[0]


def _count(
    source: PairSource, rules: LabelRules, workers: int, enough: Callable[[PixelCounts], bool] | None
) -> PixelCounts:
    order = np.random.default_rng(0).permutation(len(source)).tolist()  # files of one kind often lie side by side
    loader = DataLoader(_Histograms(source, order), batch_size=None, num_workers=workers, collate_fn=lambda item: item)
    counts = PixelCounts(np.zeros(_VALUES, dtype=np.int64), 0, rules)
    for histogram in progress_bar(loader, "pixels of the classes"):
        counts.values[: len(histogram)] += histogram
        counts = PixelCounts(counts.values, counts.annotations + 1, rules)
        if enough is not None and enough(counts):
            break
    return counts


def check_classes(counts: PixelCounts, names: Sequence[str] | None, where: str) -> None:
    """Make sure that there are classes to tell apart, and say which have no pixels.

    Args:
        counts: Pixels of the training annotations.
        names: Names of the classes, if any.
        where: The annotations, for messages.

    Raises:
        UsageError: if no pixel counts, or those of one class alone.
    """
    pixels, rules = counts.classes, counts.rules
    there = np.flatnonzero(pixels)
    shown = [names[index] if names else f"class {index}" for index in range(rules.num_classes)]
    if len(there) < 2:
        what = f"only {shown[there[0]]} has pixels" if len(there) else "no pixel counts"
        raise UsageError(f"{what}: {where} has {_describe_values(counts)}; {_advice(counts)}")
    shares = [f"{shown[index]} {pixels[index] / pixels.sum():.1%}" for index in there[:_SHOWN]]
    more = ", ..." if len(there) > _SHOWN else ""
    _logger.info(f"pixels of the classes in {counts.annotations} annotations: {', '.join(shares)}{more}")
    absent = [shown[index] for index in np.flatnonzero(pixels == 0)]
    if absent:
        more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
        _logger.warning(
            f"{len(absent)} of {rules.num_classes} classes have no pixel in training and cannot be learnt: {where} "
            f"({', '.join(absent[:_SHOWN])}{more}); see --num-classes and --reduce-zero-label"
        )


def _describe_values(counts: PixelCounts) -> str:
    values = np.flatnonzero(counts.values)
    shares = [f"{value} ({counts.values[value] / counts.values.sum():.0%})" for value in values[:_SHOWN]]
    return f"the values {', '.join(shares)}" if shares else "no annotation that can be read"


def _advice(counts: PixelCounts) -> str:
    """What those values mean that are not classes."""
    rules, values = counts.rules, set(np.flatnonzero(counts.values).tolist())
    advice = []
    if 0 in values and rules.reduce_zero_label:
        advice.append("0 is ignored unless --no-reduce-zero-label makes it a class")
    if rules.ignore_index in values:
        last = rules.num_classes - (not rules.reduce_zero_label)
        advice.append(f"{rules.ignore_index} is --ignore-index, pixels of no class: classes have values up to {last}")
    return ", ".join(advice) or "give annotations with two classes or more"
