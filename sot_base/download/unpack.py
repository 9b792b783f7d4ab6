"""Unpack a tar or zip archive from elsewhere: plain files only, nothing outside the folder, whole or nothing."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from sot_base.atomic import atomic_folder
from sot_base.errors import UsageError

__all__ = ["unpack"]

Member = tuple[PurePosixPath, Callable[[], IO[bytes]]]


def unpack(
    archive: str | os.PathLike[str], folder: str | os.PathLike[str], members: Sequence[str] | None = None
) -> Path:
    """Unpack an archive; nothing but names and bytes of plain files comes out of it (no modes, owners or links).

    Args:
        archive: A zip archive, or a tar archive with any compression that :mod:`tarfile` knows.
        folder: Where its files go; a folder of that name is replaced.
        members: Names of files to keep. Each goes right into `folder`, whatever folder of the archive it is in; of two
            with the same name, the one that lies less deep is taken. By default all files are kept, in their folders.

    Returns:
        `folder`.

    Raises:
        UsageError: If the archive is cut off or damaged, lacks one of `members`, or holds an absolute path, a path
            with ``..``, a link or a device. Then `folder` is as it was.
    """
    archive = Path(archive)
    try:
        with atomic_folder(folder) as temporary:
            _unpack_files(archive, temporary, members)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise _unusable(f"cut off or damaged ({error})", archive) from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise _unusable(f"cut off or damaged ({error})", archive) from None  # gzip, bz2 and lzma say it so
    return Path(folder)


def _unpack_files(archive: Path, folder: Path, members: Sequence[str] | None) -> None:
    depths: dict[str, int] = {}
    for path, open_ in _zip_files(archive) if zipfile.is_zipfile(archive) else _tar_files(archive):
        if members is None:
            target, depth = folder / path, 0
        else:
            target, depth = folder / path.name, len(path.parts)
            if path.name not in members or depths.get(path.name, depth + 1) < depth:
                continue
        if depths.get(str(target.relative_to(folder))) == depth:
            raise _unusable(f"two files named {path.name}", archive)
        depths[str(target.relative_to(folder))] = depth
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_() as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 2**20)
    missing = [name for name in members or () if name not in depths]
    if missing:
        raise _unusable(f"without {', '.join(missing)}", archive)


def _tar_files(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive) as tar:
        for member in tar:
            path = _safe(member.name, archive)
            if member.isfile():
                yield path, partial(tar.extractfile, member)
            elif not member.isdir():
                raise _unusable(f"a link or device, {member.name}", archive)
        while tar.fileobj.read(2**20):  # the compressed file's own checksum is behind the last member
            pass


def _zip_files(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            path = _safe(member.filename, archive)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _unusable(f"a link or device, {member.filename}", archive)
            if not member.is_dir():
                yield path, partial(zipped.open, member)


def _safe(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise _unusable(f"a path outside of it, {name}", archive)
    return path


def _unusable(reason: str, archive: Path) -> UsageError:
    return UsageError(f"not a usable archive, {reason}: {archive.absolute()}; remove it and download it again")
