"""Labelled images from a folder, a tar, CIFAR's files or scikit-learn's digits."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from PIL import Image

from sot_base.errors import UsageError
from vision.data.cifar import CIFAR_FOLDERS, load_cifar
from vision.data.classes import natural_order
from vision.data.file_names import is_image_name
from vision.data.files import FileTree, warn_of_left_out
from vision.data.images import read_image
from vision.data.names import MAX_PIXELS
from vision.data.splits import find_split

__all__ = ["ArraySource", "FileSource", "Source", "TreeImages", "open_source"]

_logger = logging.getLogger(__name__)


class Source(Protocol):
    """Labelled images: RGB images, their names, and class names in natural order.

    Attributes:
        where: The place, for messages.
        class_names: The classes.
        targets: (N,) index of each image's class.
    """

    where: str
    class_names: list[str]
    targets: np.ndarray

    def name(self, index: int) -> str:
        """Name of an image in messages and results."""

    def key(self, index: int) -> str:
        """Name of an image within its split: ``<class>/<image>``, or a number."""

    def image(self, index: int) -> Image.Image:
        """Read an image as RGB; raises `ImageError`."""

    def subset(self, rows: np.ndarray) -> Source:
        """The source with only these images, in this order; the classes stay."""


class ArraySource:
    """Images in memory.

    Args:
        images: (N, H, W, 3) or (N, H, W), 8-bit.
        targets: (N,) class indices.
        class_names: The classes.
        where: The place, for messages.
    """

    def __init__(self, images: np.ndarray, targets: np.ndarray, class_names: Sequence[str], where: str) -> None:
        self.where, self.class_names = where, list(class_names)
        self.images, self.targets = images, np.asarray(targets, dtype=np.int64)

    def name(self, index: int) -> str:
        return f"{self.where}[{index}]"

    def key(self, index: int) -> str:
        return str(index)

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[index]).convert("RGB")

    def subset(self, rows: np.ndarray) -> ArraySource:
        return ArraySource(self.images[rows], self.targets[rows], self.class_names, self.where)


class TreeImages:
    """Images below one folder of a tree.

    Args:
        tree: The files.
        prefix: The folder in it; empty: its root.
        max_pixels: The largest image that is read; 0: any.

    Attributes:
        where: The folder, for messages.
        paths: Paths of the images in the folder.
        targets: For each image its class index, or which classes it has.
    """

    paths: list[str]
    targets: np.ndarray

    def __init__(self, tree: FileTree, prefix: str, max_pixels: int) -> None:
        self.tree, self.max_pixels = tree, max_pixels
        self.where = str(tree.root / prefix) if prefix else str(tree.root)
        self._lead = f"{prefix}/" if prefix else ""

    def name(self, index: int) -> str:
        return f"{self.where}/{self.paths[index]}"

    def key(self, index: int) -> str:
        return self.paths[index]

    def image(self, index: int) -> Image.Image:
        return read_image(self.tree.read(self._lead + self.paths[index]), self.name(index), self.max_pixels)

    def subset(self, rows: np.ndarray) -> Self:
        part = copy.copy(self)
        part.paths, part.targets = [self.paths[row] for row in rows.tolist()], self.targets[rows]
        return part


class FileSource(TreeImages):
    """Image files in one folder per class: ``<prefix>/<class>/**/<image>``.

    Hidden files and folders are ignored. Images beside the class folders are ignored with a warning, and so are
    folders without an image and files whose endings are none of an image.

    Args:
        tree: The files.
        prefix: The folder of class folders in it.
        max_pixels: The largest image that is read; 0: any.

    Raises:
        UsageError: if there are no images in class folders.
    """

    def __init__(self, tree: FileTree, prefix: str = "", max_pixels: int = MAX_PIXELS) -> None:
        super().__init__(tree, prefix, max_pixels)
        found = tree.files(prefix)
        files = [path for path in found if is_image_name(path)]
        self.paths = [path for path in files if "/" in path]
        loose = [path for path in files if "/" not in path]
        if not self.paths:
            what = f"{len(loose)} images, but none in a class folder" if loose else "no images"
            raise UsageError(
                f"{what}: {self.where}; put each image into the folder of its class: <split>/<class>/<image>"
            )
        if loose:
            _logger.warning(
                f"{len(loose)} images outside the class folders are ignored: {self.where} ({loose[0]}, ...)"
            )
        warn_of_left_out(self.where, [path for path in found if "/" in path])
        labels = [path.split("/", 1)[0] for path in self.paths]
        self.class_names = natural_order(labels)
        empty = [name for name in tree.folders(prefix) if name not in set(labels)]
        if empty:
            _logger.warning(f"folders without images are ignored: {self.where} ({', '.join(empty[:5])})")
        index = {name: position for position, name in enumerate(self.class_names)}
        self.targets = np.array([index[label] for label in labels], dtype=np.int64)


def open_source(
    data_dir: str | None,
    split: str,
    dataset: str | None = None,
    download: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Source:
    """Open one split of a data set.

    Args:
        data_dir: A folder with split folders (``train``, ``val`` and their synonyms) or split tars (``train.tar``), a
            tar with split folders, a folder with CIFAR's files, or, for evaluation, a folder of class folders.
        split: ``train``, ``val``, or the name of a folder, or ``.`` for class folders directly in ``data_dir``.
        dataset: A name in `vision.data.names.DATASETS`; None: what ``data_dir`` looks like.
        download: Download CIFAR if it is missing.
        max_pixels: The largest image that is read; 0: any.

    Raises:
        UsageError: if there is no such data, saying what was expected.
    """
    if dataset == "digits":
        return _digits(split)
    if data_dir is None:
        raise UsageError("no data: give a folder (DIR/train/<class>/..., DIR/val/<class>/...) or --dataset digits")
    if dataset is None:
        dataset = next((name for name, folder in CIFAR_FOLDERS.items() if (Path(data_dir) / folder).is_dir()), "folder")
    if dataset == "folder":
        return FileSource(*find_split(data_dir, split), max_pixels)
    images, targets, names = load_cifar(dataset, data_dir, split == "train", download)
    return ArraySource(images, targets, names, f"{data_dir}/{CIFAR_FOLDERS[dataset]}/{split}")


def _digits(split: str) -> ArraySource:
    """scikit-learn's 1,797 handwritten digits, 8x8; every fifth is for validation."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError("scikit-learn is missing: --dataset digits; pip install scikit-learn") from error
    digits = load_digits()
    held_out = np.arange(len(digits.target)) % 5 == 0
    chosen = ~held_out if split == "train" else held_out
    images = np.rint(digits.images[chosen] * (255.0 / 16.0)).astype(np.uint8)
    return ArraySource(images, digits.target[chosen], [str(name) for name in digits.target_names], f"digits/{split}")
