"""Where GLUE's files are, and how they become the folders that :data:`sot_text.glue.GLUE_TASKS` describes.

Addresses, sizes and checksums are those of ``dataset_infos.json`` of Hugging Face's ``glue`` data set. GLUE gathers
data sets under their own licences, which its page of tasks leads to.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sot_base.download.file import RemoteFile, download, locked
from sot_base.download.unpack import unpack
from sot_base.errors import UsageError
from sot_text.glue import GlueTask, SplitFile, get_task

__all__ = ["GLUE_FILES", "download_glue", "download_missing", "missing_files"]

TERMS = "the licence of the original data set, see https://gluebenchmark.com/tasks"
_GLUE = "https://dl.fbaipublicfiles.com/glue/data"
_SENTEVAL = "https://dl.fbaipublicfiles.com/senteval/senteval_data"


def _file(url: str, sha256: str, size: int) -> RemoteFile:
    return RemoteFile(url, sha256, size, TERMS)


GLUE_FILES: dict[str, tuple[RemoteFile, ...]] = {
    "CoLA": (_file(f"{_GLUE}/CoLA.zip", "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff", 376971),),
    "RTE": (_file(f"{_GLUE}/RTE.zip", "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee", 697150),),
    "SST-2": (
        _file(f"{_GLUE}/SST-2.zip", "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa", 7439277),
    ),
    "MNLI": (
        _file(f"{_GLUE}/MNLI.zip", "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633", 312783507),
    ),
    "QNLI": (
        _file(f"{_GLUE}/QNLIv2.zip", "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5", 10627589),
    ),
    "MRPC": (
        _file(
            f"{_SENTEVAL}/msr_paraphrase_train.txt",
            "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
            1047044,
        ),
        _file(
            f"{_SENTEVAL}/msr_paraphrase_test.txt",
            "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
            441275,
        ),
        _file(f"{_GLUE}/mrpc_dev_ids.tsv", "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7", 6222),
    ),
    "STS-B": (_file(f"{_GLUE}/STS-B.zip", "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85", 802872),),
    "QQP": (
        _file(f"{_GLUE}/QQP-clean.zip", "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0", 41696084),
    ),
    "WNLI": (_file(f"{_GLUE}/WNLI.zip", "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46", 28999),),
}


def download_glue(name: str, output_dir: str | os.PathLike[str], force: bool = False) -> Path:
    """Download a task into ``<output_dir>/<task>``, laid out as its :class:`sot_text.glue.GlueTask` says.

    Files that are there and have the task's columns stay as they are; the archives are removed afterwards.

    Args:
        name: A GLUE task, in any spelling.
        output_dir: The folder of the tasks' folders.
        force: Replace the files even if they are there.

    Returns:
        The task's folder.

    Raises:
        UsageError: If there is no such task, or its files are not available.
    """
    task = get_task(name)
    folder = Path(output_dir).absolute() / task.name
    if not (force or missing_files(task, folder)):
        return folder
    if task.name not in GLUE_FILES:
        raise UsageError(f"no address known for {task.name}: GLUE_FILES; put the files into {folder} yourself")
    with _new_folder(folder.parent), locked(folder):
        wanted = [split.file for split in task.splits] if force else missing_files(task, folder)
        if not wanted:
            return folder
        archives = [download(remote, folder.parent / remote.name, force) for remote in GLUE_FILES[task.name]]
        with tempfile.TemporaryDirectory(prefix=f".{task.name}.", dir=folder.parent) as temporary:
            fresh = Path(temporary) / task.name
            if task.name == "MRPC":
                train, test, dev_ids = archives
                _assemble_mrpc(train, test, dev_ids, fresh)
            else:
                unpack(archives[0], fresh, [split.file for split in task.splits])
            if broken := missing_files(task, fresh):
                raise UsageError(
                    f"no file of {task.name}, its columns are missing: {archives[0]} ({broken[0]}); report it"
                )
            folder.mkdir(exist_ok=True)
            for file in wanted:
                os.replace(fresh / file, folder / file)
        for archive in archives:
            archive.unlink()
    return folder


def download_missing(names: Sequence[str], data_dir: str | os.PathLike[str]) -> None:
    """Download the tasks that `data_dir` has no file of. Folders with some of a task's files are left as they are.

    Args:
        names: GLUE tasks, in any spelling.
        data_dir: The folder of the tasks' folders, or that of one task's files.

    Raises:
        UsageError: If there is no such task, or its files cannot be had.
    """
    for task in map(get_task, names):
        folders = (Path(data_dir), Path(data_dir) / task.name)
        if not any((folder / split.file).exists() for folder in folders for split in task.splits):
            download_glue(task.name, data_dir)


def missing_files(task: GlueTask, folder: Path) -> list[str]:
    """List the task's files that `folder` lacks, or that lack the task's columns in their first line."""
    return [split.file for split in task.splits if not _has_columns(folder / split.file, split)]


def _has_columns(path: Path, split: SplitFile) -> bool:
    if not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace", newline="\n") as file:
        fields = file.readline().rstrip("\r\n").split("\t")
    if split.header is not None:
        return len(fields) == len(split.header)
    wanted = split.text_columns if split.is_test else (*split.text_columns, split.label_column)
    return set(wanted) <= set(fields)


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Make a folder, and remove it after a mistake if nothing is in it."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except UsageError:
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir()
        raise


def _assemble_mrpc(train: Path, test: Path, dev_ids: Path, folder: Path) -> None:
    """Split the paraphrase corpus as GLUE does: `dev_ids` has the pairs of ids that make the dev set, without header.

    GLUE's test file has a running number where the corpus has the label.
    """
    folder.mkdir()
    header, *rows = _paraphrases(train)
    chosen = {tuple(line.split("\t")) for line in _lines(dev_ids)}
    unknown = chosen - {(row[1], row[2]) for row in rows}
    if unknown:
        raise UsageError(f"not ids of {train.name}: {dev_ids} ({' '.join(min(unknown))}); remove both and try again")
    for file, in_dev in (("train.tsv", False), ("dev.tsv", True)):
        _write(folder / file, [header, *(row for row in rows if ((row[1], row[2]) in chosen) == in_dev)])
    header, *rows = _paraphrases(test)
    _write(folder / "test.tsv", [["index", *header[1:]], *([str(i), *row[1:]] for i, row in enumerate(rows))])


def _paraphrases(path: Path) -> list[list[str]]:
    rows = [line.split("\t") for line in _lines(path)]
    for number, row in enumerate(rows, 1):
        if len(row) != 5:
            raise UsageError(f"{len(row)} fields instead of 5: {path} line {number}; remove it and try again")
    return rows


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8-sig")
    return [line.rstrip("\r") for line in text.rstrip("\n").split("\n")]


def _write(path: Path, rows: list[list[str]]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8", newline="\n")
