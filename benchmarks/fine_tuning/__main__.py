r"""Compare heads and ways of training when the encoder is fine-tuned, paired over seeds.

    python -m benchmarks.fine_tuning --data-dir GLUE_DIR --output out/tuning.json
    python -m benchmarks.fine_tuning --data-dir glue_scripts/demo_corpus --output out/demo.json --arms cls mgcrp \
        --follow cls mgcrp --seeds 1 2 3 4 5
    python -m benchmarks.fine_tuning --output out/tuning.json

The first two commands train and print the tables, the last one prints the tables. ``--output`` is written after each
run; the same command continues it. docs/fine_tuning.md has the plan and the results.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers.utils import logging as hf_logging

from benchmarks.fine_tuning.arms import ARMS
from benchmarks.fine_tuning.report import arms_table, draw_differences, states_tables, variants_table
from benchmarks.fine_tuning.results_file import read_results
from benchmarks.fine_tuning.trainings import measure
from sot_base.errors import UsageError, run_main

__all__ = ["fine_tuning_parser", "main"]


def fine_tuning_parser() -> argparse.ArgumentParser:
    """The parser of ``python -m benchmarks.fine_tuning``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fine_tuning", description=__doc__.split("\n")[0])
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="the JSON file of all runs")
    parser.add_argument("--data-dir", help="folder of CoLA's TSV files, or GLUE's; without it the tables are printed")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), metavar="ARM", help=f"[all: {', '.join(ARMS)}]")
    parser.add_argument(
        *("--follow",), nargs="+", default=[], metavar="ARM", help="also read the encoder's states after each epoch"
    )
    parser.add_argument("--seeds", type=_seed, nargs="+", default=list(range(1, 11)), help="[1 to 10]")
    parser.add_argument("--labels", type=_count, default=2048, help="training rows, drawn for each seed [2048]")
    parser.add_argument("--epochs", type=_count, default=2, help="[2]")
    parser.add_argument("--batch-size", type=_count, default=32, help="[32]")
    parser.add_argument("--learning-rate", type=_rate, default=1e-4, help="[1e-4]")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16", help="[bf16, by autocast]")
    parser.add_argument(
        "--held-out",
        action="store_true",
        help="test on training rows that the first seed does not draw, as many as the dev file has",
    )
    parser.add_argument("--encoder", default="minilm", help="as --encoder of sot_hf.probe [minilm]")
    parser.add_argument("--threads", type=_count, default=1, help="threads of torch [1]")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the differences: .png, .svg, .pdf")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, and print the tables."""
    args = fine_tuning_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s: %(message)s")
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    for option, names in (("--arms", args.arms), ("--follow", args.follow)):
        unknown = [name for name in names if name not in ARMS]
        if unknown:
            raise UsageError(f"no such arm: {option} {unknown[0]}; use {', '.join(ARMS)}")
    if args.data_dir is None:
        results = read_results(args.output)
    else:
        torch.set_num_threads(args.threads)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        results = measure(args)
    for table in (arms_table(results), variants_table(results), states_tables(results)):
        if table:
            print(f"\n{table}")  # noqa: T201
    if args.picture:
        draw_differences(results, args.picture)
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, got {text}")
    return int(text)


def _rate(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text}")
    return value


if __name__ == "__main__":
    run_main(main)
