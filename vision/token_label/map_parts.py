"""Parts of label maps in the making: written one by one, by any process, and kept when a run is interrupted."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError
from sot_base.small_files import parse_json
from vision.token_label.read_maps import LabelMap

__all__ = ["LabelParts", "Part"]


class Part(NamedTuple):
    """The maps of a part.

    Attributes:
        indices: (M,) the images that have a map, in order, without those that could not be read.
        scores: (M, k, h, w) half precision.
        classes: (M, k, h, w) int32.
    """

    indices: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


class LabelParts:
    """A folder with one file for each ``size`` images, each written whole or not at all.

    Args:
        folder: The folder; it is created with the first part.
        facts: What the maps depend on, in plain values; parts with other facts are refused.
        count: Images.
        size: Images per part (> 0).
        shape: Top-k, height and width of a map.
    """

    def __init__(
        self, folder: Path, facts: Mapping[str, Any], count: int, size: int, shape: tuple[int, int, int]
    ) -> None:
        self.folder, self.count, self.size, self.shape = folder, count, size, shape
        self._facts = {**facts, "images a part": size}

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def images(self, part: int) -> range:
        """The images of a part."""
        return range(part * self.size, min(self.count, (part + 1) * self.size))

    def is_made(self, part: int) -> bool:
        """Whether a part exists.

        Raises:
            UsageError: if it has other facts, naming them, or is damaged.
        """
        if not self._path(part).exists():
            return False
        (text,) = self._load(part, "facts")
        facts = parse_json(str(text), dict[str, Any], str(self._path(part)), "remove the file and run again")
        names = [*self._facts, *(facts.keys() - self._facts.keys())]
        other = [name for name in names if facts.get(name) != self._facts.get(name)]
        if other:
            raise UsageError(
                f"parts of other label maps: {self._path(part)} ({', '.join(other)}: not the same); repeat the options "
                f"that it was made with, or remove {self.folder}"
            )
        return True

    def write(self, part: int, maps: Mapping[int, LabelMap]) -> None:
        """Write a part.

        Args:
            part: Its number.
            maps: The maps, on the CPU, by the images that have one, in order.
        """
        scores, classes = np.empty((len(maps), *self.shape), np.float16), np.empty((len(maps), *self.shape), np.int32)
        for place, label_map in enumerate(maps.values()):
            scores[place], classes[place] = label_map.scores.numpy(), label_map.classes.numpy()
        with atomic_file(self._path(part)) as temporary, temporary.open("wb") as file:
            facts = np.array(json.dumps(self._facts))
            np.savez(file, facts=facts, indices=np.array([*maps], np.int64), scores=scores, classes=classes)

    def find(self, part: int) -> np.ndarray:
        """The images of a part that have a map, see `Part`."""
        return self._load(part, "indices")[0]

    def read(self, part: int) -> Part:
        """Read a part.

        Raises:
            UsageError: if it is missing or damaged.
        """
        return Part(*self._load(part, "indices", "scores", "classes"))

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, part: int) -> Path:
        return self.folder / f"{part:06d}.npz"

    def _load(self, part: int, *names: str) -> list[np.ndarray]:
        path = self._path(part)
        try:
            with zipfile.ZipFile(path) as archive:
                if any(record.compress_type != zipfile.ZIP_STORED for record in archive.infolist()):
                    raise ValueError("a compressed file, which none of the parts is")
            with np.load(path) as arrays:
                found = [arrays[name] for name in names]
            self._check(dict(zip(names, found, strict=True)))
        except Exception as error:  # numpy evaluates headers as literals, which raises almost anything
            reason = " ".join(str(error).split())[:200]
            raise UsageError(
                f"cannot read a part of label maps: {path} ({reason}); remove the file and run again"
            ) from error
        return found

    def _check(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Make sure that arrays of a part are what `write` writes."""
        count = len(arrays["indices"]) if "indices" in arrays else None
        expected = {"indices": (np.int64, (count,)), "facts": (None, ())}
        expected |= {"scores": (np.float16, (count, *self.shape)), "classes": (np.int32, (count, *self.shape))}
        for name, array in arrays.items():
            kind, shape = expected[name]
            if array.shape != shape or (array.dtype != kind if kind else array.dtype.kind != "U"):
                raise ValueError(f"{name} has {array.dtype} {array.shape}")
        indices = arrays.get("indices", np.zeros(0, np.int64))
        if len(indices) and not (indices[0] >= 0 and indices[-1] < self.count and (np.diff(indices) > 0).all()):
            raise ValueError("its images are not in order")
