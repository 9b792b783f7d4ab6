"""A checksum in a ``.safetensors`` file: the format has none, and a flipped bit in a tensor would load silently.

``crc32`` in the file's metadata is the CRC-32 of the rest of the header (JSON, keys sorted) and of the tensors' bytes,
as 8 hexadecimal digits. Other programs ignore it; a file that lacks it is not checked.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import IO, Any

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError

__all__ = ["add_checksum", "check_checksum"]

KEY = "crc32"
CHUNK = 1 << 20  # bytes read at once
ALIGNMENT = 8  # bytes; the tensors begin at a multiple of it


def add_checksum(path: str | os.PathLike[str]) -> None:
    """Write the checksum of a good ``.safetensors`` file into it."""
    path = Path(path)
    with path.open("rb") as source, atomic_file(path) as temporary, temporary.open("wb") as target:
        header, _ = _read_header(source)
        start = source.tell()
        header.setdefault("__metadata__", {})[KEY] = _checksum(header, source)
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        target.write(len(text).to_bytes(8, "little") + text)
        source.seek(start)
        shutil.copyfileobj(source, target, CHUNK)


def check_checksum(path: str | os.PathLike[str]) -> None:
    """Refuse a ``.safetensors`` file whose content differs from what its checksum was made of.

    Raises:
        UsageError: If it does. Files without a checksum, or with a header that cannot be read, are left to the reader.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            header, expected = _read_header(file)
        except (ValueError, AttributeError, TypeError, RecursionError):  # no JSON, or another shape
            return
        if expected is not None and _checksum(header, file) != expected:
            raise UsageError(
                f"the file is damaged (its checksum differs): {path.absolute()}; get or save it again, or if it was "
                f"changed on purpose, save it without {KEY} in its metadata"
            )


def _read_header(file: IO[bytes]) -> tuple[dict[str, Any], str | None]:
    """The header without the checksum, and the checksum; the file is then at its tensors."""
    length = int.from_bytes(file.read(8), "little")
    if length > os.fstat(file.fileno()).st_size:
        raise ValueError("the header is longer than the file")
    header = json.loads(file.read(length))
    return header, header.get("__metadata__", {}).pop(KEY, None)


def _checksum(header: dict[str, Any], tensors: IO[bytes]) -> str:
    value = zlib.crc32(json.dumps(header, sort_keys=True).encode())
    while chunk := tensors.read(CHUNK):
        value = zlib.crc32(chunk, value)
    return f"{value:08x}"
