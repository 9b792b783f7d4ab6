"""Write label maps, in the two forms that `vision.token_label.read_maps` reads."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from sot_base.atomic import atomic_folder
from vision.token_label.read_maps import FORMAT, HALF_LIMIT, VERSION, LabelMap, torch_file

__all__ = ["MapWriter", "write_label_maps", "write_torch_maps"]


class MapWriter:
    """Writes label maps one by one.

    Args:
        num_classes: Classes that the maps' indices refer to.
        shape: Images, top-k, height and width of the maps.
        store: Writes scores and classes of the image at an index.
    """

    def __init__(
        self, num_classes: int, shape: tuple[int, ...], store: Callable[[int, np.ndarray, np.ndarray], None]
    ) -> None:
        self._num_classes, self._shape, self._store = num_classes, shape[1:], store
        self._written = np.zeros(shape[0], dtype=bool)

    def put(self, index: int, label_map: LabelMap) -> None:
        """Write the map of the image at ``index`` in the list of names.

        Raises:
            ValueError: for another shape than announced, for classes out of range, and for scores that are not finite
                in half precision.
        """
        self._store(index, *_checked_arrays(label_map, self._shape, self._num_classes))
        self._written[index] = True

    def finish(self) -> None:
        """Make sure that every map has been written.

        Raises:
            ValueError: if one has not.
        """
        if not self._written.all():
            raise ValueError(f"{(~self._written).sum()} of {len(self._written)} label maps were not written")


@contextlib.contextmanager
def write_label_maps(
    root: str | os.PathLike[str], class_names: Sequence[str], files: Sequence[str], grid: tuple[int, int], top_k: int
) -> Iterator[MapWriter]:
    """Yield a writer of label maps; the folder appears, complete, when the block ends without an error.

    Args:
        root: The folder to create; an existing one is replaced.
        class_names: The classes that the maps' indices refer to.
        files: The images' paths in their split folder, all different.
        grid: Height and width of the maps.
        top_k: Classes at each position, at most all.

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
        scores, classes = (
            _new_array(folder / f"{name}.npy", dtype, shape)
            for name, dtype in (("scores", np.float16), ("classes", np.int32))
        )

        def store(index: int, *arrays: np.ndarray) -> None:
            scores[index], classes[index] = arrays

        writer = MapWriter(len(class_names), shape, store)
        yield writer
        writer.finish()
        scores.flush()
        classes.flush()


@contextlib.contextmanager
def write_torch_maps(
    root: str | os.PathLike[str], class_names: Sequence[str], files: Sequence[str], grid: tuple[int, int], top_k: int
) -> Iterator[MapWriter]:
    """As `write_label_maps`, but one torch file per image, as published.

    Raises:
        ValueError: as `write_label_maps`; also for more classes than half precision can number, and for images that
            would share a file.
    """
    shape, names = _checked_shape(class_names, files, grid, top_k), [torch_file(name) for name in files]
    if len(class_names) > HALF_LIMIT + 1:
        raise ValueError(f"{len(class_names)} classes: half precision holds class numbers up to {HALF_LIMIT:,} alone")
    if len(set(names)) < len(names):
        raise ValueError("images whose names differ in their ending alone would share a file")
    with atomic_folder(root) as folder:

        def store(index: int, *arrays: np.ndarray) -> None:
            path = folder / names[index]
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(torch.from_numpy(np.stack([array.astype(np.float16) for array in arrays])), path)

        writer = MapWriter(len(class_names), shape, store)
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
    """An array in a file, whose space is allocated now: on a full disk, writing to it would kill the process."""
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
