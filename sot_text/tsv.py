"""A strict reader of tab-separated files: what is one line in the file is one row here, or an error that names it.

Quotation marks are plain text, ``NA`` and ``null`` too, and a field may be empty. Rows end at a line feed (with or
without a carriage return before it) and nowhere else: form feeds, ``U+2028`` and lone carriage returns are text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from sot_core.cli import UsageError

__all__ = ["TsvTable", "read_tsv"]


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
    lines: Sequence[int]
    skipped: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int, column: str) -> str:
        """Name a cell as error messages do."""
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
    lines = _decoded_lines(path)
    first = 1
    if header is None:
        header = next(lines, "").split("\t")
        first = 2
    wanted = [*columns, *(name for name in optional if name in header)]
    for name in wanted:
        if header.count(name) != 1:
            problem = "no column" if name not in header else "more than one column"
            found = ", ".join(header) if any(header) else "nothing"
            raise UsageError(f"{problem} {name!r}: {path} line 1 has {found}; name the columns in the first line")
    pick = itemgetter(*(header.index(name) for name in wanted))
    rows, numbers, skipped = [], [], []
    for number, line in enumerate(lines, first):
        fields = line.split("\t")
        if len(fields) == len(header):
            rows.append(pick(fields))
            numbers.append(number)
        elif skip_malformed:
            skipped.append(number)
        else:
            raise UsageError(_wrong_count(path, number, len(fields), header))
    if not rows:
        raise UsageError(f"no rows: {path}; the file needs one line a sample")
    values = list(zip(*rows, strict=True)) if len(wanted) > 1 else [rows]
    return TsvTable(path, {name: list(cells) for name, cells in zip(wanted, values, strict=True)}, numbers, skipped)


def _decoded_lines(path: Path) -> Iterator[str]:
    """Yield the lines without their ends."""
    try:
        with path.open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                if raw.endswith(b"\n"):
                    raw = raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
                try:
                    yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise UsageError(
                        f"not UTF-8 (byte {raw[error.start]:#04x}, place {error.start + 1}): {path} line {number}; "
                        "convert the file, for instance with iconv -t utf-8"
                    ) from None
    except OSError as error:
        raise UsageError(f"cannot read the file ({error.strerror}): {path}; check the path") from None


def _wrong_count(path: Path, number: int, found: int, header: Sequence[str]) -> str:
    fields = "1 field" if found == 1 else f"{found} fields"
    return (
        f"{fields} where {len(header)} are expected: {path} line {number}; "
        f"give each of {', '.join(header)}, with one tab between them"
    )
