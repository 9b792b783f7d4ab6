"""Fashion-MNIST (arXiv:1708.07747), from the files that Debian's package ``dataset-fashion-mnist`` installs."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from sot_base.errors import UsageError
from vision.data.sources import ArraySource
from vision.probe import ImageProbe

__all__ = ["FOLDER", "FashionMnist", "open_fashion_mnist"]

FOLDER = "/usr/share/datasets/fashion-mnist"
PREFIXES = {"train": "train", "val": "t10k"}
NAMES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
REMEDY = "install Debian's dataset-fashion-mnist, or give its folder with --fashion-mnist"
BYTE = 8  # the type of the values in the header of an idx file


class FashionMnist(ImageProbe):
    """Fashion-MNIST on an image model; its test images are the split ``val``."""

    def open_split(self, data_dir: str | None, split: str) -> Any:
        return open_fashion_mnist(Path(data_dir or FOLDER), split)


def open_fashion_mnist(folder: Path, split: str) -> ArraySource:
    """Read the images of a split, ``train`` or ``val``.

    Raises:
        UsageError: if a file is missing or damaged.
    """
    images = _read_idx(folder / f"{PREFIXES[split]}-images-idx3-ubyte.gz", 3)
    targets = _read_idx(folder / f"{PREFIXES[split]}-labels-idx1-ubyte.gz", 1)
    if len(images) != len(targets):
        raise UsageError(f"{len(images)} images, but {len(targets)} labels: {folder}; {REMEDY}")
    return ArraySource(images, targets, NAMES, f"{folder}/{split}")


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file: 2 zeros, the type of the values, the number of dimensions, each of them in 4 bytes, values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"no Fashion-MNIST: {path}; {REMEDY}") from None
    except (OSError, EOFError) as error:
        raise UsageError(f"cannot read {path.name} ({error}): {path}; {REMEDY}") from None
    begin = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:begin].ljust(4 * dimensions, b"\0"), ">u4").tolist()
    if content[:4] != bytes([0, 0, BYTE, dimensions]) or len(content) != begin + np.prod(shape):
        raise UsageError(f"not an idx file of {dimensions} dimensions: {path}; {REMEDY}")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)
