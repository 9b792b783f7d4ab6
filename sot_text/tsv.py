"""A strict reader of tab-separated files: each line of the file is one row, or an error that names the line.

Quotation marks are plain text, ``NA`` and ``null`` too, and a field may be empty. Rows end at a line feed (with or
without a carriage return before it) and nowhere else: form feeds, ``U+2028`` and lone carriage returns are text.
"""

from __future__ import annotations

import itertools
import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from sot_base.errors import UsageError

__all__ = ["TsvTable", "read_tsv"]

BLOCK = 2**16  # bytes split at once; with more, the garbage collector goes through the many rows again and again
MAX_LINE = 2**24  # bytes


@dataclass(frozen=True)
class TsvTable:
    """Columns of a file.

    Args:
        path: The file.
        columns: Values of each column by its name; all have the same length.
        lines: For each row its line in the file, counted from 1.
        skipped: Lines that were dropped for a wrong number of fields.
    """

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]
    skipped: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int, column: str) -> str:
        """How error messages name a cell."""
        return f"{self.path} line {self.lines[row]}, column {column!r}"


def read_tsv(
    path: str | os.PathLike[str],
    columns: Sequence[str],
    header: Sequence[str] | None = None,
    optional: Sequence[str] = (),
    skip_malformed: bool = False,
) -> TsvTable:
    r"""Read the named columns of a UTF-8 file of tab-separated values.

    Args:
        path: The file; a byte order mark is skipped.
        columns: Names of the columns to keep, in any order.
        header: Names of all columns where the file has no header line.
        optional: Names of further columns to keep if the file has them.
        skip_malformed: Drop rows with a wrong number of fields (:attr:`TsvTable.skipped`) instead of refusing the file.

    Returns:
        The table; without `skip_malformed` it has one row for each line of the file but the header.

    Raises:
        UsageError: If the file is absent, empty or not UTF-8, a column is missing, or a row has a wrong number of
            fields. The message names the file and the line.
    """
    path = Path(path)
    blocks = _line_blocks(path)
    number = 1
    first = next(blocks, [""])
    if header is None:
        header = first.pop(0).split("\t")
        number = 2
    wanted = [*columns, *(name for name in optional if name in header)]
    for name in wanted:
        if header.count(name) != 1:
            problem = "no column" if name not in header else "more than one column"
            found = _shown(header) if any(header) else "nothing"
            raise UsageError(f"{problem} {name!r}: {path} line 1 has {found}; name the columns in the first line")
    table = TsvTable(path, {name: [] for name in wanted}, [], [])
    for block in itertools.chain([first], blocks):
        rows = [line.split("\t") for line in block]
        numbers: Sequence[int] = range(number, number + len(rows))
        number += len(rows)
        if set(map(len, rows)) - {len(header)}:
            wrong = [line for line, row in zip(numbers, rows, strict=True) if len(row) != len(header)]
            if not skip_malformed:
                raise UsageError(_wrong_count(path, wrong[0], len(rows[wrong[0] - numbers[0]]), header))
            table.skipped.extend(wrong)
            numbers = [line for line, row in zip(numbers, rows, strict=True) if len(row) == len(header)]
            rows = [row for row in rows if len(row) == len(header)]
        table.lines.extend(numbers)
        for name, cells in table.columns.items():
            cells.extend(map(itemgetter(header.index(name)), rows))
    if not table.lines:
        raise UsageError(f"no rows: {path}; the file needs one line per sample")
    return table


def _line_blocks(path: Path) -> Iterator[list[str]]:
    """Yield the lines without their ends, many at a time: decoding and splitting are fast on large strings."""
    try:
        with path.open("rb") as stream:
            number = 1
            while raw := stream.read(BLOCK) + stream.readline(MAX_LINE):
                if len(raw) >= BLOCK + MAX_LINE:
                    raise UsageError(f"a line of more than {MAX_LINE >> 20} MiB: {path}; it is not a table of texts")
                if number == 1:
                    raw = raw.removeprefix(BOM_UTF8)
                try:
                    text = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    number += raw.count(b"\n", 0, error.start)
                    place = error.start - raw.rfind(b"\n", 0, error.start)
                    raise UsageError(
                        f"not UTF-8 (byte {raw[error.start]:#04x}, place {place}): {path} line {number}; "
                        "convert the file, for instance with iconv -t utf-8"
                    ) from None
                lines = text.removesuffix("\n").split("\n")
                number += len(lines)
                yield [line.removesuffix("\r") for line in lines] if "\r" in text else lines
    except OSError as error:
        raise UsageError(f"cannot read the file ({error.strerror}): {path}; check the path") from None


def _wrong_count(path: Path, number: int, found: int, header: Sequence[str]) -> str:
    fields = "1 field" if found == 1 else f"{found} fields"
    return (
        f"{fields} where {len(header)} are expected: {path} line {number}; "
        f"give each of {_shown(header)}, with one tab between them"
    )


def _shown(names: Sequence[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= 200 else f"{text[:197]}..."
