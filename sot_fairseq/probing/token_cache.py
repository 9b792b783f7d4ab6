"""Token states of a frozen encoder on disk: written once, checked, memory-mapped.

An entry is a folder: ``header.json`` (what the states are of, and a checksum of each file), for each split
``<split>.states.npy`` with the states of all its tokens one after the other and ``<split>.offsets.npy`` with where each
row starts, and ``start.npz`` with the weights that heads start from. It appears whole or not at all; of processes that
want the same entry one writes it and the others wait for it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from sot_base.atomic import atomic_folder
from sot_base.errors import UsageError
from sot_base.small_files import read_json

__all__ = ["Encoded", "EncodedSplit", "TokenCache", "TokenStates", "open_or_create"]

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
HEADER = "header.json"
START = "start.npz"
MEBIBYTE = 1 << 20


class EncodedSplit(NamedTuple):
    """A split as the encoder returns it.

    Attributes:
        lengths: Tokens of each row.
        batches: Numbers of some rows, and their states (B, T, D), padded at the right; every row once.
    """

    lengths: np.ndarray
    batches: Iterable[tuple[np.ndarray, Tensor]]


class Encoded(NamedTuple):
    """What an entry is made of.

    Attributes:
        embed_dim: Width D of the states.
        splits: The splits by name.
        start: Weights that heads start from, by parameter name.
    """

    embed_dim: int
    splits: Mapping[str, EncodedSplit]
    start: Mapping[str, Tensor]


@dataclass(frozen=True)
class TokenStates:
    """The states of a split's tokens.

    Args:
        states: All tokens, one row after the other.
        offsets: Where each row starts, and the end.

    Shape:
        states (tokens, D), offsets (rows + 1,).
    """

    states: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row, (rows,)."""
        return self.offsets.diff()

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A padded batch.

        Args:
            rows: Numbers of its rows.

        Shape:
            rows (B,) -> states (B, T, D) in float32 and padding_mask (B, T), True at padding. Padding repeats the row's
            first token.
        """
        starts = self.offsets[rows].unsqueeze(1)
        lengths = self.offsets[rows + 1].unsqueeze(1) - starts
        place = torch.arange(int(lengths.max()))
        padding_mask = place >= lengths
        index = starts + place.masked_fill(padding_mask, 0)
        return self.states[index].float(), padding_mask

    def gather_first(self, rows: Tensor) -> Tensor:
        """The first token of each row, (B,) -> (B, 1, D) in float32."""
        return self.states[self.offsets[rows]].float().unsqueeze(1)


class TokenCache(NamedTuple):
    """An entry that was opened.

    Attributes:
        splits: The states by split.
        start: Weights that heads start from.
    """

    splits: dict[str, TokenStates]
    start: dict[str, Tensor]


class _Header(msgspec.Struct):
    """The content of ``header.json``."""

    description: dict[str, Any]
    splits: list[str]
    files: dict[str, int]


class _DamagedError(Exception):
    """An entry that cannot be used."""


def open_or_create(
    cache_dir: str | os.PathLike[str],
    name: str,
    description: Mapping[str, Any],
    dtype: str,
    encode: Callable[[], Encoded],
) -> tuple[TokenCache, Path, bool]:
    """Open the entry of a description; make it if it is absent or damaged.

    Args:
        cache_dir: The folder of all entries.
        name: What the entry's name begins with.
        description: Everything the states depend on, as JSON writes it; another description is another entry.
        dtype: ``float16`` or ``float32``, in which states are kept.
        encode: Runs the encoder; not called if the entry is there.

    Returns:
        The entry, its folder, and whether it was there.

    Raises:
        UsageError: if there is no room, a state does not fit into half precision, or something else lies in its place.
    """
    description = json.loads(json.dumps({**description, "dtype": dtype, "format_version": FORMAT_VERSION}))
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    folder = Path(cache_dir).resolve() / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        for left in folder.parent.glob(f".{folder.name}.*/"):  # of a process that was killed
            shutil.rmtree(left)
        if folder.exists():
            try:
                return _open(folder, description), folder, True
            except _DamagedError as error:
                logger.warning("the cached token states are damaged (%s): %s; made again", error, folder)
        with atomic_folder(folder) as temporary:
            _write(temporary, description, np.dtype(dtype), encode())
        return _open(folder, description), folder, False


def _open(folder: Path, description: Mapping[str, Any]) -> TokenCache:
    try:
        header = read_json(folder / HEADER, _Header)
        if header.description != description:
            raise _DamagedError(f"{HEADER} is of something else")
        names = {START, *(f"{name}.{part}.npy" for name in header.splits for part in ("states", "offsets"))}
        if set(header.files) != names or any("/" in name for name in names):
            raise _DamagedError(f"{HEADER} names other files")
        for name, checksum in header.files.items():
            if _checksum(folder / name) != checksum:
                raise _DamagedError(f"{name} has another checksum")
        splits = {name: _open_split(folder, name) for name in header.splits}
        with np.load(folder / START) as arrays:
            start = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise _DamagedError(f"{type(error).__name__}: {error}") from error
    return TokenCache(splits, start)


def _open_split(folder: Path, name: str) -> TokenStates:
    # copy on write: torch wants memory that may be written, the file stays as it is
    states, offsets = (np.load(folder / f"{name}.{part}.npy", mmap_mode="c") for part in ("states", "offsets"))
    if states.ndim != 2 or states.dtype not in (np.float16, np.float32):
        raise _DamagedError(f"the states of split {name!r} are not a table of numbers")
    whole = offsets.ndim == 1 and offsets.dtype == np.int64 and len(offsets) > 0
    if not whole or offsets[0] != 0 or offsets[-1] != len(states) or (np.diff(offsets) < 1).any():
        raise _DamagedError(f"the rows of split {name!r} do not lie one after the other")
    return TokenStates(torch.from_numpy(states), torch.from_numpy(offsets))


def _write(folder: Path, description: Mapping[str, Any], dtype: np.dtype, encoded: Encoded) -> None:
    tokens = sum(int(split.lengths.sum()) for split in encoded.splits.values())
    needed = tokens * encoded.embed_dim * dtype.itemsize
    free = shutil.disk_usage(folder).free
    if needed > free:  # a memory-mapped file that finds no room kills the process
        raise UsageError(
            f"{needed // MEBIBYTE} MiB of token states, {free // MEBIBYTE} MiB free: {folder.parent}; give --cache-dir"
        )
    for name, split in encoded.splits.items():
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(split.lengths, dtype=np.int64)])
        np.save(folder / f"{name}.offsets.npy", offsets)
        states = np.lib.format.open_memmap(
            folder / f"{name}.states.npy", mode="w+", dtype=dtype, shape=(int(offsets[-1]), encoded.embed_dim)
        )
        written = 0
        for rows, features in split.batches:
            place = np.arange(features.shape[1])
            valid = place < split.lengths[rows, None]
            with np.errstate(over="ignore"):
                values = features.numpy()[valid].astype(dtype)
            if not np.isfinite(values).all():
                raise UsageError(
                    f"token states of split {name!r} do not fit into {dtype} or are not numbers; "
                    "give --cache-dtype float32, or another encoder"
                )
            states[(offsets[rows, None] + place)[valid]] = values
            written += len(values)
        if written != offsets[-1]:
            raise ValueError(f"{written} of {offsets[-1]} tokens of split {name!r} were encoded")
        states.flush()
    np.savez(folder / START, **{name: tensor.numpy() for name, tensor in encoded.start.items()})
    files = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    header = {"description": description, "splits": list(encoded.splits), "files": files}
    (folder / HEADER).write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as stream:
        while block := stream.read(MEBIBYTE):
            value = zlib.crc32(block, value)
    return value
