"""Faithfulness of attributions: deletion and insertion curves, and randomisation of the weights.

Deletion removes the parts with the highest scores first; the probability of the class should drop early, so the area
under the curve should be small. Insertion adds them first to an empty input; the area should be large
(arXiv:1806.07421). An attribution that depends on the model changes when its weights are randomised (arXiv:1810.03292).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Curves", "Summary", "deletion_insertion", "mean_and_error", "rank_correlation", "shuffle_weights"]

STEPS = 10


@dataclass(frozen=True)
class Curves:
    """Probability of the class as a function of the share of the input that was removed or added.

    Attributes:
        deletion: (STEPS + 1,) probabilities, from the whole input to nothing.
        insertion: (STEPS + 1,) probabilities, from nothing to the whole input.
    """

    deletion: np.ndarray
    insertion: np.ndarray

    @property
    def deletion_area(self) -> float:
        """Area under the deletion curve: smaller is better."""
        return float(np.trapezoid(self.deletion, dx=1.0 / STEPS))

    @property
    def insertion_area(self) -> float:
        """Area under the insertion curve: larger is better."""
        return float(np.trapezoid(self.insertion, dx=1.0 / STEPS))


@dataclass(frozen=True)
class Summary:
    """A mean over samples and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"


def deletion_insertion(scores: Tensor, evaluate: Callable[[Tensor], Tensor]) -> Curves:
    """Remove and add the parts of one sample in descending order of their scores.

    Args:
        scores: Score of each part (U,).
        evaluate: Maps the parts to keep (S, U), bool, to the probabilities of the class (S,).
    """
    order = scores.argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    counts = torch.tensor([round(step * len(order) / STEPS) for step in range(STEPS + 1)], device=order.device)
    removed = rank.unsqueeze(0) < counts.unsqueeze(1)
    values = evaluate(torch.cat((~removed, removed))).double().cpu().numpy()
    return Curves(values[: STEPS + 1], values[STEPS + 1 :])


def mean_and_error(values: Sequence[float]) -> Summary:
    """Mean and standard error; NaN for the error of a single value."""
    array = np.asarray(values, dtype=np.float64)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.nan
    return Summary(float(array.mean()) if len(array) else math.nan, error)


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's rank correlation of two lists of scores; 0 where one of them is constant."""
    from scipy.stats import spearmanr

    first, second = first.flatten().cpu(), second.flatten().cpu()
    if len(first) < 2 or bool((first == first[0]).all()) or bool((second == second[0]).all()):
        return 0.0
    return float(spearmanr(first.numpy(), second.numpy()).statistic)


def shuffle_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy of a model with the entries of every parameter shuffled, which keeps their distribution."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in shuffled.parameters():
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return shuffled
