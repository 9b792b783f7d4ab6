"""Tables and a picture of what the files of the data sets hold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.heads.datasets import HEADS
from benchmarks.heads.results_file import Results
from benchmarks.statistics import Comparison, average_ranks, compare, format_interval, format_p, holm, resample
from sot_base.errors import UsageError
from sot_base.markdown import markdown_table
from sot_visual.figures import new_figure, save_figure

__all__ = ["by_name", "draw_accuracy", "overview", "set_table"]

COLORS = dict(zip(HEADS, ("C0", "C1", "C3"), strict=True))
PANELS_IN_A_ROW = 4


def set_table(results: Results, reference: str) -> str:
    """The table of a data set: each head, and its difference from the reference.

    p values are corrected by Holm's method for the number of heads that are compared with the reference.

    Raises:
        UsageError: if the reference was not measured on it.
    """
    if reference not in results.heads:
        raise UsageError(f"{reference} was not measured on {results.name}: --reference; give another head")
    others = [head for head in results.heads if head != reference]
    compared = dict(zip(others, _comparisons(results, reference, others), strict=True))
    by_seeds = dict(zip(others, holm([own.p_seeds for own in compared.values()]), strict=True))
    by_items = dict(zip(others, holm([own.p_items for own in compared.values()]), strict=True))
    header = ("head", "mean", "std", f"minus {reference} [95 %]", "p, seeds", "p, items")
    rows: list[Sequence[str]] = [(*header, "parameters", "s", "MiB", "chosen")]
    for head in sorted(results.heads, key=lambda head: -statistics.fmean(results.values(head))):
        values = results.values(head)
        cells = [head, f"{statistics.fmean(values):.2f}", f"{statistics.stdev(values):.2f}" if len(values) > 1 else "-"]
        own = compared.get(head)
        cells += (
            ["-"] * 3
            if own is None
            else [format_interval(*own[:3]), format_p(by_seeds[head]), format_p(by_items[head])]
        )
        rows.append((*cells, *_costs(results, head)))
    return f"{title(results)}\n\n{markdown_table(rows)}"


def title(results: Results) -> str:
    """A line about the data."""
    protocol, seeds = results.protocol, results.seeds()
    labels = protocol["labels"]
    rows = f"{protocol['train_rows']:,} training rows" if labels is None else f"{labels:,} labels in each draw"
    share = f"{100 * protocol['held_out']:.0f} % held out to choose settings"
    draws = ("seed" if labels is None else "draw") + ("" if len(seeds) == 1 else "s")
    test = f"{protocol['test_rows']:,} test rows, {len(seeds)} {draws}"
    return f"{results.name}: {results.metric} in percent, {rows} ({share}), {test}"


def overview(files: Sequence[Results]) -> str:
    """The mean of each head on each data set, and its average rank among the heads that all sets have."""
    means = [{head: statistics.fmean(own.values(head)) for head in own.heads} for own in files]
    ranks = average_ranks(means)
    heads = list(dict.fromkeys(head for own in means for head in own))
    heads.sort(
        key=lambda head: (ranks.get(head, math.inf), -statistics.fmean(own[head] for own in means if head in own))
    )
    rows: list[Sequence[str]] = [("head", *(_column(own) for own in files), "average rank")]
    for head in heads:
        cells = [f"{own[head]:.2f}" if head in own else "-" for own in means]
        rows.append((head, *cells, f"{ranks[head]:.2f}" if head in ranks else "-"))
    return markdown_table(rows)


def draw_accuracy(files: Sequence[Results], path: Path) -> None:
    """Draw the metric against the number of parameters, a panel for each data set and a point for each head.

    Raises:
        UsageError: if matplotlib is not installed or does not know the format.
    """
    lines = math.ceil(len(files) / PANELS_IN_A_ROW)
    columns = math.ceil(len(files) / lines)
    figure = new_figure(3.0 * columns, 2.6 * lines)
    panels = np.atleast_1d(figure.subplots(lines, columns)).ravel()
    for axes, results in zip(panels, files, strict=False):
        for family, names in HEADS.items():
            own = [head for head in names if head in results.heads]
            parameters = [_parameters(results, head) for head in own]
            means = [statistics.fmean(results.values(head)) for head in own]
            axes.plot(parameters, means, "o", markersize=4, color=COLORS[family], label=family)
            for head, *place in zip(own, parameters, means, strict=True):
                below = (head in own[1::2]) * 9  # every other name, so that they do not overlap
                axes.annotate(_short(head), place, (3, 2 - below), textcoords="offset points", fontsize=6)
        axes.set(xscale="log", title=_column(results), xlabel="parameters", ylabel=f"{results.metric}, %")
        axes.grid(alpha=0.3)
        axes.margins(x=0.25)
    for axes in panels[len(files) :]:
        axes.set_axis_off()
    panels[0].legend(fontsize=6)
    save_figure(figure, path)


def _comparisons(results: Results, reference: str, others: Sequence[str]) -> list[Comparison]:
    predictions = {head: results.predictions(head) for head in results.heads}
    samples = resample(predictions, np.array(results.targets), results.metric)
    base = results.values(reference)
    return [compare(results.values(head), base, samples[head], samples[reference]) for head in others]


def _costs(results: Results, head: str) -> tuple[str, ...]:
    """Parameters, median seconds and memory of a training, and the settings that were chosen."""
    runs = [results.heads[head][seed] for seed in results.seeds()]
    chosen = list(dict.fromkeys(run.settings for run in runs))
    settings = (chosen[0] or "defaults") if len(chosen) == 1 else "by draw"
    numbers = (f"{_parameters(results, head):,}", f"{statistics.median(run.seconds for run in runs):.1f}")
    return (*numbers, f"{statistics.fmean(run.mebibytes for run in runs):.1f}", settings)


def _parameters(results: Results, head: str) -> int:
    return round(statistics.fmean(results.heads[head][seed].parameters for seed in results.seeds()))


def _short(head: str) -> str:
    """Name of a head in the picture: the pooling, and whether the class token is added."""
    return head if head == "cls" else head.removesuffix("-words") + ("" if head.endswith("-words") else " + cls")


def _column(results: Results) -> str:
    labels = results.protocol["labels"]
    return results.name if labels is None else f"{results.name}, {labels} labels"


def by_name(files: Iterable[Results]) -> list[Results]:
    """Whole data sets first, then draws of labels by their number."""
    return sorted(files, key=lambda own: (own.protocol["labels"] or 0, own.name))
