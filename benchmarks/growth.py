"""A picture of how time and memory grow: tokens and batch of the head, rows of validation in fairseq.

    python -m benchmarks.growth --threads 1 --output docs/images/growth.png

The head of RoBERTa-base's shape (width 768, 4 heads of 24 x 24) and the formula written out naively, as
`benchmarks.head` has them: forward and backward with 128 to 4,096 tokens in batches of 4, and in batches of 1 to 64
with 128 tokens. Validation as in `benchmarks.validate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import DEMO_CORPUS, head, validate
from benchmarks.fairseq_runs import quiet
from benchmarks.report import Report, benchmark_parser
from sot_base.atomic import atomic_file

CONTENDERS = ("naive", "sot_core")


@quiet()
def main(argv: Sequence[str] | None = None) -> None:
    """Measure and draw."""
    parser = benchmark_parser(__doc__, repetitions=5, quick="one size each, one repetition")
    parser.add_argument("--output", type=Path, default=Path("growth.png"), help="default: %(default)s")
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 3000, 10000, 30000])
    args = parser.parse_args(argv)
    if args.quick:
        args.tokens, args.batch, args.rows, args.repetitions = [16], [2], [32], 1
    report = Report(args, f"median of {args.repetitions}")
    torch.manual_seed(0)
    by_tokens = _head("tokens", [(4, tokens) for tokens in args.tokens], args.repetitions, report)
    by_batch = _head("batch", [(batch, 128) for batch in args.batch], args.repetitions, report)
    rows = [
        row for count in args.rows for row in validate.measure(report, "CoLA", DEMO_CORPUS, count, 16, args.repetitions)
    ]
    report.table("Validation", rows)
    report.save()
    draw(args.output, by_tokens, by_batch, rows)


def _head(axis: str, sizes: Sequence[tuple[int, int]], repetitions: int, report: Report) -> list[dict[str, Any]]:
    """Rows of the table of the head."""
    rows: list[dict[str, Any]] = []
    for batch, tokens in sizes:
        shape = head.Shape(batch, tokens, 768, 4, 24, 2)
        found = head.compare(shape, report.device, False, repetitions)
        size = tokens if axis == "tokens" else batch
        rows += [{axis: size, **row} for row in found if row["head"] in CONTENDERS]
    report.table(f"Head, by {axis}", rows)
    return rows


def draw(
    path: Path, by_tokens: list[dict[str, Any]], by_batch: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> None:
    """Draw the curves on logarithmic axes and write them as a picture."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    panels = [
        (by_tokens, "tokens", "ms", "head", "Head: time of a step, batch of 4"),
        (by_tokens, "tokens", "extra MiB", "head", "Head: extra memory, batch of 4"),
        (by_batch, "batch", "ms", "head", "Head: time of a step, 128 tokens"),
        (rows, "rows", "seconds", "", "Validation in fairseq, tiny model"),
    ]
    for place, (table, x, y, kind, title) in zip(axes.flat, panels, strict=True):
        for name in dict.fromkeys(row[kind] for row in table):
            points = [(row[x], row[y]) for row in table if row[kind] == name]
            place.plot(*zip(*points, strict=True), marker="o", label=name)
        sizes = sorted({row[x] for row in table})
        place.set(title=title, xlabel=x, ylabel=y, xscale="log", yscale="log", xticks=sizes)
        place.set_xticklabels([f"{size:,}" for size in sizes])
        place.minorticks_off()
        place.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        place.yaxis.set_major_formatter("{x:g}")
        place.grid(alpha=0.3)
        place.legend()
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    main()
