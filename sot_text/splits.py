"""Find a task's folder of TSV files and read one split of it; recognise a test file without labels."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

from sot_base.errors import UsageError
from sot_base.names import name_key, split_names
from sot_text.glue import GlueTask, SplitFile
from sot_text.labels import finite_number
from sot_text.tsv import TsvTable, read_tsv

__all__ = ["find_data", "read_split_file"]

logger = logging.getLogger(__name__)


def find_data(task: GlueTask, data_dir: Path, option: str, splits: Sequence[SplitFile] | None = None) -> Path:
    """Find the folder of a task's TSV files: `data_dir`, or the subfolder with the task's name.

    Args:
        task: Names its files.
        data_dir: Where to look.
        option: The command-line option that gave `data_dir`, for the message.
        splits: The files of which one must exist; default: any of the task's.

    Raises:
        UsageError: If neither folder has one of them.
    """
    files = [split.file for split in splits or task.splits]
    for folder in (data_dir, data_dir / task.name):
        if any((folder / file).is_file() for file in files):
            return folder
    raise UsageError(
        f"no {', '.join(files)}: {data_dir.absolute()} or its subfolder {task.name}; "
        f"{option} must be the folder of the TSV files"
    )


def read_split_file(task: GlueTask, split: SplitFile, folder: Path) -> TsvTable:
    """Read the texts and, where the split must or does have them, the labels of a split.

    A test file whose labels are all blank, or all the same placeholder (``-1``, ``?``), counts as unlabelled: the
    column is dropped, and the log says so.

    Args:
        task: Says which labels there are, and whether malformed rows are dropped, which is logged.
        split: One of its files.
        folder: Where the file is.

    Raises:
        UsageError: As :func:`sot_text.tsv.read_tsv`.
    """
    label = (split.label_column,)
    table = read_tsv(
        folder / split.file,
        columns=split.text_columns if split.is_test else split.text_columns + label,
        header=split.header,
        optional=label if split.is_test else (),
        skip_malformed=task.skip_malformed and not split.is_test,
    )
    if table.skipped:
        logger.warning("%s: %d malformed rows dropped, first line %d", table.path, len(table.skipped), table.skipped[0])
    if split.is_test and split.label_column in table.columns:
        placeholder = _placeholder(task, table.columns[split.label_column])
        if placeholder is not None:
            del table.columns[split.label_column]
            what = f"all {placeholder!r}, which is not a label" if placeholder else "all blank"
            logger.warning("%s: the labels are %s: read as a file without labels", table.path, what)
    return table


def _placeholder(task: GlueTask, cells: list[str]) -> str | None:
    """The value that stands for a label in every row of a file without labels; None if the file has labels."""
    values = {cell.strip() for cell in cells}
    if len(values) > 1:
        return None
    (value,) = values
    if value == "":
        return value
    if task.regression:
        low, high = task.label_range or (-math.inf, math.inf)
        number = finite_number(value)
        return None if number is not None and low <= number <= high else value
    names = split_names(value, task.name) if task.multi_label else [value]
    known = {name_key(label) for label in task.labels or names}
    return None if known.issuperset(map(name_key, names)) else value
