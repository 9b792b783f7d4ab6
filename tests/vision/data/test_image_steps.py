"""Strips are cut before they are resized; models of one channel get grey images."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.vision.conftest import make_image
from vision.data import eval_transform
from vision.data.augment import create_train_transform
from vision.data.image_steps import LimitRatio

CONFIG = {"input_size": (3, 8, 8), "interpolation": "bilinear", "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0}


@pytest.mark.parametrize(
    "size, kept",
    [((30, 10), (30, 10)), ((31, 10), (30, 10)), ((10, 100), (10, 30)), ((5, 5), (5, 5)), ((1, 1000), (1, 3))],
)
def test_the_middle_of_a_strip_is_kept(size, kept):
    values = np.arange(size[0] * size[1]).reshape(size[::-1]) % 251
    image = LimitRatio(3)(Image.fromarray(values.astype(np.uint8)))
    assert image.size == kept
    left, top = ((whole - part) // 2 for whole, part in zip(size, kept, strict=True))
    assert image.getpixel((0, 0)) == values[top, left]


@pytest.mark.parametrize("transform", [eval_transform(CONFIG), create_train_transform(CONFIG, train_crop_mode="rkrc")])
@pytest.mark.parametrize("size", [(40_000, 1), (1, 40_000)])
def test_a_strip_is_never_made_large(transform, size, monkeypatch):
    resize, largest = Image.Image.resize, []

    def note(self, size, *args, **kwargs):
        largest.append(size[0] * size[1])
        return resize(self, size, *args, **kwargs)

    monkeypatch.setattr(Image.Image, "resize", note)
    assert transform(Image.new("RGB", size)).shape == (3, 8, 8)
    assert max(largest) <= 2 * 100 * 8 * 8  # the crop mode varies it a little


@pytest.mark.parametrize("as_bytes", [True, False])
def test_grey(as_bytes):
    grey = {**CONFIG, "input_size": (1, 8, 8), "mean": (0.0,), "std": (1.0,)}
    image = make_image(1, 1)
    expected = torch.from_numpy(np.array(image.resize((8, 8), Image.Resampling.BILINEAR).convert("L")))[None]
    found = eval_transform(grey, as_bytes)(image)
    assert torch.equal(found, expected if as_bytes else expected.float() / 255)
    assert create_train_transform(grey, auto_augment="rand-m9-mstd0.5")(image).shape == (1, 8, 8)
