"""Where label maps lie in what was downloaded: under a folder of the archive, or still packed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from sot_base.errors import UsageError
from vision.data.file_names import is_hidden

__all__ = ["only_folder", "refuse_compressed", "top_folder"]


def refuse_compressed(path: Path) -> None:
    """Make sure that a file is not compressed: maps are read in any order, which needs an uncompressed tar."""
    with path.open("rb") as file:
        start = file.read(6)
    folder = path.name.split(".")[0]
    commands = {b"PK": f"python -m zipfile -e {shlex.quote(str(path))} {shlex.quote(folder)}"}
    untar = f"mkdir {shlex.quote(folder)} && tar -xf {shlex.quote(str(path))} -C {shlex.quote(folder)}"
    commands |= dict.fromkeys((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"), untar)
    for magic, command in commands.items():
        if start.startswith(magic):
            raise UsageError(f"label maps in a compressed archive: {path}; unpack it ({command}) and give {folder}")


def only_folder(path: Path) -> list[Path]:
    """The folder in a folder that has no other, as archives unpack."""
    folders = (
        [entry for entry in path.iterdir() if entry.is_dir() and not is_hidden(entry.name)] if path.is_dir() else []
    )
    return folders if len(folders) == 1 else []


def top_folder(files: Collection[str]) -> str:
    """The folders, ending with ``/``, above the classes' folders of ``<class>/<image>.pt``; empty without any."""
    if not files or any(path.count("/") < 2 for path in files):
        return ""
    shared = os.path.commonpath([str(PurePosixPath(path).parent.parent) for path in files])
    return f"{shared}/" if shared else ""
