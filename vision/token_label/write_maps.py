"""Writing label maps, in the two forms that `vision.token_label.read_maps` reads."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from sot_base.atomic import atomic_folder
from vision.token_label.read_maps import FORMAT, HALF_LIMIT, VERSION, LabelMap, torch_file

__all__ = ["LabelMapWriter", "TorchMapWriter", "write_label_maps", "write_torch_maps"]


class LabelMapWriter:
    """Puts the maps of a folder in place, see `write_label_maps`."""

    def __init__(self, folder: Path, num_classes: int, shape: tuple[int, ...]) -> None:
        self._num_classes, self._written = num_classes, np.zeros(shape[0], dtype=bool)
        self._scores = _new_array(folder / "scores.npy", np.float16, shape)
        self._classes = _new_array(folder / "classes.npy", np.int32, shape)

    def put(self, index: int, label_map: LabelMap) -> None:
        """Set the map of the image at ``index`` in the list of names.

        Raises:
            ValueError: for another shape than was announced, for classes out of range and scores that are not finite in
                half precision.
        """
        scores, classes = _checked_arrays(label_map, self._scores.shape[1:], self._num_classes)
        self._scores[index], self._classes[index], self._written[index] = scores, classes, True

    def finish(self) -> None:
        """Write everything out.

        Raises:
            ValueError: if a map was not put.
        """
        _check_written(self._written)
        self._scores.flush()
        self._classes.flush()


@contextlib.contextmanager
def write_label_maps(
    root: str | os.PathLike[str], class_names: Sequence[str], files: Sequence[str], grid: tuple[int, int], top_k: int
) -> Iterator[LabelMapWriter]:
    """Yield a writer of label maps; the folder appears, whole, when the block ends well.

    Args:
        root: The folder to make; one that is there is replaced.
        class_names: The classes that the maps' indices count.
        files: The images' paths in their split folder, all different.
        grid: Height and width of the maps.
        top_k: Classes at each place, at most all of them.

    Raises:
        ValueError: for sizes that are not positive, repeated names, a top-k above the number of classes, and, at the
            end, for maps that were not put.
    """
    shape = _checked_shape(class_names, files, grid, top_k)
    header = {
        **{"format": FORMAT, "version": VERSION, "top_k": top_k, "grid": list(grid)},
        **{"classes": list(class_names), "files": list(files)},
    }
    with atomic_folder(root) as folder:
        (folder / "header.json").write_text(json.dumps(header), encoding="utf-8")
        writer = LabelMapWriter(folder, len(class_names), shape)
        yield writer
        writer.finish()


class TorchMapWriter:
    """Writes the published files, see `write_torch_maps`."""

    def __init__(self, folder: Path, num_classes: int, files: Sequence[str], shape: tuple[int, ...]) -> None:
        self._folder, self._num_classes, self._shape = folder, num_classes, shape
        self._files, self._written = [torch_file(name) for name in files], np.zeros(len(files), dtype=bool)

    def put(self, index: int, label_map: LabelMap) -> None:
        """As `LabelMapWriter.put`."""
        arrays = _checked_arrays(label_map, self._shape[1:], self._num_classes)
        path = self._folder / self._files[index]
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(torch.from_numpy(np.stack([array.astype(np.float16) for array in arrays])), path)
        self._written[index] = True

    def finish(self) -> None:
        """As `LabelMapWriter.finish`."""
        _check_written(self._written)


@contextlib.contextmanager
def write_torch_maps(
    root: str | os.PathLike[str], class_names: Sequence[str], files: Sequence[str], grid: tuple[int, int], top_k: int
) -> Iterator[TorchMapWriter]:
    """As `write_label_maps`, but one torch file an image, as published.

    Raises:
        ValueError: as `write_label_maps`; also for more classes than half precision can number, and for images that
            would share a file.
    """
    shape = _checked_shape(class_names, files, grid, top_k)
    if len(class_names) > HALF_LIMIT + 1:
        raise ValueError(f"{len(class_names)} classes: half precision holds class numbers up to {HALF_LIMIT:,} alone")
    if len({torch_file(name) for name in files}) < len(files):
        raise ValueError("images whose names differ in their ending alone would share a file")
    with atomic_folder(root) as folder:
        writer = TorchMapWriter(folder, len(class_names), files, shape)
        yield writer
        writer.finish()


def _checked_shape(
    class_names: Sequence[str], files: Sequence[str], grid: tuple[int, int], top_k: int
) -> tuple[int, ...]:
    shape = (len(files), top_k, *grid)
    if min(shape) < 1 or top_k > len(class_names):
        raise ValueError(
            f"cannot write {len(files)} maps of top-k {top_k} and grid {grid} for {len(class_names)} classes"
        )
    if len(set(files)) < len(files) or len(set(class_names)) < len(class_names):
        raise ValueError("names of images and classes must not be repeated")
    return shape


def _new_array(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """An array in a file. Its room is taken now: where the disk is full, writing to it would kill the process."""
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _checked_arrays(label_map: LabelMap, shape: tuple[int, ...], num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    scores, classes = label_map.scores.detach().cpu().numpy().astype(np.float16), label_map.classes.cpu().numpy()
    if not scores.shape == classes.shape == shape:
        raise ValueError(f"a label map of {scores.shape} and {classes.shape}, expected {shape}")
    if classes.min() < 0 or classes.max() >= num_classes:
        raise ValueError(f"class index {classes.max()} of {num_classes} classes")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite in half precision")
    return scores, classes


def _check_written(written: np.ndarray) -> None:
    if not written.all():
        raise ValueError(f"{(~written).sum()} of {len(written)} label maps were not written")
