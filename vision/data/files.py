"""Image files in a folder or a tar as a tree of relative paths, and the images that a command line names."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol

from torchvision.datasets.folder import IMG_EXTENSIONS

from sot_base.errors import UsageError

__all__ = ["FileTree", "FolderTree", "TarTree", "find_images", "is_image_name", "open_tree"]

_EXTENSIONS = (*IMG_EXTENSIONS, ".gif")


def is_image_name(name: str) -> bool:
    """Whether a file counts as an image by its name."""
    return name.lower().endswith(_EXTENSIONS)


def _hidden(path: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(path).parts)


class FileTree(Protocol):
    """Files under a root, by paths with ``/`` relative to it, without hidden files and folders."""

    root: Path

    def folders(self, prefix: str = "") -> list[str]:
        """Names of the folders directly under ``prefix``."""

    def files(self, prefix: str = "") -> list[str]:
        """Paths of all files under ``prefix``, relative to it, sorted."""

    def read(self, path: str) -> bytes:
        """Content of a file."""


class FolderTree:
    """A folder on disk; links to folders are followed.

    Args:
        root: The folder.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def folders(self, prefix: str = "") -> list[str]:
        with os.scandir(self.root / prefix) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not _hidden(entry.name))

    def files(self, prefix: str = "") -> list[str]:
        top = str(self.root / prefix)
        found = []
        for folder, subfolders, names in os.walk(top, followlinks=True):
            subfolders[:] = [name for name in subfolders if not _hidden(name)]
            relative = os.path.relpath(folder, top).replace(os.sep, "/")
            lead = "" if relative == "." else f"{relative}/"
            found += [lead + name for name in names if not _hidden(name)]
        return sorted(found)

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()


class TarTree:
    """An uncompressed tar, read in place without unpacking; worker processes do not share a file position.

    Args:
        root: The tar file.

    Raises:
        UsageError: if the file is not a readable, uncompressed tar.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        try:
            with tarfile.open(self.root, "r:") as tar:
                members = [member for member in tar if member.isfile()]
            end = self.root.stat().st_size
            beyond = [member.name for member in members if not 0 <= member.size <= end - member.offset_data]
            if beyond:
                raise tarfile.ReadError(f"{beyond[0][:80]} ends beyond the file")
        except (tarfile.TarError, OSError, ValueError, OverflowError, MemoryError) as error:
            raise UsageError(
                f"cannot read the tar: {self.root} ({error}); it must be an uncompressed tar of image folders"
            ) from error
        clean = [(member.name.removeprefix("./"), member) for member in members]
        self._places = {name: (m.offset_data, m.size) for name, m in clean if not _hidden(name)}

    def folders(self, prefix: str = "") -> list[str]:
        return sorted({path.split("/")[0] for path in self.files(prefix) if "/" in path})

    def files(self, prefix: str = "") -> list[str]:
        lead = f"{prefix}/" if prefix else ""
        return sorted(path[len(lead) :] for path in self._places if path.startswith(lead))

    def read(self, path: str) -> bytes:
        offset, size = self._places[path]
        return os.pread(self._handle, size, offset)

    @cached_property
    def _handle(self) -> int:
        return os.open(self.root, os.O_RDONLY)

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_handle"}


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
            images = [(path / name, name) for name in open_tree(path).files() if is_image_name(name)]
            if not images:
                raise UsageError(f"no images: {path.resolve()}; give images or folders of images")
            found += images
        elif path.is_file():
            found.append((path, path.name))
        else:
            raise UsageError(f"no such image: {path.resolve()}; give images or folders of images")
    return found
