"""Fashion-MNIST as a side of a probe, from the files that Debian's package ``dataset-fashion-mnist`` installs."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from sot_base.errors import UsageError
from vision.data.sources import ArraySource
from vision.probe import ImageProbe

__all__ = ["FOLDER", "FashionMnist"]

FOLDER = "/usr/share/datasets/fashion-mnist"
PREFIXES = {"train": "train", "val": "t10k"}
NAMES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
BYTE = 8  # the type of the values in the header of an idx file


class FashionMnist(ImageProbe):
    """Fashion-MNIST ([arXiv:1708.07747](https://arxiv.org/abs/1708.07747)); its test images are the split ``val``."""

    def open_split(self, data_dir: str | None, split: str) -> Any:
        folder, prefix = Path(data_dir or FOLDER), PREFIXES[split]
        images = _read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", 3)
        targets = _read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 1)
        if len(images) != len(targets) or targets.max(initial=0) >= len(NAMES):
            raise UsageError(f"{len(images)} images and labels for others: {folder}; {_remedy()}")
        return ArraySource(images, targets, NAMES, f"{folder}/{split}")


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of bytes: 2 zeros, the type, the number of dimensions, the dimensions in 4 bytes each, values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"no Fashion-MNIST: {path}; {_remedy()}") from None
    except (OSError, EOFError) as error:
        raise UsageError(f"cannot read {path.name} ({error}): {path}; {_remedy()}") from None
    begin = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:begin].ljust(4 * dimensions, b"\0"), ">u4").tolist()
    if content[:4] != bytes([0, 0, BYTE, dimensions]) or len(content) != begin + np.prod(shape):
        raise UsageError(f"not an idx file of {dimensions} dimensions: {path}; {_remedy()}")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _remedy() -> str:
    return "install Debian's dataset-fashion-mnist, or give its folder with --fashion-mnist"
