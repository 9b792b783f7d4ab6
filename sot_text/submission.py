"""The files that GLUE's test server takes: ``index<TAB>prediction``, under its own names."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError
from sot_base.names import join_names, name_key
from sot_text.glue import GLUE_TASKS, GlueTask
from sot_text.tsv import TsvTable

__all__ = [
    "INDEX_COLUMNS",
    "check_submission",
    "submission_indices",
    "submission_name",
    "submission_path",
    "write_submission",
]

INDEX_COLUMNS = ("index", "id")  # of the test files; QQP's is called id
MNLI_NAMES = {"matched": "MNLI-m.tsv", "mismatched": "MNLI-mm.tsv"}


def check_submission(task: GlueTask, labels: Sequence[str]) -> None:
    """Refuse a model of other classes than the task's; `labels` are the model's, none for regression.

    Raises:
        UsageError: naming both.
    """
    if sorted(map(name_key, labels)) != sorted(map(name_key, task.labels)):
        own, wanted = (", ".join(names) or "numbers" for names in (labels, task.labels))
        raise UsageError(
            f"the model predicts {own}, a submission of {task.name} has {wanted}: --submission; "
            "give a model trained on the task"
        )


def submission_path(path: str | os.PathLike[str], task: GlueTask, source: Path) -> Path:
    """The file to write: `path` itself, or GLUE's name (``RTE.tsv``, ``MNLI-mm.tsv``) in it if it is a folder.

    A path that does not exist is a folder unless it ends in ``.tsv``. `source` is the file predicted.

    Raises:
        UsageError: if `source` is the task's train or dev file, and as :func:`submission_name`.
    """
    path = Path(path)
    if any(source.name == split.file for split in task.splits if not split.is_test):
        raise UsageError(f"not a test file by its name: {source}; a submission is of GLUE's test file")
    if path.suffix == ".tsv" and not path.is_dir():
        return path
    return path / submission_name(task, source)


def submission_name(task: GlueTask, source: str | os.PathLike[str]) -> str:
    """GLUE's name for the predictions of a test file.

    Raises:
        UsageError: if the name of `source` does not tell which of MNLI's two it is.

    Example:
        >>> from sot_text.glue import get_task
        >>> submission_name(get_task("mnli"), "test_mismatched.tsv")
        'MNLI-mm.tsv'
    """
    if task.name != "MNLI":
        return f"{task.name}.tsv"
    part = Path(source).stem.rpartition("_")[2]
    if part not in MNLI_NAMES:
        raise UsageError(
            f"neither matched nor mismatched by its name: {os.fspath(source)}; name the file of the submission, "
            "MNLI-m.tsv or MNLI-mm.tsv"
        )
    return MNLI_NAMES[part]


def write_submission(
    path: str | os.PathLike[str],
    task: GlueTask,
    indices: Sequence[str],
    predictions: Sequence[str | float | Sequence[str]],
) -> None:
    """Write the predictions of a test file.

    Args:
        path: The file to write.
        task: Numbers are cut to its range, labels get its spelling.
        indices: Of the rows, as :func:`submission_indices` gives them.
        predictions: Labels, numbers in regression, or lists of labels, in the order of the rows.

    Raises:
        ValueError: If the two differ in length.
    """
    names = {name_key(label): label for label in task.labels}
    low, high = task.label_range or (-math.inf, math.inf)

    def spell(prediction: str | float | Sequence[str]) -> str:
        if isinstance(prediction, str):
            return names[name_key(prediction)]
        if isinstance(prediction, Sequence):
            return join_names([names[name_key(label)] for label in prediction])
        return f"{min(max(prediction, low), high):.3f}"

    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write("index\tprediction\n")
        for index, prediction in zip(indices, predictions, strict=True):
            stream.write(f"{index}\t{spell(prediction)}\n")


def submission_indices(table: TsvTable, task: GlueTask) -> list[str]:
    """The index of each row: that of the file, else counted from 0.

    Own data may have ids of any form, repeated or not; GLUE's server takes different numbers.

    Raises:
        UsageError: If an index of a GLUE task is not a number or is repeated.
    """
    column = next((name for name in INDEX_COLUMNS if name in table.columns), None)
    if column is None:
        return [str(row) for row in range(len(table))]
    seen: set[str] = set()
    for row, index in enumerate(table.columns[column] if task.name in GLUE_TASKS else ()):
        if not index.isdecimal() or index in seen:
            problem = "is repeated" if index in seen else "is not a number"
            raise UsageError(f"{index!r} {problem}: {table.where(row, column)}; give GLUE's own test file")
        seen.add(index)
    return table.columns[column]
