"""Token states of a frozen encoder on disk: written once, verified, memory-mapped, shared between processes.

An entry is a folder with ``header.json`` (the description of the states, and a checksum of each file),
``<split>.<layer>.npy`` with the states of all tokens, ``<split>.rows.npy`` with the start and the length of each row in
it, and ``start.npz`` with the initial weights of heads. Entries are created atomically; of several processes that need
the same entry, one writes it and the others wait. A process that is killed leaves an unfinished folder, and the next
one resumes after the last complete shard (`sot_probe.store_writer`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from sot_base.atomic import UNFINISHED
from sot_base.errors import UsageError
from sot_base.small_files import read_json
from sot_probe.states import TokenStates
from sot_probe.store_writer import HEADER, START, StateEncoder, checksum, state_file, write_entry

__all__ = ["Store", "open_or_create"]

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2


class Store(NamedTuple):
    """An opened entry.

    Attributes:
        splits: The states by split.
        start: Initial weights of heads, by parameter name.
        folder: Folder of the entry.
        was_there: Whether the entry existed, so that no encoder had to run.
    """

    splits: dict[str, TokenStates]
    start: dict[str, Tensor]
    folder: Path
    was_there: bool


class _Header(msgspec.Struct):
    """The content of ``header.json``."""

    description: dict[str, Any]
    splits: list[str]
    layers: list[str]
    files: dict[str, int]


class _DamagedError(Exception):
    """An entry that cannot be used."""


def open_or_create(
    folder: str | os.PathLike[str],
    name: str,
    description: Mapping[str, Any],
    dtype: str,
    create_encoder: Callable[[], StateEncoder],
    announce: Callable[[str], None] = logger.info,
) -> Store:
    """Open the entry of a description; create it if it is missing or damaged, complete it if it is unfinished.

    Args:
        folder: The folder of all entries.
        name: Prefix of the name of the entry.
        description: Everything the states depend on (encoder, data, layers, settings), serialisable to JSON; each
            description has its own entry.
        dtype: Precision of the states, ``float16`` or ``float32``.
        create_encoder: Loads the encoder; not called if the entry exists.
        announce: Called with a line about the size before the encoder runs.

    Raises:
        UsageError: if the disk is full, a state overflows half precision, or the path of the entry is not a folder.
    """
    description = json.loads(json.dumps({**description, "dtype": dtype, "format_version": FORMAT_VERSION}))
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    entry = Path(folder).resolve() / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{digest}"
    entry.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(entry.parent / f".{entry.name}.lock"):
        if entry.is_symlink() or (entry.exists() and not entry.is_dir()):
            raise UsageError(f"not a folder of token states: {entry}; remove it, or give another folder")
        if entry.exists():
            try:
                return Store(*_open(entry, description), entry, True)
            except _DamagedError as error:
                logger.warning("the stored token states are damaged (%s): %s; encoding again", error, entry)
        unfinished = entry.parent / f".{entry.name}{UNFINISHED}"
        write_entry(unfinished, description, np.dtype(dtype), create_encoder(), announce)
        if entry.exists():
            shutil.rmtree(entry)
        unfinished.rename(entry)
        return Store(*_open(entry, description), entry, False)


def _open(entry: Path, description: Mapping[str, Any]) -> tuple[dict[str, TokenStates], dict[str, Tensor]]:
    try:
        header = read_json(entry / HEADER, _Header)
        if header.description != description:
            raise _DamagedError(f"{HEADER} is of something else")
        parts = [*header.layers, "rows"]
        names = {START, *(state_file(split, part) for split in header.splits for part in parts)}
        if set(header.files) != names or any("/" in name for name in names):
            raise _DamagedError(f"{HEADER} names other files")
        for name, expected in header.files.items():
            if checksum(entry / name) != expected:
                raise _DamagedError(f"{name} has another checksum")
        splits = {name: _open_split(entry, name, header.layers) for name in header.splits}
        with np.load(entry / START, allow_pickle=False) as arrays:
            start = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise _DamagedError(f"{type(error).__name__}: {error}") from error
    return splits, start


def _open_split(entry: Path, name: str, layers: list[str]) -> TokenStates:
    # copy on write: torch needs writable memory; the file does not change
    arrays = [np.load(entry / state_file(name, layer), mmap_mode="c", allow_pickle=False) for layer in layers]
    rows = np.load(entry / state_file(name, "rows"), allow_pickle=False)
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1 or arrays[0].ndim != 2 or any(a.dtype not in (np.float16, np.float32) for a in arrays):
        raise _DamagedError(f"the states of split {name!r} are not tables of numbers")
    whole = rows.ndim == 2 and rows.shape[0] == 2 and rows.dtype == np.int64
    if not whole or (rows[1] < 1).any() or (rows[0] < 0).any() or (rows.sum(0) > len(arrays[0])).any():
        raise _DamagedError(f"the rows of split {name!r} do not lie in its states")
    return TokenStates(tuple(map(torch.from_numpy, arrays)), *torch.from_numpy(rows))
