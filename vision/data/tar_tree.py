"""The files in an uncompressed tar, read in place."""

from __future__ import annotations

import os
import posixpath
import tarfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from sot_base.errors import UsageError
from vision.data.file_names import is_hidden

__all__ = ["TarTree"]

Place = tuple[int, int]  # offset and size in bytes


class TarTree:
    """An uncompressed tar, read in place without unpacking; worker processes do not share a file position.

    Links to files and folders within the tar are followed.

    Args:
        root: The tar file.

    Raises:
        UsageError: if the file is not a readable, uncompressed tar, or a link leads out of it.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        places, links = self._read_members()
        follow_links(places, links)
        if links:
            name, target = next(iter(links.items()))
            raise UsageError(
                f"a link to what is not in the tar: {self.root}: {name} -> {target}; pack the files themselves "
                "(tar --dereference)"
            )
        self._places = {name: place for name, place in places.items() if not is_hidden(name)}

    def _read_members(self) -> tuple[dict[str, Place], dict[str, str]]:
        """Where the files are, and what the links that are not hidden point at; paths are relative to the top."""
        places: dict[str, Place] = {}
        links: dict[str, str] = {}
        try:
            end = self.root.stat().st_size
            with tarfile.open(self.root, "r:") as tar:
                for member in tar:
                    name = posixpath.normpath(member.name)
                    places.pop(name, None)  # of members of one name the last one counts
                    links.pop(name, None)
                    if member.isfile():
                        places[name] = _place(member, end)
                    elif member.islnk():
                        links[name] = posixpath.normpath(member.linkname)
                    elif member.issym() and not is_hidden(name):
                        links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        except (tarfile.TarError, OSError, ValueError, OverflowError, MemoryError) as error:
            raise UsageError(
                f"cannot read the tar: {self.root} ({error}); it must be an uncompressed tar of image folders"
            ) from error
        return places, links

    def folders(self, prefix: str = "") -> list[str]:
        return sorted({path.split("/")[0] for path in self.files(prefix) if "/" in path})

    def files(self, prefix: str = "") -> list[str]:
        lead = f"{prefix}/" if prefix else ""
        return sorted(path[len(lead) :] for path in self._places if path.startswith(lead))

    def has_file(self, path: str) -> bool:
        return path in self._places

    def read(self, path: str) -> bytes:
        offset, size = self._places[path]
        return os.pread(self._handle, size, offset)

    @cached_property
    def _handle(self) -> int:
        return os.open(self.root, os.O_RDONLY)

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_handle"}


def _place(member: tarfile.TarInfo, end: int) -> Place:
    if member.issparse():
        raise tarfile.ReadError(f"{member.name[:80]} is stored with holes (tar --sparse)")
    if not 0 <= member.size <= end - member.offset_data:
        raise tarfile.ReadError(f"{member.name[:80]} ends beyond the file")
    return member.offset_data, member.size


def follow_links(places: dict[str, Place], links: dict[str, str]) -> None:
    """Give links the places of the files that they lead to, through other links where need be.

    Args:
        places: Where the files are; extended in place.
        links: What the links point at, from the top; those that lead to a file or a folder are removed.
    """
    waiting = None
    while waiting != len(links):
        waiting = len(links)
        for name, target in list(links.items()):
            if target in places:
                places[name] = places[target]
                del links[name]
        if len(links) < waiting:
            continue
        _follow_one_folder(places, links)


def _follow_one_folder(places: dict[str, Place], links: dict[str, str]) -> None:
    """Follow a link to a folder in which no link is left."""
    open_folders = _parents(links)
    folders = _parents(places)
    for name, target in links.items():
        if target in folders and target not in open_folders:
            lead = f"{target}/"
            places |= {name + path[len(target) :]: place for path, place in places.items() if path.startswith(lead)}
            del links[name]
            return


def _parents(paths: Mapping[str, object]) -> set[str]:
    """All folders in which paths lie."""
    found: set[str] = set()
    for path in paths:
        while (path := posixpath.dirname(path)) and path not in found:
            found.add(path)
    return found
