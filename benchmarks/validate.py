"""Time of validation in fairseq: the toolkit's criterion beside the stock one, which reports accuracy alone.

A RoBERTa of one layer and width 16 makes the model cheap, so that loop, batches and metrics are what is measured. The
rows of the task's dev file are repeated to each number of ``--rows``. Contenders:

- stock: fairseq's task and criterion, batches in random order;
- stock criterion: the toolkit's task, whose batches are sorted by length, with fairseq's criterion;
- sot_fairseq: the toolkit's task and criterion, with accuracy, F1 and MCC.

All have the same weights. Time is that of fairseq's ``validate``, the median over the repetitions, in which contenders
take turns: with one CPU thread its CPU time, else wall time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import sot_fairseq  # noqa: F401  registers task and criterion
from benchmarks import DEMO_CORPUS
from benchmarks.fairseq_runs import OURS, STOCK, open_run, preprocess_rows, quiet, train_words
from benchmarks.report import Report, benchmark_parser
from benchmarks.timing import median_seconds

CONTENDERS = {"stock": (STOCK, STOCK), "stock criterion": (OURS, STOCK), "sot_fairseq": (OURS, OURS)}


@quiet()
def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = benchmark_parser(__doc__, repetitions=3, quick="100 rows, one repetition")
    parser.add_argument("--data-dir", type=Path, default=DEMO_CORPUS, help="GLUE's folder; default: the demo corpus")
    parser.add_argument("--task", default="CoLA")
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10000, 40000])
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args(argv)
    if args.quick:
        args.rows, args.repetitions = [100], 1
    report = Report(args, f"{args.task}, batch {args.batch_size}, median of {args.repetitions}")
    table = []
    for rows in args.rows:
        table += measure(report, args.task, args.data_dir, rows, args.batch_size, args.repetitions)
    report.table("Validation; ratios to the stock criterion on the same batches", table)
    report.save()


def measure(
    report: Report, task: str, data_dir: Path, rows: int, batch_size: int, repetitions: int
) -> list[dict[str, str | int | float]]:
    """Rows of the table for one number of validation rows."""
    cpu, runs = report.device.type == "cpu", {}
    with tempfile.TemporaryDirectory() as folder:
        data = preprocess_rows(task, data_dir, Path(folder), 32, rows)
        for name, kinds in CONTENDERS.items():
            runs[name] = open_run(train_words(data, *kinds, 1, 16, batch_size, cpu))
            runs[name].trainer.model.load_state_dict(runs["stock"].trainer.model.state_dict())
        found = {name: run.validate() for name, run in runs.items()}
        times = median_seconds({name: run.validate for name, run in runs.items()}, repetitions, report.device)
    return [
        {
            "rows": rows,
            "": name,
            "seconds": time,
            "ratio": time / times["stock criterion"],
            "ms per row": 1e3 * time / rows,
            "loss": found[name]["loss"],
            "accuracy": found[name]["accuracy"],
        }
        for name, time in times.items()
    ]


if __name__ == "__main__":
    main()
