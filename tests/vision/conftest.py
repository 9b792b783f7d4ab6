"""Small images in folders, and the command lines run inside the test's process."""

import csv
from collections import defaultdict

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

CLASSES = ("cat", "dog", "owl")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


def make_image(class_index, number, size=12):
    """An image whose mean colour tells its class, with noise."""
    generator = np.random.default_rng([class_index, number])
    image = generator.integers(0, 80, (size, size, 3))
    image[..., class_index % 3] += 150
    return Image.fromarray(image.astype(np.uint8))


def make_split(folder, classes=CLASSES, count=4, first=0):
    """Folders of images, one a class."""
    for index, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            make_image(index, number).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """DIR/train and DIR/val of three classes: 5 and 2 images each; a blank is in the path. Tests must not change it."""
    root = tmp_path_factory.mktemp("tiny images")
    make_split(root / "train", count=5)
    make_split(root / "val", count=2, first=100)
    return root


TINY = (
    *("--model", "sot_micro", "--img-size", "8", "--model-kwargs", "depth=1", "embed_dim=16", "num_heads=2"),
    *("--device", "cpu", "-j", "0"),
)


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Run vision/train.py on a tiny model in an empty working directory; gives the run's folder."""
    from vision import train as module

    monkeypatch.chdir(tmp_path)

    def run(data, *words, name="run"):
        module.main([str(data), *TINY, "--output", "runs", "--experiment", name, *map(str, words)])
        return tmp_path / "runs" / name

    return run


def load(folder, name="last"):
    """A checkpoint, read as strictly as torch can."""
    return torch.load(folder / f"{name}.pth.tar", weights_only=True)


def weights(folder, name="last"):
    """The weights in a checkpoint."""
    return load(folder, name)["state_dict"]


def rows(folder):
    """The epochs in a run's log."""
    with (folder / "summary.csv").open() as file:
        return list(csv.DictReader(file))


def printed_options(text):
    """The options and facts that a dry run printed, None for those that it did not."""
    return defaultdict(lambda: None, yaml.safe_load(text[: text.rindex("loss of the first ")]))


def assert_same_state(first, second):
    """Two nested states are equal bit for bit."""
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same_state(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same_state(one, other)
    else:
        assert first == second


@pytest.fixture(scope="session")
def trained(images, tmp_path_factory):
    """The folder of a run of two epochs on the tiny images, averaged weights included."""
    from vision import train as module

    output = tmp_path_factory.mktemp("trained")
    words = ["--epochs", "2", "-b", "4", "--lr", "3e-3", "--model-ema", "--model-ema-decay", "0.5"]
    module.main([str(images), *TINY, "--output", str(output), "--experiment", "run", *words])
    return output / "run"


def save_imagenet_model(path):
    """A tiny model of ImageNet's 1,000 classes, as bare weights; gives the words that say what it is."""
    import timm

    import vision  # noqa: F401  (registers the models)

    torch.manual_seed(1)
    words = (
        "--model-kwargs",
        "depth=1",
        "embed_dim=16",
        "num_heads=2",
        "--img-size",
        "8",
        "--device",
        "cpu",
        "-j",
        "0",
    )
    model = timm.create_model("sot_micro", num_classes=1000, img_size=8, depth=1, embed_dim=16, num_heads=2)
    torch.nn.init.normal_(model.head.cls_fc.bias)
    torch.save(model.state_dict(), path)
    return words
