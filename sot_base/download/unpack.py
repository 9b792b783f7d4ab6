"""Unpack an untrusted tar or zip archive: plain files only, inside the folder, all or nothing.

A small archive cannot fill the disk or the memory: what comes out of it is at most :data:`RATIO` times as large.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from sot_base.atomic import atomic_folder
from sot_base.errors import UsageError

__all__ = ["unpack"]

Member = tuple[PurePosixPath, int, Callable[[], IO[bytes]]]  # name, size, open
RATIO = 100  # of what is unpacked to the archive; real data have 2 to 20
ALWAYS = 2**26  # bytes that may come out of any archive
MAX_MEMBERS = 100_000
MAX_HEADER = 2**24  # bytes that one header of a tar archive may take
OPENERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open), (b"\x5d\0\0", lzma.open))
DAMAGES = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLASHES = (FileExistsError, IsADirectoryError, NotADirectoryError)  # a file where another member needs a folder


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
        UsageError: If the archive is not a file, cut off or damaged, lacks one of `members`, is far larger unpacked, or
            holds an absolute path, a path with ``..``, a link or a device. Then `folder` is as it was.
    """
    archive = Path(archive)
    if not archive.is_file():
        raise _unusable("no file", archive)
    try:
        with atomic_folder(folder) as temporary:
            _unpack_files(archive, temporary, members)
    except UsageError:
        raise
    except CLASHES as error:
        raise _unusable(f"a file and a folder of one name ({error.strerror})", archive) from None
    except (*DAMAGES, OverflowError) as error:
        raise _unusable(f"cut off or damaged ({error})", archive) from None
    except OSError as error:
        if error.filename is not None or error.errno in NO_ROOM:
            raise
        raise _unusable(f"cut off or damaged ({error})", archive) from None  # gzip, bz2 and lzma say it so
    return Path(folder)


def _unpack_files(archive: Path, folder: Path, members: Sequence[str] | None) -> None:
    depths: dict[str, int] = {}
    left = max(ALWAYS, RATIO * archive.stat().st_size)
    files = _zip_files(archive) if zipfile.is_zipfile(archive) else _tar_files(archive, left)
    for number, (path, size, open_) in enumerate(files):
        left -= size
        if left < 0 or number >= MAX_MEMBERS:
            raise _unusable(f"more than {RATIO} times as large unpacked, or more than {MAX_MEMBERS} files", archive)
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


class _Limited:
    """A stream of a tar archive that refuses to give more than it may: of one header, and in all."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self.stream, self.limit = stream, limit

    def read(self, size: int) -> bytes:
        if size > MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self.stream.read(size)

    def tell(self) -> int:
        return self.stream.tell()

    def seek(self, position: int) -> int:
        if position > self.limit:
            raise tarfile.ReadError(f"a file that ends at byte {position}")
        return self.stream.seek(position)


def _tar_files(archive: Path, limit: int) -> Iterator[Member]:
    with archive.open("rb") as file:
        start = file.read(6)
    opener = next((opener for magic, opener in OPENERS if start.startswith(magic)), open)
    with opener(archive, "rb") as stream:
        limited = _Limited(cast(IO[bytes], stream), limit + 2**20)  # headers and padding
        with tarfile.open(fileobj=cast(IO[bytes], limited), mode="r:") as tar:
            for member in tar:
                path = _safe(member.name, archive)
                if member.isfile():
                    yield path, member.size, cast(Callable[[], IO[bytes]], partial(tar.extractfile, member))
                elif not member.isdir():
                    raise _unusable(f"a link or device, {member.name}", archive)
        while limited.tell() < limited.limit and limited.read(2**20):
            pass  # the compressed file's own checksum is behind the last member


def _zip_files(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            path = _safe(member.filename, archive)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _unusable(f"a link or device, {member.filename}", archive)
            if not member.is_dir():
                yield path, member.file_size, partial(zipped.open, member)


def _safe(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise _unusable(f"a path outside of it, {name}", archive)
    if not path.parts or "\0" in name or any(len(os.fsencode(part)) > 255 for part in path.parts):
        raise _unusable(f"a name that no file can have, {name[:40]!r}", archive)
    return path


def _unusable(reason: str, archive: Path) -> UsageError:
    return UsageError(f"not a usable archive, {reason}: {archive.absolute()}; remove it and download it again")
