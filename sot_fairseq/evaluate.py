"""Evaluate a fine-tuned checkpoint: every metric of its task over whole dev splits.

    python -m sot_fairseq.evaluate out/mnli/seed-1
    python -m sot_fairseq.evaluate out/mnli/seed-1 --data data-bin/MNLI --split valid1 --json

By default every dev split with labels is evaluated, MNLI's matched and mismatched both, under the names of their
files. Metrics are in percent. ``--json`` prints ``{"dev_matched": {"accuracy": 84.1}, ...}``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from sot_base.command_help import show_help
from sot_fairseq.command_options import evaluate_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: evaluate_parser(__doc__))

from sot_base.errors import UsageError, run_main
from sot_fairseq.data.header import HEADER, DataHeader
from sot_fairseq.prediction.predictor import SentencePredictor, from_pretrained
from sot_text.metrics import check_metrics

__all__ = ["evaluate", "main"]


def evaluate(
    predictor: SentencePredictor,
    data: str | os.PathLike[str] | None = None,
    splits: Sequence[str] | None = None,
    batch_size: int = 64,
    metrics: Sequence[str] | None = None,
) -> dict[str, dict[str, float]]:
    """Metrics of several splits.

    Args:
        predictor: The model.
        data: Folder of ``python -m sot_fairseq.preprocess``; default: the training data.
        splits: Names of splits (``valid``) or of their files (``dev_matched``); default: all dev splits with labels.
        batch_size: Rows computed at once (> 0).
        metrics: Names; default: those of the task.

    Returns:
        For each split, by the name of its file, the metrics in percent.

    Raises:
        UsageError: as :meth:`SentencePredictor.evaluate`, or if there is no such split.
    """
    data = predictor.training_data if data is None else data
    files = _files(Path(data))
    if splits is None:
        names = [name for name in files if name.startswith("valid")]
        if not names:
            raise UsageError(f"no dev split with labels: {os.path.abspath(data)}; name splits with --split")
    else:
        by_file = {file: name for name, file in files.items()}
        names = [by_file.get(split, split) for split in splits]
    return {files.get(name, name): predictor.evaluate(data, name, batch_size, metrics) for name in names}


def _files(data: Path) -> dict[str, str]:
    """For each split with labels the name of its file, without its ending; for fairseq's own data that of the split."""
    if (data / HEADER).is_file():
        splits = DataHeader.load(data).splits
        return {name: Path(counts.source).stem for name, counts in splits.items() if counts.labelled}
    return {path.stem: path.stem for path in sorted((data / "input0").glob("valid*.idx"))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluate from the command line."""
    args = evaluate_parser(__doc__).parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    metrics = None if args.metrics is None else check_metrics(args.metrics)
    predictor = from_pretrained(args.checkpoint, head=args.head, device=args.device)
    found = evaluate(predictor, args.data, args.split, args.batch_size, metrics)
    if args.json:
        print(json.dumps(found, indent=2))  # noqa: T201
        return
    for split, values in found.items():
        print(f"{split}: " + ", ".join(f"{name} {value:.2f}" for name, value in values.items()))  # noqa: T201


if __name__ == "__main__":
    run_main(main)
