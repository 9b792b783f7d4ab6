"""Images of every mode are read as they look."""

import io
import os
import struct
import subprocess
import zlib

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
        (b"this is text", "it is not an image"),
        (encode(Image.effect_noise((64, 64), 50), "jpeg")[:400], "runcated"),
        (encode(Image.effect_noise((64, 64), 50), "png")[:400], "runcated"),
    ],
)
def test_bad_files_are_named(data, reason):
    with pytest.raises(ImageError, match=r"folder/bad\.jpg") as info:
        read_image(data, "folder/bad.jpg")
    assert reason in info.value.reason
    assert isinstance(info.value, UsageError)


def test_sixteen_bits_are_rounded_to_the_nearest():
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    image = read_image(encode(Image.fromarray(values)), "x")
    expected = np.rint(values / 257.0).astype(np.uint8)
    assert np.array_equal(np.asarray(image)[..., 0], expected)


def png_of_size(width, height):
    """A PNG file of a few bytes that says it is large."""
    data = bytearray(encode(Image.new("L", (1, 1))))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


@pytest.mark.parametrize(
    "size,problem",
    [((10_000, 10_000), "10000x10000 pixels, more than"), ((9000, 9000), "9000x9000 pixels in .* no picture")],
)
def test_a_small_file_that_stands_for_very_many_pixels(size, problem):
    with pytest.raises(ImageError, match=problem):
        read_image(png_of_size(*size), "x")


def test_a_page_of_one_colour_is_read():
    for mode in ("1", "L", "P", "RGB"):
        assert read_image(encode(Image.new(mode, (1500, 1500))), "x").size == (1500, 1500)


def test_no_other_program_is_started(tmp_path, monkeypatch):
    """Pillow would run Ghostscript on an EPS file, whatever its name."""
    eps = encode(Image.new("RGB", (8, 8)), "eps")
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(os, "system", None)
    with pytest.raises(ImageError, match="it is not an image"):
        read_image(eps, "picture.png")


def test_the_limit_of_pixels():
    data = encode(Image.effect_noise((20, 10), 50))
    with pytest.raises(ImageError, match=r"\(20x10 pixels, more than 199; see --max-pixels\)"):
        read_image(data, "x", max_pixels=199)
    assert read_image(data, "x", max_pixels=200).size == (20, 10)
    assert read_image(data, "x", max_pixels=0).size == (20, 10)


def test_a_limit_above_pillows_own(monkeypatch):
    """Pillow refuses images of more than twice its limit: the option goes first, and Pillow's stays for others."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    assert read_image(encode(Image.effect_noise((20, 10), 50)), "x").size == (20, 10)
    assert Image.MAX_IMAGE_PIXELS == 50


@pytest.mark.parametrize("mode", ["I;16", "F", "F up to 3", "RGBA", "P", "1", "RGB"])
def test_large_images_are_converted_in_bands(mode, monkeypatch):
    """The bands are those of a small image here: all modes give what the whole gives."""
    generator = np.random.default_rng(0)
    bytes_ = generator.integers(0, 256, (50, 40, 4), dtype=np.uint8)
    floats = generator.random((50, 40), dtype=np.float32) * np.linspace(0.1, 1, 50, dtype=np.float32)[:, None]
    image = {
        "I;16": Image.fromarray(bytes_[..., 0].astype(np.uint16) * 257),
        "F": Image.fromarray(floats),
        "F up to 3": Image.fromarray(floats * 3),
        "P": Image.fromarray(bytes_[..., 0]).convert("P"),
    }.get(mode) or Image.fromarray(bytes_, "RGBA").convert(mode)
    if mode == "P":
        image.info["transparency"] = 3
    whole = to_rgb(image)
    monkeypatch.setattr("vision.data.images._BAND", 70)
    assert to_rgb(image).tobytes() == whole.tobytes()


UPRIGHT = Image.fromarray(np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8))
STORED = {  # what a camera stores for each orientation tag
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("tag", STORED)
@pytest.mark.parametrize("kind", ["png", "tiff", "webp"])
def test_images_are_read_as_they_look(tag, kind):
    exif = Image.Exif()
    exif[0x0112] = tag
    lossless = {"lossless": True} if kind == "webp" else {}
    data = encode(UPRIGHT.transpose(STORED[tag]), kind, exif=exif, **lossless)
    assert read_image(data, "x").tobytes() == UPRIGHT.tobytes()


def test_a_damaged_tag_says_nothing():
    data = encode(UPRIGHT, "png", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert read_image(data, "x").tobytes() == UPRIGHT.tobytes()
