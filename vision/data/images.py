"""Read image files of any kind as 8-bit RGB, as they look on a white page."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator

import numpy as np
from PIL import Image, UnidentifiedImageError

from sot_base.errors import UsageError

__all__ = ["ImageError", "decoded", "read_image", "to_rgb"]

_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N", "I")  # Pillow reads signed 16-bit files as 32-bit "I"
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")
MAX_PIXELS = 89_478_485  # as Pillow advises: 256 MiB of RGB; a conversion takes up to six times as much
MAX_RATIO = 2000  # pixels per byte; a PNG of one colour has 1,000
_ALPHA = ("RGBA", "RGBa", "LA", "PA")


class ImageError(UsageError):
    """An image that cannot be read.

    Args:
        name: The file.
        reason: What is wrong with it.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"cannot read an image: {name} ({reason}); repair or remove the file, or see --bad-images")
        self.reason = reason


def read_image(data: bytes, name: str) -> Image.Image:
    """Decode a whole image file to RGB, see `to_rgb`.

    Args:
        data: The file's bytes.
        name: Its name, for the message.

    Raises:
        ImageError: if the bytes are not an image, or only part of one.
    """
    try:
        with decoded(data) as image:
            return to_rgb(image)
    except Exception as error:  # decoders raise almost anything on broken data
        raise ImageError(name, _reason(data, error)) from error


@contextlib.contextmanager
def decoded(data: bytes) -> Iterator[Image.Image]:
    """Decode the bytes of an image of a format that data sets have, and of a size that memory has room for.

    Pillow knows more formats; for one of them, EPS, it would run Ghostscript.

    Raises:
        ValueError: if it is larger than `MAX_PIXELS`, or its few bytes stand for very many pixels.
        Exception: almost any, from Pillow's decoders.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd metadata is no error
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            pixels = image.width * image.height
            if pixels > MAX_PIXELS:
                raise ValueError(f"{image.width}x{image.height} pixels, more than {MAX_PIXELS:,}")
            if pixels > MAX_RATIO * len(data) + 2**22:
                raise ValueError(f"{image.width}x{image.height} pixels in {len(data)} bytes, which is no picture")
            image.load()
            yield image


def _reason(data: bytes, error: Exception) -> str:
    if not data:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return "it is no image"
    return str(error) or type(error).__name__


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB with 8 bits per channel.

    Transparent pixels lie on white (an alpha channel, or the transparent colour of a palette or grey image). 16-bit
    images are scaled, 65535 to 255, where Pillow would clip. Float images count as 0 to 1, or, where a value is
    above 1, as 0 to 255. One-bit images become black and white, CMYK and the rest as Pillow converts them. The
    orientation tag of photographs is not applied, as in torchvision and timm.
    """
    if image.mode in _SIXTEEN_BIT:
        values = np.asarray(image).astype(np.int32).clip(0, 65535)
        values += 128  # to the nearest: 257 is odd, so that no value lies between two
        values //= 257
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        values = np.array(image, dtype=np.float32)
        np.nan_to_num(values, copy=False)
        if values.max(initial=0.0) <= 1.0:
            values *= 255.0
        np.rint(values.clip(0, 255, out=values), out=values)
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if image.mode in _ALPHA or "transparency" in image.info:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(page, layer).convert("RGB")
    return image.convert("RGB")
