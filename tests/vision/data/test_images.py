"""Images of every mode are read as they look."""

import io

import numpy as np
import pytest
from PIL import Image

from sot_base.errors import UsageError
from vision.data.images import ImageError, read_image, to_rgb

RED = (255, 0, 0)


def encode(image, kind="png", **kwargs):
    stream = io.BytesIO()
    image.save(stream, kind, **kwargs)
    return stream.getvalue()


def pixel(data):
    image = read_image(data, "x")
    assert image.mode == "RGB"
    return image.getpixel((0, 0))


def test_palette():
    image = Image.new("P", (2, 2), 1)
    image.putpalette([0, 0, 0, *RED])
    assert pixel(encode(image)) == RED
    assert pixel(encode(image, transparency=1)) == (255, 255, 255)
    assert pixel(encode(image, transparency=0)) == RED


@pytest.mark.parametrize(
    "mode, color, expected",
    [
        ("RGBA", (*RED, 255), RED),
        ("RGBA", (*RED, 0), (255, 255, 255)),
        ("RGBA", (0, 0, 0, 51), (204, 204, 204)),
        ("LA", (100, 255), (100, 100, 100)),
        ("LA", (0, 0), (255, 255, 255)),
        ("1", 1, (255, 255, 255)),
        ("1", 0, (0, 0, 0)),
        ("L", 77, (77, 77, 77)),
        ("I;16", 65535, (255, 255, 255)),
        ("I;16", 257 * 77, (77, 77, 77)),
        ("I;16", 200, (1, 1, 1)),  # not 200: a dark image stays dark
    ],
)
def test_png_modes(mode, color, expected):
    assert pixel(encode(Image.new(mode, (2, 2), color))) == expected


def test_grey_with_transparent_value():
    assert pixel(encode(Image.new("L", (2, 2), 7), transparency=7)) == (255, 255, 255)


def test_cmyk_jpeg():
    assert pixel(encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "jpeg")) == RED


@pytest.mark.parametrize("scale, value, expected", [(1.0, 0.5, 128), (255.0, 0.5, 128), (1.0, np.nan, 0)])
def test_float_tiff(scale, value, expected):
    values = np.full((2, 2), value * scale, dtype=np.float32)
    values[1, 1] = scale  # the maximum says whether 1 or 255 is white
    assert pixel(encode(Image.fromarray(values), "tiff")) == (expected,) * 3


def test_other_modes_are_converted():
    assert to_rgb(Image.new("RGB", (2, 2), RED).convert("HSV")).getpixel((0, 0)) == RED
    assert to_rgb(Image.new("RGBa", (2, 2), (0, 0, 0, 0))).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "the file is empty"),
        (b"this is text", "it is no image"),
        (encode(Image.effect_noise((64, 64), 50), "jpeg")[:400], "runcated"),
        (encode(Image.effect_noise((64, 64), 50), "png")[:400], "runcated"),
    ],
)
def test_bad_files_are_named(data, reason):
    with pytest.raises(ImageError, match=r"folder/bad\.jpg") as info:
        read_image(data, "folder/bad.jpg")
    assert reason in info.value.reason
    assert isinstance(info.value, UsageError)
