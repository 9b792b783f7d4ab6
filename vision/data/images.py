"""Read image files of any kind as 8-bit RGB, as they look on a white page, and within limits of memory."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sot_base.errors import UsageError
from vision.data.names import MAX_PIXELS

__all__ = ["ENDINGS", "ImageError", "decoded", "read_image", "to_rgb", "unreadable_reason"]

Image.init()
_FOREIGN = {"EPS", "IPTC", "WMF"}  # run another program, or open any file within themselves
_STUBS = {"BUFR", "GRIB", "HDF5", "MPEG"}  # Pillow recognises them, and cannot decode them
FORMATS = tuple(name for name in Image.OPEN if name not in _FOREIGN | _STUBS)
ENDINGS = tuple(sorted(end for end, name in Image.registered_extensions().items() if name in (*FORMATS, "MPO")))
MAX_RATIO = 2000  # pixels per byte; a PNG of one colour has 1,000
_BAND = 2**22  # pixels that are converted at a time: large images need no second copy in a wider type
_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N", "I")  # Pillow reads signed 16-bit files as 32-bit "I"
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


def read_image(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode a whole image file to RGB, see `to_rgb`.

    Args:
        data: The file's bytes.
        name: Its name, for the message.
        max_pixels: The largest image; 0: any.

    Raises:
        ImageError: if the bytes are not an image, or only part of one, or of one that is larger.
    """
    try:
        with decoded(data, max_pixels) as image:
            return to_rgb(image)
    except Exception as error:  # decoders raise almost anything on broken data
        raise ImageError(name, unreadable_reason(data, error)) from error


@contextlib.contextmanager
def decoded(data: bytes, max_pixels: int = MAX_PIXELS) -> Iterator[Image.Image]:
    """Decode the bytes of an image of any format that Pillow decodes by itself, turned as its orientation tag says.

    Args:
        data: The file's bytes.
        max_pixels: The largest image; 0: any.

    Raises:
        ValueError: if it is larger, or its few bytes stand for very many pixels.
        Exception: almost any, from Pillow's decoders.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd metadata is not an error
        with _any_size(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image, len(data), max_pixels)
            image.load()
            with contextlib.suppress(Exception):  # a damaged tag says nothing; the pixels are whole
                ImageOps.exif_transpose(image, in_place=True)
            yield image


@contextlib.contextmanager
def _any_size() -> Iterator[None]:
    """Leave the limit of the size to `_check_size`, which knows the option."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _check_size(image: Image.Image, num_bytes: int, max_pixels: int) -> None:
    pixels = image.width * image.height
    if max_pixels and pixels > max_pixels:
        raise ValueError(f"{image.width}x{image.height} pixels, more than {max_pixels:,}; see --max-pixels")
    if pixels > MAX_RATIO * num_bytes + _BAND:
        raise ValueError(f"{image.width}x{image.height} pixels in {num_bytes} bytes, which cannot be a picture")


def unreadable_reason(data: bytes, error: Exception) -> str:
    """Why bytes could not be decoded."""
    if not data:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image"
    return str(error) or type(error).__name__


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB with 8 bits per channel.

    Transparent pixels lie on white (an alpha channel, or the transparent colour of a palette or grey image). 16-bit
    images are scaled, 65535 to 255, where Pillow would clip. Float images count as 0 to 1, or, where a value is
    above 1, as 0 to 255. One-bit images become black and white, CMYK and the rest as Pillow converts them.
    """
    if image.width * image.height <= _BAND:
        return _convert(image, _float_scale([image]))
    scale = _float_scale(_bands(image))
    page, top = Image.new("RGB", image.size), 0
    for band in _bands(image):
        page.paste(_convert(band, scale), (0, top))
        top += band.height
    return page


def _bands(image: Image.Image) -> Iterator[Image.Image]:
    """Cut an image into bands of about `_BAND` pixels, from top to bottom."""
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(top + rows, image.height)))


def _float_scale(bands: Iterable[Image.Image]) -> float:
    """What the values of a float image are multiplied by, from 0 to 255."""
    largest = max(_floats(band).max(initial=0.0) if band.mode == "F" else 0.0 for band in bands)
    return 255.0 if largest <= 1.0 else 1.0


def _floats(band: Image.Image) -> np.ndarray:
    return np.nan_to_num(np.array(band, dtype=np.float32), copy=False)


def _convert(image: Image.Image, float_scale: float) -> Image.Image:
    if image.mode in _SIXTEEN_BIT:
        values = np.asarray(image).astype(np.int32).clip(0, 65535)
        values += 128  # to the nearest: 257 is odd, so that no value lies between two
        values //= 257
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        values = np.rint((_floats(image) * np.float32(float_scale)).clip(0, 255))
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if image.mode in _ALPHA or "transparency" in image.info:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(page, layer).convert("RGB")
    return image.convert("RGB")
