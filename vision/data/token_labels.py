"""Files of label maps: for every image the best classes of every place of a grid, with their scores.

Two kinds are read:

- A folder that `write_label_maps` made: ``header.json`` (format, version, class names, grid, top-k, the images' names),
  ``scores.npy`` (N, k, h, w) half precision and ``classes.npy`` (N, k, h, w) int32. The arrays are mapped into memory:
  all loading processes share them.
- The published one: a folder or tar with one torch file an image, ``<class>/<image>.pt``, half precision (2, k, h, w):
  scores, then class indices. It names no classes, and half precision holds class numbers up to 2,048 alone.

Scores are a classifier's outputs before the softmax.

Reference: arXiv:2104.10858.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sot_core.cli import UsageError, atomic_folder
from vision.data.classes import match_classes
from vision.data.files import FileTree, open_tree

__all__ = [
    *("HALF_LIMIT", "LabelMap", "LabelMaps", "LabelMapWriter", "TorchMapWriter", "check_complete", "open_label_maps"),
    *("torch_file", "write_label_maps", "write_torch_maps"),
]

FORMAT, VERSION = "token-label-maps", 1
HALF_LIMIT = 2048  # the largest number up to which half precision holds all integers
_REMEDY = "make the maps for these images and classes"


class LabelMap(NamedTuple):
    """The best classes of every place of a grid, of one image or a batch.

    Attributes:
        scores: (..., k, h, w) float.
        classes: (..., k, h, w) int64 class indices.
    """

    scores: Tensor
    classes: Tensor


class LabelMaps(Protocol):
    """Label maps of images, by the images' paths in their split folder (``<class>/<image>``).

    Attributes:
        where: The place, for messages.
    """

    where: str

    def missing(self, names: Sequence[str]) -> list[str]:
        """The images that have no map."""

    def superfluous(self, names: Sequence[str]) -> list[str]:
        """The maps of other images."""

    def read(self, name: str) -> LabelMap:
        """The map of an image.

        Raises:
            UsageError: if there is none, or none that fits.
        """


class FolderMaps:
    """Maps in a folder of `write_label_maps`.

    Args:
        root: The folder.
        class_names: The model's classes; the maps' must be the same ones, in any order.

    Raises:
        UsageError: for a header or arrays that do not fit, with what does not.
    """

    def __init__(self, root: str | os.PathLike[str], class_names: Sequence[str]) -> None:
        self.where = str(root)
        header = _read_header(Path(root) / "header.json")
        names, files = header["classes"], header["files"]
        self._class_index = _match(names, class_names, self.where)
        self._place = {name: position for position, name in enumerate(files)}
        self._root, self._shape = Path(root), (len(files), header["top_k"], *header["grid"])
        _ = self._arrays  # so that what is wrong with them is said now

    def missing(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self._place]

    def superfluous(self, names: Sequence[str]) -> list[str]:
        return sorted(self._place.keys() - set(names))

    def read(self, name: str) -> LabelMap:
        if name not in self._place:
            raise _no_map(name, self.where)
        scores, classes = (np.array(array[self._place[name]]) for array in self._arrays)
        _check_values(scores, classes, len(self._class_index), f"{name} in {self.where}")
        return LabelMap(torch.from_numpy(scores), torch.from_numpy(self._class_index[classes]))

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        scores = _open_array(self._root / "scores.npy", self._shape, np.float16)
        return scores, _open_array(self._root / "classes.npy", self._shape, np.int32)

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_arrays"}  # a copy would be read whole


class TorchFileMaps:
    """Maps in one torch file an image, as published.

    Args:
        tree: The files, ``<class>/<image>.pt``.
        num_classes: Classes of the model.

    Raises:
        UsageError: if the tree has no such file, if the first one is no map, or for more classes than it can number.
    """

    def __init__(self, tree: FileTree, num_classes: int) -> None:
        self.where, self._tree, self._num_classes = str(tree.root), tree, num_classes
        self._files = {path for path in tree.files() if path.endswith(".pt")}
        if not self._files:
            raise UsageError(
                f"no label maps: {self.where} has neither header.json nor <class>/<image>.pt; give the folder of them"
            )
        first = self._load(min(self._files))
        limit = int(2 / torch.finfo(first.dtype).eps)
        if num_classes > limit + 1:
            raise UsageError(
                f"label maps in {first.dtype} for {num_classes} classes: {self.where}; they hold class numbers up to "
                f"{limit:,} alone: make the maps again, in a folder with a header"
            )
        self._shape = first.shape

    def missing(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if torch_file(name) not in self._files]

    def superfluous(self, names: Sequence[str]) -> list[str]:
        return sorted(self._files - {torch_file(name) for name in names})

    def read(self, name: str) -> LabelMap:
        path = torch_file(name)
        if path not in self._files:
            raise _no_map(name, self.where)
        content = self._load(path)
        if content.shape != self._shape:
            raise UsageError(
                f"a label map of another grid: {self.where}/{path} has {_sizes(content.shape)}, "
                f"{min(self._files)} has {_sizes(self._shape)}; {_REMEDY} with one grid"
            )
        _check_values(*content.float().numpy(), self._num_classes, f"{self.where}/{path}")
        return LabelMap(content[0], content[1].long())

    def _load(self, path: str) -> Tensor:
        where = f"{self.where}/{path}"
        try:
            content = torch.load(io.BytesIO(self._tree.read(path)), weights_only=True, map_location="cpu")
        except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UsageError(f"cannot read a label map: {where} ({reason}); make it again") from error
        found = f"{content.dtype} {tuple(content.shape)}" if isinstance(content, Tensor) else type(content).__name__
        dense = isinstance(content, Tensor) and content.is_floating_point() and content.layout == torch.strided
        if not dense or content.ndim != 4 or len(content) != 2 or not content.numel():
            raise UsageError(f"not a label map: {where} holds {found}; it must be floats (2, top-k, height, width)")
        return content.detach()


def open_label_maps(root: str | os.PathLike[str], class_names: Sequence[str]) -> LabelMaps:
    """Open label maps of either kind.

    Args:
        root: A folder of `write_label_maps`, or a folder or tar with the published files.
        class_names: The model's classes, in the order of its outputs.

    Raises:
        UsageError: if there are no maps, or maps of other classes.
    """
    if (Path(root) / "header.json").is_file():
        return FolderMaps(root, class_names)
    return TorchFileMaps(open_tree(root), len(class_names))


def check_complete(maps: LabelMaps, names: Sequence[str]) -> None:
    """See that every image has a map.

    Raises:
        UsageError: with the number of images without one, and the first of them.
    """
    missing = maps.missing(names)
    if missing:
        lacks = " but has ".join((missing[0], *maps.superfluous(names)[:1]))
        raise UsageError(
            f"{len(missing)} of {len(names)} images have no label map: {maps.where} lacks {lacks}; {_REMEDY}"
        )


class LabelMapWriter:
    """Puts the maps of a folder in place, see `write_label_maps`."""

    def __init__(self, folder: Path, num_classes: int, shape: tuple[int, ...]) -> None:
        self._num_classes, self._written = num_classes, np.zeros(shape[0], dtype=bool)
        self._scores = np.lib.format.open_memmap(folder / "scores.npy", "w+", np.float16, shape)
        self._classes = np.lib.format.open_memmap(folder / "classes.npy", "w+", np.int32, shape)

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
        (folder / "header.json").write_text(json.dumps(header, ensure_ascii=False), encoding="utf-8")
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


def torch_file(name: str) -> str:
    """The published path of an image's map, by its path in its split folder."""
    return str(PurePosixPath(name).with_suffix(".pt"))


def _sizes(shape: Sequence[int]) -> str:
    return f"top-k {shape[1]} and grid {shape[2]}x{shape[3]}"


def _no_map(name: str, where: str) -> UsageError:
    return UsageError(f"no label map of {name}: {where}; {_REMEDY}")


def _check_values(scores: np.ndarray, classes: np.ndarray, count: int, where: str) -> None:
    wrong = classes[(classes < 0) | (classes >= count) | (classes != np.floor(classes))]
    if wrong.size:
        raise UsageError(f"a label map with class index {wrong[0]:g} of {count} classes: {where}; {_REMEDY}")
    if not np.isfinite(scores).all():
        raise UsageError(f"a label map with scores that are not finite: {where}; make it again")


def _match(names: Sequence[str], class_names: Sequence[str], where: str) -> np.ndarray:
    """The model's index of each of the maps' classes, which must be the model's."""
    if len(names) != len(class_names):
        raise UsageError(f"label maps of {len(names)} classes for {len(class_names)}: {where}; {_REMEDY}")
    return match_classes(names, class_names, where)


def _read_header(path: Path) -> dict[str, Any]:
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        kind, version = header["format"], header["version"]
        sizes = [header["top_k"], *header["grid"]]
        good = len(sizes) == 3 and all(isinstance(size, int) and size > 0 for size in sizes)
        good = good and all(_are_names(header[key]) for key in ("classes", "files"))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"not a header of label maps: {path} ({error!r}); make the maps again") from error
    if (kind, version) != (FORMAT, VERSION):
        raise UsageError(f"label maps of another format: {path} says {kind} {version}; expected {FORMAT} {VERSION}")
    if not good:
        raise UsageError(f"not a header of label maps: {path} (sizes {sizes}, or its names); make the maps again")
    return header


def _are_names(names: Any) -> bool:
    texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return texts and 0 < len(names) == len(set(names))


def _open_array(path: Path, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(f"cannot read label maps: {path} ({error}); make them again") from error
    if array.shape != shape or array.dtype != dtype:
        raise UsageError(
            f"label maps that are not what their header says: {path} has {array.dtype} {array.shape}, the header "
            f"{np.dtype(dtype)} {shape}; make them again"
        )
    return array
