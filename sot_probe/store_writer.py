"""Write an entry of the store in shards, so that a killed process loses at most one shard."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.lib.format import open_memmap
from torch import Tensor
from tqdm import tqdm

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError
from sot_base.small_files import read_json

__all__ = ["HEADER", "START", "SplitPlan", "StateEncoder", "checksum", "plan_batches", "state_file", "write_entry"]

HEADER = "header.json"
START = "start.npz"
PROGRESS = "progress.json"  # in an unfinished entry
MEBIBYTE = 1 << 20
SHARD_TOKENS = 1 << 16  # approximately: a shard ends with a batch


class SplitPlan(NamedTuple):
    """The rows of a split and the batches in which they are encoded.

    Attributes:
        lengths: Number of tokens of each row (> 0), (rows,).
        batches: Indices of the rows of each batch, every row once. The states are stored in this order, and the same
            plan gives bitwise the same states.
    """

    lengths: np.ndarray
    batches: Sequence[np.ndarray]


class StateEncoder(Protocol):
    """A loaded encoder.

    Attributes:
        layers: Names of the stored layers, for instance ``layer-6``.
        embed_dim: Width D of the states.
        plans: The plan of each split.
        start: Initial weights of heads, by parameter name.
    """

    layers: Sequence[str]
    embed_dim: int
    plans: Mapping[str, SplitPlan]
    start: Mapping[str, Tensor]

    def encode(self, split: str, rows: np.ndarray) -> Sequence[Tensor]:
        """Encode rows: (B, T, D) for each layer, class token first, padded on the right, on the CPU."""


class _Progress(msgspec.Struct):
    """The complete shards of an unfinished entry: for each split, a checksum of each shard over all layers."""

    description: dict[str, Any]
    shards: dict[str, list[int]]


def plan_batches(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Batches of rows of similar length, the longest first, of at most ``max_tokens`` tokens including padding."""
    order, batches = np.argsort(-lengths, kind="stable"), []
    while len(order):
        rows, order = np.split(order, [max(1, max_tokens // int(lengths[order[0]]))])
        batches.append(rows)
    return batches


def state_file(split: str, part: str) -> str:
    """Name of the file for a layer of a split, or for its rows."""
    return f"{split}.{part}.npy"


def write_entry(
    folder: Path,
    description: Mapping[str, Any],
    dtype: np.dtype[Any],
    encoder: StateEncoder,
    announce: Callable[[str], None],
) -> None:
    """Write an entry into a folder, or complete the one that is there.

    Raises:
        UsageError: if the disk is full, or a state overflows ``dtype`` or is not finite.
    """
    progress = _read_progress(folder, description)
    if progress is None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        progress = _Progress(dict(description), {})
    _announce(folder, dtype, encoder, announce)
    for split, plan in encoder.plans.items():
        _write_split(folder, split, plan, dtype, encoder, progress)
    start: dict[str, Any] = {name: tensor.numpy() for name, tensor in encoder.start.items()}
    np.savez(folder / START, **start)
    files = {path.name: checksum(path) for path in sorted(folder.iterdir()) if path.name != PROGRESS}
    header = {"description": description, "splits": list(encoder.plans), "layers": list(encoder.layers), "files": files}
    (folder / HEADER).write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")
    (folder / PROGRESS).unlink(missing_ok=True)


def _read_progress(folder: Path, description: Mapping[str, Any]) -> _Progress | None:
    try:
        progress = read_json(folder / PROGRESS, _Progress)
    except (UsageError, OSError):
        return None
    return progress if progress.description == description else None


def _announce(folder: Path, dtype: np.dtype[Any], encoder: StateEncoder, announce: Callable[[str], None]) -> None:
    """Announce the size of the entry, and check that there is enough space."""
    rows = sum(len(plan.lengths) for plan in encoder.plans.values())
    tokens = sum(int(plan.lengths.sum()) for plan in encoder.plans.values())
    needed = tokens * encoder.embed_dim * dtype.itemsize * len(encoder.layers)
    left = needed - sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    free = shutil.disk_usage(folder).free
    if left > free:  # writing to a memory-mapped file on a full disk kills the process
        raise UsageError(
            f"{left // MEBIBYTE} MiB of token states, {free // MEBIBYTE} MiB free: {folder.parent}; give --cache-dir"
        )
    announce(f"encoding {rows} rows, {tokens} tokens, {', '.join(encoder.layers)}: {needed / MEBIBYTE:.1f} MiB on disk")


def _shards(plan: SplitPlan) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Groups of batches with about `SHARD_TOKENS` tokens, and the index of the first token of each group."""
    place, begin, group = 0, 0, []
    for rows in plan.batches:
        group.append(rows)
        place += int(plan.lengths[rows].sum())
        if place - begin >= SHARD_TOKENS:
            yield begin, group
            begin, group = place, []
    if group:
        yield begin, group


def _write_split(
    folder: Path, split: str, plan: SplitPlan, dtype: np.dtype[Any], encoder: StateEncoder, progress: _Progress
) -> None:
    order = np.concatenate(list(plan.batches)) if plan.batches else np.empty(0, np.int64)
    if not np.array_equal(np.sort(order), np.arange(len(plan.lengths))):
        raise ValueError(f"{len(order)} of {len(plan.lengths)} rows of split {split!r} are in its batches")
    lengths = plan.lengths.astype(np.int64)
    starts = np.empty_like(lengths)
    starts[order] = np.cumsum(lengths[order]) - lengths[order]
    np.save(folder / state_file(split, "rows"), np.stack([starts, lengths]))
    arrays = _open_arrays(folder, split, encoder, (int(lengths.sum()), encoder.embed_dim), dtype)
    done = progress.shards.setdefault(split, [])
    with tqdm(total=len(lengths), desc=f"encoding {split}", unit=" rows", disable=None) as bar:
        for number, (begin, batches) in enumerate(_shards(plan)):
            size = sum(int(lengths[rows].sum()) for rows in batches)
            parts = [array[begin : begin + size] for array in arrays]
            if number >= len(done) or _crc(parts) != done[number]:
                del done[number:]
                _encode_shard(split, plan, batches, encoder, parts)
                for array in arrays:
                    array.flush()
                done.append(_crc(parts))
                with atomic_file(folder / PROGRESS) as path:
                    path.write_bytes(msgspec.json.encode(progress))
            bar.update(sum(map(len, batches)))


def _open_arrays(
    folder: Path, split: str, encoder: StateEncoder, shape: tuple[int, int], dtype: np.dtype[Any]
) -> list[np.memmap[Any, Any]]:
    arrays: list[np.memmap[Any, Any]] = []
    for layer in encoder.layers:
        path = folder / state_file(split, layer)
        try:
            array = open_memmap(path, mode="r+")
            if (array.shape, array.dtype) != (shape, dtype):
                raise ValueError("another shape")
        except (OSError, ValueError):
            array = open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        arrays.append(array)
    return arrays


def _encode_shard(
    split: str, plan: SplitPlan, batches: Sequence[np.ndarray], encoder: StateEncoder, parts: Sequence[np.ndarray]
) -> None:
    place = 0
    for rows in batches:
        lengths = plan.lengths[rows]
        for part, states in zip(parts, encoder.encode(split, rows), strict=True):
            valid = np.arange(states.shape[1]) < lengths[:, None]
            with np.errstate(over="ignore"):
                values = states.float().numpy()[valid].astype(part.dtype)
            if not np.isfinite(values).all():
                raise UsageError(
                    f"token states of split {split!r} do not fit into {part.dtype} or are not numbers; "
                    "give --cache-dtype float32, or another encoder"
                )
            part[place : place + len(values)] = values
        place += int(lengths.sum())


def _crc(parts: Sequence[np.ndarray]) -> int:
    value = 0
    for part in parts:
        value = zlib.crc32(np.ascontiguousarray(part).data, value)
    return value


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    value = 0
    with path.open("rb") as stream:
        while block := stream.read(MEBIBYTE):
            value = zlib.crc32(block, value)
    return value
