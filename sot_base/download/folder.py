"""Download published files and archives into a folder, and detect later changes to them."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sot_base.atomic import atomic_file
from sot_base.download.file import RemoteFile, download, is_offline, locked, sha256_of
from sot_base.download.unpack import unpack
from sot_base.errors import UsageError

__all__ = ["CHECKSUMS", "Source", "check_folder", "fetch_folder"]

CHECKSUMS = "SHA256SUMS"  # in the form of sha256sum, which can check it


class Source(NamedTuple):
    """A published file or archive that gives files of a folder.

    Attributes:
        remote: The file, or an archive (``.tar.gz``, ``.zip``).
        files: Names in the folder: of the file itself, or of the members to take out of the archive.
        otherwise: Where to turn to if it cannot be downloaded.
    """

    remote: RemoteFile
    files: tuple[str, ...]
    otherwise: Source | None = None

    @property
    def is_archive(self) -> bool:
        """Whether it has to be unpacked."""
        return self.remote.name.endswith((".tar.gz", ".zip"))


def fetch_folder(
    sources: Sequence[Source], folder: str | os.PathLike[str], files: Sequence[str], force: bool = False
) -> Path:
    """Download the missing files of a folder. A file comes under its name when it is whole; those that are there stay.

    The checksums of what was downloaded are noted in ``SHA256SUMS``.

    Args:
        sources: Where the files come from.
        folder: The folder, made if need be. Unfinished downloads wait in it, too.
        files: The files that it must have; ``a|b`` means either.
        force: Replace the files even if they are there.

    Raises:
        UsageError: If a file cannot be downloaded from any of its sources.
    """
    folder = Path(folder).absolute()
    if is_offline() and not folder.is_dir():
        raise UsageError(f"no such folder, and downloads are off: {folder}; unset SOT_OFFLINE and HF_HUB_OFFLINE")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        try:
            for source in sources:
                if force or any(not _has(folder, file, files) for file in source.files):
                    _fetch(source, folder, files, force)
        except UsageError:
            with contextlib.suppress(OSError):
                folder.rmdir()  # unless something is in it
            raise
    return folder


def check_folder(folder: str | os.PathLike[str]) -> str | None:
    """The first file that has changed since its download; None if there is none."""
    folder = Path(folder)
    for file, sha256 in _read_checksums(folder).items():
        if (folder / file).is_file() and sha256_of(folder / file) != sha256:
            return file
    return None


def _has(folder: Path, file: str, files: Sequence[str]) -> bool:
    """Whether the folder has a file or one of its alternatives."""
    alternatives = next((names.split("|") for names in files if file in names.split("|")), [file])
    return any((folder / name).is_file() for name in alternatives)


def _fetch(source: Source, folder: Path, files: Sequence[str], force: bool) -> None:
    try:
        if source.is_archive:
            new = _from_archive(source, folder, files, force)
        else:
            (name,) = source.files
            new = [download(source.remote, folder / name, force).name]
    except UsageError:
        if source.otherwise is None or is_offline():
            raise
        try:
            return _fetch(source.otherwise, folder, files, force)
        except UsageError:
            pass  # the address of today is the one to report
        raise
    checksums = _read_checksums(folder) | {name: sha256_of(folder / name) for name in new}
    with atomic_file(folder / CHECKSUMS) as temporary:
        text = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(checksums.items()))
        temporary.write_text(text, encoding="utf-8")


def _from_archive(source: Source, folder: Path, files: Sequence[str], force: bool) -> list[str]:
    archive = folder / source.remote.name
    put_by_hand = archive.is_file() and not force
    download(source.remote, archive, force)
    names = [name for name in source.files if force or not _has(folder, name, files)]
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacked.", dir=folder) as temporary:
            fresh = unpack(archive, Path(temporary) / "files", names)
            for name in names:
                os.replace(fresh / name, folder / name)
    except UsageError:
        if not put_by_hand:
            archive.unlink()
        raise
    archive.unlink()
    return names


def _read_checksums(folder: Path) -> dict[str, str]:
    path = folder / CHECKSUMS
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    matches = [re.fullmatch(r"([0-9a-f]{64})  (.+)", line) for line in lines]
    return {match[2]: match[1] for match in matches if match}
