"""Image files in a folder or a tar as a tree of relative paths, and the images that a command line names."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from sot_base.errors import UsageError
from vision.data.file_names import count_endings, is_hidden, is_image_name
from vision.data.tar_tree import TarTree

__all__ = ["FileTree", "FolderTree", "find_images", "open_tree", "warn_of_left_out"]

_logger = logging.getLogger(__name__)


class FileTree(Protocol):
    """Files under a root, by paths with ``/`` relative to it, without hidden files and folders."""

    root: Path

    def folders(self, prefix: str = "") -> list[str]:
        """Names of the folders directly under ``prefix``."""

    def files(self, prefix: str = "") -> list[str]:
        """Paths of all files under ``prefix``, relative to it, sorted."""

    def has_file(self, path: str) -> bool:
        """Whether there is such a file."""

    def read(self, path: str) -> bytes:
        """Content of a file."""


class FolderTree:
    """A folder on disk; links to folders are followed, but not into a folder that they lie in.

    Args:
        root: The folder.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def folders(self, prefix: str = "") -> list[str]:
        return sorted(entry.name for entry in _entries(self.root / prefix) if entry.is_dir())

    def files(self, prefix: str = "") -> list[str]:
        top = self.root / prefix
        return sorted(_walk(top, "", ())) if top.is_dir() else []

    def has_file(self, path: str) -> bool:
        return (self.root / path).is_file()

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()


def _walk(folder: Path, lead: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Paths of the files in a folder; ``above`` are the device and number of the folders that it lies in."""
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _walk(folder / entry.name, f"{lead}{entry.name}/", (*above, here))
        else:
            yield lead + entry.name


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder and not hidden.

    Raises:
        UsageError: if it cannot be read: it must not count as empty.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not is_hidden(entry.name)]
    except OSError as error:
        raise UsageError(
            f"cannot read a folder ({error.strerror}): {folder.absolute()}; make it readable, or move it away"
        ) from error


def open_tree(root: str | os.PathLike[str]) -> FileTree:
    """Open a folder or a tar file as a tree.

    Raises:
        UsageError: if it does not exist.
    """
    path = Path(root)
    if path.is_dir():
        return FolderTree(path)
    if path.is_file():
        return TarTree(path)
    raise UsageError(f"no such folder or tar: {path.resolve()}; give the folder that has the images' split folders")


def warn_of_left_out(where: str, paths: Sequence[str]) -> None:
    """Say which files are not images by their names, so that none is skipped silently."""
    others = [path for path in paths if not is_image_name(path)]
    if others:
        _logger.warning(f"{len(others)} files are left out, by their endings: {where} ({count_endings(others)})")


def find_images(paths: Sequence[str]) -> list[tuple[Path, str]]:
    """The files and all images in the folders that a command line names.

    Returns:
        The path of each image, and its name: relative to the folder, or for a file its last part.

    Raises:
        UsageError: for a path that does not exist, or a folder without images.
    """
    found = []
    for path in map(Path, paths):
        if path.is_dir():
            files = open_tree(path).files()
            images = [(path / name, name) for name in files if is_image_name(name)]
            warn_of_left_out(str(path), files)
            if not images:
                raise UsageError(f"no images: {path.resolve()}; give images or folders of images")
            found += images
        elif path.is_file():
            found.append((path, path.name))
        else:
            raise UsageError(f"no such image: {path.resolve()}; give images or folders of images")
    return found
