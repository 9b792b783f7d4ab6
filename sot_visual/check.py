"""Evaluation of attribution methods on a set of samples, compared with random scores: a table and a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sot_base.errors import UsageError
from sot_base.markdown import markdown_table
from sot_visual.attribution import METHODS
from sot_visual.faithfulness import STEPS, Curves, Summary, deletion_insertion, mean_and_error, rank_correlation
from sot_visual.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MethodCheck", "check_methods", "check_table", "draw_checks", "usable_methods"]

SEED = 0  # of the random scores


@dataclass(frozen=True)
class MethodCheck:
    """The evaluation of one method.

    Attributes:
        method: Its name.
        curves: Deletion and insertion curves of each sample.
        deletion: Area under the deletion curve; smaller is better.
        insertion: Area under the insertion curve; larger is better.
        deletion_gain: Deletion area of random scores minus that of the method, paired by sample; larger is better.
        insertion_gain: Insertion area of the method minus that of random scores; larger is better.
        randomized: Rank correlation with the scores of a model with shuffled weights; should be near 0.
    """

    method: str
    curves: list[Curves]
    deletion: Summary
    insertion: Summary
    deletion_gain: Summary
    insertion_gain: Summary
    randomized: Summary


def check_methods(
    methods: Sequence[str],
    num_samples: int,
    scores: Callable[[int, str, bool], Tensor],
    evaluate: Callable[[int, Tensor], Tensor],
) -> list[MethodCheck]:
    """Evaluate methods and random scores.

    Args:
        methods: Their names.
        num_samples: Number of samples.
        scores: Maps the index of a sample, a method, and whether the weights are shuffled, to scores (U,) of its parts.
        evaluate: Maps the index of a sample and the parts to keep (S, U) to the probabilities of its class (S,).

    Raises:
        UsageError: if there are no samples.
    """
    if num_samples == 0:
        raise UsageError("nothing to check: --check needs texts of two words or more, or images; give some")
    torch.manual_seed(SEED)
    names = [*(name for name in methods if name != "random"), "random"]
    curves: dict[str, list[Curves]] = {name: [] for name in names}
    correlations: dict[str, list[float]] = {name: [] for name in names}
    for index in tqdm(range(num_samples), desc="samples", leave=False, disable=None):
        for name in names:
            values = scores(index, name, False)
            curves[name].append(deletion_insertion(values, partial(evaluate, index)))
            correlations[name].append(rank_correlation(values, scores(index, name, True)))
    random = curves["random"]
    checks = []
    for name in names:
        deletion = np.array([curve.deletion_area for curve in curves[name]])
        insertion = np.array([curve.insertion_area for curve in curves[name]])
        deletion_gain = np.array([curve.deletion_area for curve in random]) - deletion
        insertion_gain = insertion - np.array([curve.insertion_area for curve in random])
        summaries = map(mean_and_error, (deletion, insertion, deletion_gain, insertion_gain, correlations[name]))
        checks.append(MethodCheck(name, curves[name], *summaries))
    return checks


def usable_methods(try_method: Callable[[str], object], methods: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The methods that a model supports, and the reasons for the others; a requested method must be supported."""
    if methods:
        for name in methods:
            try_method(name)
        return list(methods), []
    found, reasons = [], []
    for name in METHODS:
        try:
            try_method(name)
        except UsageError as error:
            reasons.append(f"{name}: {error}")
        else:
            found.append(name)
    return found, reasons


def check_table(checks: Sequence[MethodCheck]) -> str:
    """A Markdown table: mean and standard error over the samples."""
    head = ("method", "deletion", "below random", "insertion", "above random", "random weights")
    rows = [
        (c.method, c.deletion, c.deletion_gain, c.insertion, c.insertion_gain, c.randomized)
        if c.method != "random"
        else (c.method, c.deletion, "", c.insertion, "", c.randomized)
        for c in checks
    ]
    return markdown_table([head, *(tuple(map(str, row)) for row in rows)])


def draw_checks(checks: Sequence[MethodCheck], title: str) -> Figure:
    """Mean deletion and insertion curves of each method, with a band of one standard error."""
    figure = new_figure(10, 4.2)
    figure.suptitle(title)
    shares = np.linspace(0, 100, STEPS + 1)
    axes = figure.subplots(1, 2, sharey=True)
    for column, (name, what) in enumerate((("deletion", "removed"), ("insertion", "added"))):
        for check in checks:
            values = np.stack([getattr(curve, name) for curve in check.curves])
            mean = values.mean(axis=0)
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0 * mean
            style = {"color": "0.4", "linestyle": "--"} if check.method == "random" else {}
            (line,) = axes[column].plot(shares, mean, label=check.method.replace("_", " "), **style)
            axes[column].fill_between(shares, mean - error, mean + error, color=line.get_color(), alpha=0.15)
        axes[column].set(xlabel=f"% {what}, highest scores first", title=name)
        axes[column].grid(alpha=0.3)
    axes[0].set(ylabel="probability of the predicted class")
    axes[1].legend()
    return figure
