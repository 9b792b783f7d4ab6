"""CIFAR-10 and CIFAR-100 in torchvision's layout. torchvision's own reader would run code from the pickles."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sot_base.errors import UsageError

__all__ = ["CIFAR_FOLDERS", "load_cifar"]

CIFAR_FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
_FILES = {
    "cifar10": ("batches.meta", "label_names", "labels", "data_batch_*", "test_batch"),
    "cifar100": ("meta", "fine_label_names", "fine_labels", "train", "test"),
}
_ALLOWED = {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


class _ArrayUnpickler(pickle.Unpickler):
    """Build plain values and numpy arrays only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a data file")
        return super().find_class(module, name)


def load_cifar(
    dataset: str, root: str, train: bool, download: bool = False
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Read a CIFAR data set.

    Args:
        dataset: ``cifar10`` or ``cifar100`` (fine labels).
        root: The folder that holds ``cifar-10-batches-py`` or ``cifar-100-python``.
        train: The training images rather than the test images.
        download: Download the files if they are missing.

    Returns:
        Images (N, 32, 32, 3) uint8, class indices (N,), class names.

    Raises:
        UsageError: naming the file that is missing or cannot be read.
    """
    folder = Path(root) / CIFAR_FOLDERS[dataset]
    if download and not folder.is_dir():
        _download(dataset, root)
    meta, names_key, labels_key, train_files, test_file = _FILES[dataset]
    batches = sorted(folder.glob(train_files if train else test_file))
    if not batches:
        raise UsageError(
            f"no {dataset} files: {folder.resolve()}; put {CIFAR_FOLDERS[dataset]} there, or add --download"
        )
    names = _read(folder / meta, names_key)[0]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _unreadable(folder / meta, f"{names_key} is not a list of names")
    images, labels = zip(*(_read_batch(path, labels_key, len(names)) for path in batches), strict=True)
    pixels = np.concatenate(images).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels), np.concatenate(labels), names


def _read_batch(path: Path, labels_key: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = _read(path, "data", labels_key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (3072,):
        raise _unreadable(path, "data is not an array of images of 32x32 pixels")
    if not isinstance(labels, list) or len(labels) != len(images):
        raise _unreadable(path, f"{labels_key} is not a list with a label for each image")
    if not all(isinstance(label, int) and 0 <= label < classes for label in labels):
        raise _unreadable(path, f"{labels_key} has a label outside the {classes} classes")
    return images, np.array(labels, dtype=np.int64)


def _read(path: Path, *keys: str) -> list[Any]:
    try:
        with path.open("rb") as file:
            _check_places(file)
            content = _ArrayUnpickler(file, encoding="latin1").load()
        return [content[key] for key in keys]
    except Exception as error:  # a damaged pickle calls what is allowed with anything
        raise _unreadable(path, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def _check_places(file: BinaryIO) -> None:
    """Refuse a pickle that numbers its values far beyond their count: for each number Python makes room."""
    for count, (_, number, _) in enumerate(pickletools.genops(file)):
        if isinstance(number, int) and number > 2**24 + count:
            raise pickle.UnpicklingError(f"a number beyond any in these files, {number}")
    file.seek(0)


def _unreadable(path: Path, reason: str) -> UsageError:
    return UsageError(f"cannot read a CIFAR file: {path.resolve()} ({reason}); download it again")


def _download(dataset: str, root: str) -> None:
    from torchvision.datasets import CIFAR10, CIFAR100

    try:
        {"cifar10": CIFAR10, "cifar100": CIFAR100}[dataset](root, download=True)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"cannot download {dataset}: {error}; put its files into {Path(root).resolve()}") from error
