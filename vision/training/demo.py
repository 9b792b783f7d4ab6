"""The demonstration: scikit-learn's digits with the second-order head and with the class token alone."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sot_visual.plots import draw_curves
from vision.cli.config_file import parse_args
from vision.cli.run_files import read_rows
from vision.cli.train_options import train_parser

__all__ = ["run_demo"]

HEADS = {"MGCrP": {}, "CLS": {"head_fusion": "cls"}}


def run_demo(argv: Sequence[str], run: Callable[[Namespace], Any]) -> None:
    """Train on digits with each head in turn and print the accuracies.

    Args:
        argv: Options that override ``vision/configs/digits.yaml``.
        run: Trains by its options; returns its `vision.training.run.Result`, or None for a dry run.
    """
    results = {}
    for name, head in HEADS.items():
        args = parse_args(train_parser(), ["--config=digits", *argv])
        vars(args).update(head)
        args.experiment = args.experiment and f"{args.experiment}-{name.lower()}"
        results[name] = run(args, name=f"digits-{name.lower()}")
    done = {name: result for name, result in results.items() if result is not None}
    if not done:
        return
    picture = Path(args.output) / "digits.png"
    drawn = draw_curves({f"{name} head": read_rows(result.summary) for name, result in done.items()}, picture)
    for name, result in done.items():
        print(f"{name:>5} head: {result.best:.2f} % of the digits right, checkpoint {result.checkpoint}")  # noqa: T201
    if drawn:
        print(f"curves: {picture}")  # noqa: T201
