"""Files and folders that are replaced atomically: a reader never sees a partial one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sot_base.errors import NO_ROOM

__all__ = ["atomic_file", "atomic_folder", "remove_unfinished"]

UNFINISHED = ".unfinished"  # ends the name of what is being written; a killed process leaves it


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; it is renamed to ``path`` when the block succeeds and removed otherwise.

    A device or a pipe (``/dev/stdout``, ``/dev/null``) is written as it is, for a file must not take its place.

    Raises:
        OSError: naming ``path`` if the disk is full.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder where a file is to be written", str(target))
    if target.exists() and not target.is_file():
        yield target
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _naming(target):
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=UNFINISHED, dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # mkstemp makes files private; outputs are ordinary files
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; it replaces ``path``, or what a link leads to, if the block succeeds.

    Raises:
        OSError: naming ``path`` if the disk is full, or a file is in its place.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file where a folder is to be written", str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _naming(target):
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=UNFINISHED, dir=target.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            old = None
            if target.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", suffix=UNFINISHED, dir=target.parent))
                os.replace(target, old)
            os.replace(temporary, target)
            if old is not None:
                shutil.rmtree(old)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_unfinished(folder: str | os.PathLike[str]) -> list[Path]:
    """Remove unfinished files of killed processes from a folder. Nobody else may be writing there.

    Returns:
        What was removed.
    """
    left = sorted(Path(folder).glob(f".*{UNFINISHED}"))
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return left


@contextlib.contextmanager
def _naming(target: Path) -> Iterator[None]:
    """Let errors of a full disk name the target: the system names none, a temporary file, or one that was read."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
