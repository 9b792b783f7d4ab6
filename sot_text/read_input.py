"""What prediction and visualisation read: lines of standard input, or the text columns of a TSV file."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from sot_base.errors import UsageError
from sot_base.names import split_names
from sot_text.glue import GlueTask, SplitFile
from sot_text.tsv import TsvTable, read_tsv

__all__ = ["read_lines", "read_task_file", "read_texts"]

Row = tuple[str, ...]


def read_lines(stream: BinaryIO, num_inputs: int | None, name: str = "standard input") -> Iterator[Row]:
    """Yield the texts of each line, which ends at a line feed and nowhere else.

    Args:
        stream: UTF-8 text; a byte order mark is skipped.
        num_inputs: 2 for pairs, with a tab between the texts; None: as the first line has it.
        name: What messages call the stream.

    Raises:
        UsageError: If a line is not UTF-8 or has another number of texts; the message gives its number from 1.
    """
    for number, raw in enumerate(stream, 1):
        if number == 1:
            raw = raw.removeprefix(BOM_UTF8)
        try:
            line = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise UsageError(f"not UTF-8: {name} line {number}; convert it, with iconv -t utf-8") from None
        row = tuple(line.split("\t"))
        num_inputs = num_inputs or len(row)
        if num_inputs == 2 and line == "":
            row = ("", "")
        if len(row) != num_inputs:
            wanted = "two texts with one tab between them" if num_inputs == 2 else "one text without tabs"
            raise UsageError(
                f"{len(row)} field(s) where {num_inputs} are expected: {name} line {number}; give {wanted} per line"
            )
        yield row


def read_texts(
    path: Path,
    text_columns: str | None,
    task: GlueTask | None,
    num_inputs: int | None,
    required: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> tuple[TsvTable, Sequence[str]]:
    """Read the texts of a file by the names of its columns, or of a GLUE task.

    Args:
        path: The file.
        text_columns: Names of one or two columns, ``A[,B]``; None: those of the task.
        task: The task; None if it is unknown.
        num_inputs: Number of texts in a row that the model takes; None: any.
        required: Further columns that a file with `text_columns` must have.
        optional: Further columns to keep where the file has them.

    Returns:
        The rows, and the names of the text columns.

    Raises:
        UsageError: If the columns are unknown or of another number, or the file is malformed.
    """
    columns: Sequence[str]
    if text_columns:
        columns = split_names(text_columns, "--text-columns")
        table = read_tsv(path, [*columns, *required], optional=[name for name in optional if name not in columns])
    elif task is not None:
        table, columns = read_task_file(path, task, optional)
    else:
        raise UsageError(f"the text columns are unknown: {path.absolute()}; give --text-columns or --task")
    if num_inputs is not None and len(columns) != num_inputs:
        raise UsageError(
            f"the model was trained on {num_inputs} text(s) a row, not on {len(columns)} ({', '.join(columns)}): "
            f"{path.absolute()}; give the columns or the task of the model"
        )
    return table, columns


def read_task_file(path: Path, task: GlueTask, optional: Sequence[str] = ()) -> tuple[TsvTable, tuple[str, ...]]:
    """Read a train, dev or test file of a GLUE task.

    Args:
        path: The file; its name, or else its first line, tells its layout.
        task: The task.
        optional: Further columns to keep where the file has them, such as that of the labels.

    Returns:
        The rows, and the names of the text columns.

    Raises:
        UsageError: If the file has none of the task's layouts, or is malformed; the message names the line.
    """
    split = next((split for split in task.splits if split.file == path.name), None) or _layout_of(path, task)
    if split.header is None:
        return read_tsv(path, split.text_columns, None, optional), split.text_columns
    table = read_tsv(path, (*split.text_columns, split.label_column), split.header, optional)
    first = table.columns[split.label_column][0]
    if split.label_column not in optional:
        del table.columns[split.label_column]
    if first not in task.labels:  # the header line of another layout with as many columns
        raise UsageError(
            f"no label of {task.name}, {first!r}: {path.absolute()} line 1, column {split.label_column!r}; give a file "
            "of the task, or name its text columns with --text-columns"
        )
    return table, split.text_columns


def _layout_of(path: Path, task: GlueTask) -> SplitFile:
    with path.open("rb") as stream:
        first = stream.readline().removeprefix(BOM_UTF8).decode("utf-8", "replace").rstrip("\r\n").split("\t")
    for split in task.splits:
        if split.header is None and set(split.text_columns) <= set(first):
            return split
    for split in task.splits:
        if split.header is not None and len(split.header) == len(first):
            return split
    raise UsageError(f"not a file of {task.name}: {path.absolute()} line 1; name its text columns with --text-columns")
