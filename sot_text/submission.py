"""Prediction files in the form that GLUE's leaderboard takes: a header line, then ``<index> TAB <prediction>``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sot_core.cli import atomic_file
from sot_text.glue import GlueTask

__all__ = ["submission_name", "write_submission"]

MNLI_FILES = {"test": "MNLI-m.tsv", "test1": "MNLI-mm.tsv"}


def submission_name(task: GlueTask, split: str) -> str:
    """GLUE's file name for the predictions of a test split.

    Example:
        >>> from sot_text.glue import get_task
        >>> submission_name(get_task("mnli"), "test1")
        'MNLI-mm.tsv'
    """
    return MNLI_FILES[split] if task.name == "MNLI" else f"{task.name}.tsv"


def write_submission(
    path: str | os.PathLike[str], task: GlueTask, predictions: Sequence[int] | Sequence[float], indices: Sequence[int]
) -> None:
    """Write predictions as GLUE wants them: label names, or numbers within the task's range.

    Args:
        path: The file.
        task: The task; its `labels` give the names of class indices.
        predictions: Class indices, or numbers in regression.
        indices: For each the number of its row in the test file, from 0.

    Raises:
        ValueError: If the two differ in length.
    """
    if task.regression:
        low, high = task.label_range or (float("-inf"), float("inf"))
        cells = [f"{min(max(float(number), low), high):.3f}" for number in predictions]
    else:
        cells = [task.labels[int(number)] for number in predictions]
    rows = [f"{index}\t{cell}\n" for index, cell in zip(indices, cells, strict=True)]
    with atomic_file(path) as temporary:
        temporary.write_text("index\tprediction\n" + "".join(rows), encoding="utf-8", newline="\n")
