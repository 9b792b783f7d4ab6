"""Reading the TSV file of one split of a task."""

from __future__ import annotations

import logging
from pathlib import Path

from sot_text.glue import GlueTask, SplitFile
from sot_text.tsv import TsvTable, read_tsv

__all__ = ["read_split_file"]

logger = logging.getLogger(__name__)


def read_split_file(task: GlueTask, split: SplitFile, folder: Path) -> TsvTable:
    """Read the texts and, where the split must or does have them, the labels of a split.

    Args:
        task: Says whether malformed rows are dropped, which is logged.
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
    return table
