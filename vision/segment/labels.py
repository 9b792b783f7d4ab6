"""Annotations: what the values of pixels mean, and reading and checking the files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vision.data.images import ImageError, decoded, unreadable_reason
from vision.data.names import MAX_PIXELS

__all__ = ["ADE20K", "LabelRules", "read_annotation", "read_values"]

ADE20K: dict[str, Any] = {"ignore_index": 255, "reduce_zero_label": True}


@dataclass(frozen=True)
class LabelRules:
    """How the values of annotations and class indices correspond.

    Attributes:
        num_classes: Classes K.
        ignore_index: Value of pixels that are ignored, above those of the classes.
        reduce_zero_label: Value 0 is ignored, too, and value v is class v - 1, as in ADE20K; otherwise value v
            is class v.
    """

    num_classes: int
    ignore_index: int = 255
    reduce_zero_label: bool = True

    def to_classes(self, values: np.ndarray) -> np.ndarray:
        """Class indices (H, W), int64, with ``ignore_index``, from an annotation's values (H, W)."""
        values = values.astype(np.int64)
        if not self.reduce_zero_label:
            return values
        ignored = (values == 0) | (values == self.ignore_index)
        return np.where(ignored, self.ignore_index, values - 1)

    def to_values(self, classes: np.ndarray) -> np.ndarray:
        """The annotation's values for class indices."""
        return classes + 1 if self.reduce_zero_label else classes

    def to_dict(self) -> dict[str, Any]:
        """All but the number of classes, in plain values."""
        return {"ignore_index": self.ignore_index, "reduce_zero_label": self.reduce_zero_label}


def read_annotation(
    data: bytes, name: str, size: tuple[int, int], rules: LabelRules, max_pixels: int = MAX_PIXELS
) -> np.ndarray:
    """Class indices of every pixel.

    Args:
        data: The bytes of an image of one channel or a palette.
        name: The file's name, for the message.
        size: Height and width of its image in pixels.
        rules: What values mean.
        max_pixels: The largest annotation that is read; 0: any.

    Returns:
        (H, W), int64, with ``rules.ignore_index``.

    Raises:
        ImageError: if the file cannot be read, has colours instead of values, another size, or a value of no class.
    """
    values = read_values(data, name, max_pixels)
    if values.shape != tuple(size):
        raise ImageError(name, f"the annotation is {_shape(values.shape)} pixels, its image {_shape(size)}")
    first = 1 if rules.reduce_zero_label else 0
    last = rules.num_classes - 1 + first
    beyond = (values < 0) | ((values > last) & (values != rules.ignore_index))
    if beyond.any():
        raise ImageError(
            name, f"the annotation has the value {values[beyond].max()}, the classes are {first} to {last}"
        )
    return rules.to_classes(values)


def read_values(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The values of an annotation's pixels (H, W), as they are in the file.

    Raises:
        ImageError: if it cannot be read, or has colours instead of values.
    """
    try:
        with decoded(data, max_pixels) as image:
            mode, values = image.mode, np.asarray(image)
    except Exception as error:  # decoders raise almost anything on broken data
        raise ImageError(name, f"the annotation: {unreadable_reason(data, error)}") from error
    if values.ndim != 2 or values.dtype.kind == "f":
        raise ImageError(name, f"the annotation has colours ({mode}) instead of one channel of class values")
    return values


def _shape(size: tuple[int, ...]) -> str:
    return f"{size[1]}x{size[0]}"
