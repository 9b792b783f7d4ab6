"""Data options and metrics of the ``probe`` commands for text."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sot_text.metrics import compute_metrics, constant_values, value_name

__all__ = ["ProbeMetrics", "add_data_options", "data_words"]

OPTIONS = ("task", "text_columns", "label_column", "labels", "max_length")
FLAGS = ("regression", "multi_label")


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of encoder, data and output."""
    parser.add_argument("--encoder", required=True, help="a name, or a path; see the documentation")
    parser.add_argument("--data-dir", required=True, help="the folder with train.tsv and dev.tsv, or GLUE's folder")
    parser.add_argument("--output-dir", required=True, type=Path, help="the folder for results.json and the model")
    data = parser.add_argument_group("what the files hold")
    data.add_argument("--task", help="a GLUE task")
    data.add_argument("--text-columns", metavar="A[,B]", help="own data: names of one or two columns")
    data.add_argument("--label-column", help="own data: name of the column with the label")
    data.add_argument("--labels", metavar="X,Y,...", help="own data: the labels in order; by default sorted")
    data.add_argument("--regression", action="store_true", help="own data: the label is a number")
    data.add_argument("--multi-label", action="store_true", help="own data: a cell lists labels, X,Y, or none")
    data.add_argument("--max-length", type=int, help="maximum number of tokens of a sample, special tokens included")


def data_words(args: argparse.Namespace) -> list[str]:
    """The data's options as command-line arguments, without encoder and output."""
    given = [(name, vars(args)[name]) for name in OPTIONS if vars(args)[name] is not None]
    words = [word for name, value in given for word in (_flag(name), str(value))]
    return ["--data-dir", args.data_dir, *words, *(_flag(name) for name in FLAGS if vars(args)[name])]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class ProbeMetrics:
    """The metrics of a task, in percent.

    Args:
        names: Names in `sot_text.metrics`.
        num_classes: Number of classes; 1 for regression.
        labels: Names of the classes.
    """

    def __init__(self, names: Sequence[str], num_classes: int, labels: Sequence[str]) -> None:
        self.names, self.num_classes, self.labels = tuple(names), num_classes, labels

    def measure(self, predictions: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """The metrics of a whole split."""
        values = compute_metrics(self.names, predictions, targets, self.num_classes, warn=False)
        return {name: 100.0 * value for name, value in values.items()}

    def warnings(self, predictions: np.ndarray, targets: np.ndarray, where: str) -> list[str]:
        """Warn of constant predictions, see :func:`sot_text.metrics.constant_values`."""
        first = (value_name(predictions[0], self.labels), value_name(targets[0], self.labels))
        return constant_values(predictions, targets, first, where)
