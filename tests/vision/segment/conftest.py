"""A tiny set in ADE20K's layout, a tiny model, and training inside the test's process."""

import csv

import numpy as np
import pytest
from PIL import Image, ImageDraw

COLORS = {2: (220, 40, 40), 3: (40, 200, 60), 4: (40, 60, 230)}  # of the annotations' values; 1 is the grey ground
TINY = (
    *("--model", "lvvit_t", "--model-kwargs", "depth=4", "embed_dim=32", "num_heads=2", "stem_width=8"),
    *("--crop-size", "64", "--decoder-channels", "16", "--last-channels", "32", "--num-classes", "4"),
    *("--device", "cpu", "-j", "0"),
)
RECIPE = {
    "model": "lvvit_t",
    "kwargs": {"depth": 4, "embed_dim": 32, "num_heads": 2, "stem_width": 8},
    "num_classes": 4,
    "crop_size": 64,
    "decoder_channels": 16,
    "last_channels": 32,
}


def make_pair(number, size=64):
    """An image of a red square, a green disc and a blue square on grey noise, and its annotation."""
    generator = np.random.default_rng(number)
    image = Image.fromarray(generator.integers(90, 120, (size, size, 3)).astype(np.uint8))
    annotation = Image.new("L", (size, size), 1)
    corners = generator.permutation([(0, 0), (0, 1), (1, 0), (1, 1)])[:3] * size // 2
    for (value, color), corner in zip(COLORS.items(), corners.tolist(), strict=True):
        x, y = (place + int(generator.integers(0, 6)) for place in corner)
        for picture, fill in ((image, color), (annotation, value)):
            pen = ImageDraw.Draw(picture)
            draw = pen.ellipse if value == 3 else pen.rectangle
            draw((x, y, x + size // 2 - 8, y + size // 2 - 8), fill=fill)
    return image, annotation


def make_set(root, splits, size=64):
    """Folders of images and annotations, so many in each split."""
    for split, count in splits.items():
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for number in range(count):
            image, annotation = make_pair(number, size)
            image.save(root / "images" / split / f"{number}.png")
            annotation.save(root / "annotations" / split / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """Four images, which validation sees as well. Tests must not change it."""
    return make_set(tmp_path_factory.mktemp("shapes"), {"training": 4, "validation": 2})


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Run vision/segment/train.py on a tiny model in an empty working directory; gives the run's folder."""
    from vision.segment import train as module

    monkeypatch.chdir(tmp_path)

    def run(data, *words, name="run"):
        module.main([str(data), *TINY, "--output", "runs", "--experiment", name, *map(str, words)])
        return tmp_path / "runs" / name

    return run


@pytest.fixture(scope="session")
def trained(shapes, tmp_path_factory):
    """The folder of a run that learns the four images by heart."""
    from vision.segment import train as module

    words = ["--val-split", "training", "-b", 4, "--steps", 120, "--val-steps", 60, "--lr", "5e-3", "--drop-path", 0]
    words += ["--drop", 0, "--hflip", 0, "--no-distort", "--scale", 1, 1, "--class-limit", 1]
    output = tmp_path_factory.mktemp("trained")
    module.main([str(shapes), *TINY, "--output", str(output), "--experiment", "run", *map(str, words)])
    return output / "run"


def rows(folder):
    """The validations in a run's log."""
    with (folder / "summary.csv").open() as file:
        return list(csv.DictReader(file))
