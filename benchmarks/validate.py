"""Time of validation in fairseq: the toolkit's criterion beside the stock one, which reports accuracy alone.

A RoBERTa of one layer and width 16 makes the model cheap, so that loop, batches and metrics are what is measured. The
rows of the task's dev file are repeated to each number of ``--rows``. Contenders:

- stock: fairseq's task and criterion, batches in random order;
- stock criterion: the toolkit's task, whose batches are sorted by length, with fairseq's criterion;
- sot_fairseq: the toolkit's task and criterion, with accuracy, F1 and MCC.

All have the same weights. They validate at the same time, 20 batches each in turns of some 40 ms, because whole
validations one after another differ by more than the criteria do. A turn gets the batches, runs the model and the
criterion, and logs, as fairseq's loop does: with one CPU thread its CPU time counts, else wall time. *Seconds* is the
sum of a contender's turns, the mean of the repetitions. *Ratio* is the median over all turns, each relative to that
of the stock criterion beside it, on the same batches; the quartiles of these ratios follow.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from fairseq.logging import metrics

import sot_fairseq  # noqa: F401  registers task and criterion
from benchmarks import DEMO_CORPUS
from benchmarks.fairseq_runs import OURS, STOCK, FairseqRun, open_run, preprocess_rows, quiet, train_words
from benchmarks.report import Report, benchmark_parser
from benchmarks.timing import Turns, take_turns

CONTENDERS = {"stock": (STOCK, STOCK), "stock criterion": (OURS, STOCK), "sot_fairseq": (OURS, OURS)}
PEER = "stock criterion"
TURN = 20  # batches


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
    report = Report(args, f"{args.task}, batch {args.batch_size}, {args.repetitions} validations each")
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
        turns = Turns({name: [] for name in runs})
        for _ in range(repetitions):
            for name, times in validate_in_turns(runs, report.device).items():
                turns[name] += times
    table: list[dict[str, str | int | float]] = []
    for name in runs:
        low, middle, high = map(float, np.quantile(turns.ratios(name, PEER), (0.25, 0.5, 0.75)))
        total = sum(turns[name]) / repetitions
        table.append(
            {
                "rows": rows,
                "": name,
                "seconds": total,
                "ratio": middle,
                "lower quartile": low,
                "upper quartile": high,
                "ms per row": 1e3 * total / rows,
                "loss": found[name]["loss"],
                "accuracy": found[name]["accuracy"],
            }
        )
    return table


def validate_in_turns(runs: Mapping[str, FairseqRun], device: torch.device) -> Turns:
    """Validate once with all contenders, which have equally many batches."""
    batches = {name: run.validation() for name, run in runs.items()}

    def turn(name: str) -> None:
        metrics.reset()  # fairseq keeps its meters in the process, and those of another criterion do not fit
        with metrics.aggregate(new_root=True):
            for batch in islice(batches[name], TURN):
                runs[name].trainer.valid_step(batch)

    steps = {name: partial(turn, name) for name in runs}
    return take_turns(steps, -(-len(batches[PEER]) // TURN), device)


if __name__ == "__main__":
    main()
