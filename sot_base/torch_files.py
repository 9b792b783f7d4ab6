"""Writing of torch's files: whole or not at all, with the system's error where there is no room."""

from __future__ import annotations

import os
from typing import Any, BinaryIO, cast

import torch

from sot_base.atomic import atomic_file

__all__ = ["save_torch"]


def save_torch(content: Any, path: str | os.PathLike[str]) -> None:
    """Write what ``torch.save`` writes, under a temporary name that becomes ``path`` in the end.

    Raises:
        OSError: naming ``path`` if it cannot be written.
    """
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        stream = _Stream(file)
        try:
            torch.save(content, cast(BinaryIO, stream))
            file.flush()
        except RuntimeError as error:
            if stream.error is None:
                raise
            raise OSError(stream.error.errno, stream.error.strerror, os.fspath(path)) from error


class _Stream:
    """A file that keeps the system's error: torch's writer says only that it could not write."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()
