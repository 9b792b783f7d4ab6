r"""A page that compares runs: their metrics in a sortable table, with a figure of all seeds and the learning curves.

    python -m sot_visual.compare out/sst-2 out/probe-sst2 --output compare.html
    python -m sot_visual.compare output/train/* --output compare.html

A run is a folder with ``results.json`` (of a GLUE script or a probe) or ``summary.csv`` (of a training on images). The
page is self-contained.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError, run_main
from sot_visual.figures import new_figure, png_bytes
from sot_visual.outputs import is_page
from sot_visual.page import Cell, embed_png, make_page
from sot_visual.run_results import Curve, Result, read_run

__all__ = ["compare_page", "main"]

HEADINGS = ("task", "split", "metric", "run", "head", "n", "mean", "std", "median", "values", "parameters", "command")


def compare_page(results: Sequence[Result], curves: Sequence[Curve]) -> str:
    """The page as HTML.

    Args:
        results: The metrics of all runs.
        curves: The logs of those runs that have one.
    """
    note = f"<p>{embed_png(_draw_values(results), 'the metrics of all seeds, with their means')}</p>"
    if curves:
        note += f"<p>{embed_png(_draw_curves(curves), 'learning curves')}</p>"
    note += '<p class="note">Metrics in percent. A training on images has one value, that of its best epoch.</p>'
    empty = [all(not _cells(result)[column] for result in results) for column in range(len(HEADINGS))]
    shown = [column for column in range(len(HEADINGS)) if not empty[column]]
    rows = [[Cell.text(_cells(result)[column]) for column in shown] for result in results]
    return make_page("Comparison of runs", note, [HEADINGS[column] for column in shown], rows)


def _cells(result: Result) -> list[str]:
    values = list(result.values.values())
    return [
        result.task,
        result.split,
        result.metric,
        result.run,
        result.head,
        str(len(values)),
        f"{statistics.fmean(values):.2f}",
        f"{statistics.stdev(values):.2f}" if len(values) > 1 else "",
        f"{statistics.median(values):.2f}" if len(values) > 1 else "",
        ", ".join(f"{value:.2f} ({seed})" for seed, value in result.values.items()),
        "" if result.parameters is None else str(result.parameters),
        result.command,
    ]


def _draw_values(results: Sequence[Result]) -> bytes:
    """One panel for each task, split and metric: a point for each seed, and a line at the mean."""
    panels: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        panels.setdefault((result.task, result.split, result.metric), []).append(result)
    heights = [1 + 0.3 * len(rows) for rows in panels.values()]
    figure = new_figure(9, sum(heights))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (title, rows) in zip(axes, panels.items(), strict=True):
        for place, result in enumerate(rows):
            values = list(result.values.values())
            panel.plot(values, [place] * len(values), "o", color=f"C{place % 10}", alpha=0.6)
            panel.plot([statistics.fmean(values)], [place], "|", color="black", markersize=14)
        panel.set_yticks(range(len(rows)), [result.label for result in rows])
        panel.set(xlabel="%", title=", ".join(filter(None, title)), ylim=(len(rows) - 0.5, -0.5))
        panel.grid(alpha=0.3, axis="x")
    return png_bytes(figure)


def _draw_curves(curves: Sequence[Curve]) -> bytes:
    """One panel for each column that several rows have."""
    columns = list(dict.fromkeys(column for curve in curves for column in curve.columns))
    figure = new_figure(9, 2.5 * math.ceil(len(columns) / 2))
    axes = figure.subplots(math.ceil(len(columns) / 2), 2, squeeze=False).flatten()
    for panel, column in zip(axes, columns, strict=False):
        for color, curve in enumerate(curves):
            if column in curve.columns:
                panel.plot(curve.places, curve.columns[column], ".-", color=f"C{color % 10}", label=curve.run)
        panel.set(xlabel=" or ".join(sorted({curve.unit for curve in curves})), title=column.replace("_", " "))
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
    for panel in axes[len(columns) :]:
        panel.remove()
    axes[0].legend()
    return png_bytes(figure)


def _names(folders: Sequence[Path]) -> list[str]:
    """The names of folders, or their paths where a name is there twice."""
    names = [folder.resolve().name for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line."""
    description = "A page that compares runs: metrics, all seeds, learning curves."
    parser = argparse.ArgumentParser(prog="python -m sot_visual.compare", description=description)
    parser.add_argument("run", nargs="+", type=Path, help="folder with results.json or summary.csv")
    parser.add_argument("--output", type=Path, default=Path("compare.html"), help="the page [compare.html]")
    args = parser.parse_args(arguments)
    if not is_page(args.output):
        raise UsageError(f"not a page: --output {args.output}; give a file that ends with .html")
    runs = [read_run(folder, name) for folder, name in zip(args.run, _names(args.run), strict=True)]
    results = [result for found, _ in runs for result in found]
    page = compare_page(results, [curve for _, curve in runs if curve is not None])
    with atomic_file(args.output) as path:
        path.write_text(page, encoding="utf-8", errors="replace")
    print(f"wrote {args.output}")  # noqa: T201
    return 0


if __name__ == "__main__":
    run_main(main)
