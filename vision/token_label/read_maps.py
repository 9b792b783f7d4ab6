"""Read label maps: for each image the best classes of each position of a grid, with their scores.

Two kinds are read:

- A folder (`vision.token_label.write_maps`): ``header.json`` (format, version, class names, grid, top-k, the images'
  names), ``scores.npy`` (N, k, h, w) half precision and ``classes.npy`` (N, k, h, w) int32. The arrays are mapped into
  memory: all loading processes share them.
- The published one: a folder or tar with one torch file an image, ``<class>/<image>.pt``, half precision (2, k, h, w):
  scores, then class indices. It names no classes, and half precision holds class numbers up to 2,048 alone.

Scores are a classifier's outputs before the softmax.

Reference: arXiv:2104.10858.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from sot_base.errors import UsageError
from sot_base.safe_checkpoint import read_tensor
from sot_base.schema import of_type
from sot_base.small_files import read_json
from vision.data.classes import match_classes
from vision.data.files import FileTree, open_tree
from vision.token_label.archives import only_folder, refuse_compressed, top_folder

__all__ = [
    "FORMAT",
    "HALF_LIMIT",
    "VERSION",
    "LabelMap",
    "LabelMaps",
    "check_complete",
    "open_label_maps",
    "torch_file",
]

FORMAT, VERSION = "token-label-maps", 1
MAX_HEADER = 2**28  # bytes: the names of ImageNet's images take 50 MB
HALF_LIMIT = 2048  # half precision holds all integers up to this one
_REMEDY = "make the maps for these images and classes"


class LabelMap(NamedTuple):
    """The best classes of each position of a grid, of one image or a batch.

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
        """The images without a map."""

    def superfluous(self, names: Sequence[str]) -> list[str]:
        """The maps that belong to other images."""

    def read(self, name: str) -> LabelMap:
        """The map of an image.

        Raises:
            UsageError: if there is none, or none that fits.
        """


class FolderMaps:
    """Maps in a folder with a header.

    Args:
        root: The folder.
        class_names: The model's classes; the maps' must be the same ones, in any order.

    Raises:
        UsageError: for a header or arrays that do not fit, saying what does not.
    """

    def __init__(self, root: str | os.PathLike[str], class_names: Sequence[str]) -> None:
        self.where = str(root)
        header = _read_header(Path(root) / "header.json")
        names, files = header.classes, header.files
        self._class_index = _match(names, class_names, self.where)
        self._place = {name: position for position, name in enumerate(files)}
        self._root, self._shape = Path(root), (len(files), header.top_k, *header.grid)
        _ = self._arrays  # so that errors are reported now

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
        return {
            key: value for key, value in self.__dict__.items() if key != "_arrays"
        }  # unpickling would read them whole


class TorchFileMaps:
    """Maps in one torch file an image, as published.

    Args:
        tree: The files, ``<class>/<image>.pt``.
        num_classes: Classes of the model.

    Raises:
        UsageError: if the tree has no such file, if the first one is not a map, or for more classes than it can number.
    """

    def __init__(self, tree: FileTree, num_classes: int) -> None:
        self.where, self._tree, self._num_classes = str(tree.root), tree, num_classes
        self._files = {path for path in tree.files() if path.endswith(".pt")}
        self._lead = top_folder(self._files)  # as the published archive has one
        self._files = {path[len(self._lead) :] for path in self._files}
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
            content = read_tensor(self._tree.read(self._lead + path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot read a label map: {where} ({reason}); make it again") from error
        if not content.is_floating_point() or content.ndim != 4 or len(content) != 2 or not content.numel():
            raise UsageError(
                f"not a label map: {where} holds {content.dtype} {tuple(content.shape)}; it must be floats "
                "(2, top-k, height, width)"
            )
        return content


def open_label_maps(root: str | os.PathLike[str], class_names: Sequence[str]) -> LabelMaps:
    """Open label maps of either kind; they may lie in a single folder within the root.

    Args:
        root: A folder with a header, or a folder or tar with the published files.
        class_names: The model's classes, in the order of its outputs.

    Raises:
        UsageError: if there are no maps, or maps of other classes; for a compressed archive with the command that
            unpacks it.
    """
    path = Path(root)
    if path.is_file():
        refuse_compressed(path)
    for folder in (path, *only_folder(path)):
        if (folder / "header.json").is_file():
            return FolderMaps(folder, class_names)
    return TorchFileMaps(open_tree(root), len(class_names))


def check_complete(maps: LabelMaps, names: Sequence[str]) -> None:
    """Make sure that every image has a map.

    Raises:
        UsageError: naming the number of images without one, and the first of them.
    """
    missing = maps.missing(names)
    if missing:
        lacks = " but has ".join((missing[0], *maps.superfluous(names)[:1]))
        raise UsageError(
            f"{len(missing)} of {len(names)} images have no label map: {maps.where} lacks {lacks}; {_REMEDY}"
        )


def torch_file(name: str) -> str:
    """The published path of an image's map, from the image's path in its split folder."""
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


class _Header(msgspec.Struct):
    """The content of ``header.json``."""

    format: str
    version: int
    classes: Annotated[list[str], msgspec.Meta(min_length=1)]
    files: Annotated[list[str], msgspec.Meta(min_length=1)]
    top_k: Annotated[int, msgspec.Meta(gt=0)]
    grid: tuple[Annotated[int, msgspec.Meta(gt=0)], Annotated[int, msgspec.Meta(gt=0)]]


def _read_header(path: Path) -> _Header:
    values = read_json(path, dict[str, Any], "make the maps again", MAX_HEADER)
    kind, version = values.get("format"), values.get("version")
    if (kind, version) != (FORMAT, VERSION):
        raise UsageError(f"label maps of another format: {path} says {kind} {version}; expected {FORMAT} {VERSION}")
    header = of_type(values, _Header, str(path), "make the maps again")
    for names in (header.classes, header.files):
        if len(set(names)) < len(names):
            raise UsageError(f"a name twice: {path}; make the maps again")
    return header


def _open_array(path: Path, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy evaluates the header as a literal, which raises almost anything
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"cannot read label maps: {path} ({reason}); make them again") from error
    if array.shape != shape or array.dtype != dtype:
        raise UsageError(
            f"label maps that are not what their header says: {path} has {array.dtype} {array.shape}, the header "
            f"{np.dtype(dtype)} {shape}; make them again"
        )
    return array
