"""The readers of files on the side of images, each with a good input."""

from __future__ import annotations

import functools
import json
import pickle
import random
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.fuzz.engine import Reader
from tests.fuzz.mutate import damage_bytes, damage_checkpoint, damage_json, damage_lines
from tests.vision.conftest import CLASSES, TINY, make_image, make_split
from tests.vision.segment.conftest import TINY as TINY_SEGMENTER
from tests.vision.segment.conftest import make_set
from vision.cli.config_file import read_yaml
from vision.data.cifar import CIFAR_FOLDERS, load_cifar
from vision.data.classes import imagenet_names
from vision.data.files import open_tree
from vision.data.images import read_image
from vision.evaluation.real_labels import RealLabels
from vision.models.weights.load import read_state_dict
from vision.segment.files import read_class_names
from vision.segment.labels import LabelRules, read_annotation
from vision.segment.load_trained import load_segmenter
from vision.segment.palette import read_palette
from vision.token_label.map_parts import LabelParts
from vision.token_label.read_maps import LabelMap, open_label_maps

FILES = ["cat/0.png", "cat/1.png", "owl/2.png"]
SIZES = (b"\x00\x00\xff\xff", b"\xff\xff\xff\xff", b"\x00\x01\x00\x00", b"\x7f\xff\x00\x00")
OTHER_MODES = ("png-16", "png-p", "png-a", "png-1", "tiff-l", "tiff-16")
QUICK = ("--device", "cpu", "-j", "0")


def _write(path: Path, content: str | bytes | dict[str, Any] | list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, (dict, list)):
        content = json.dumps(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@functools.cache
def images() -> Path:
    """A folder of tiny images."""
    root = Path(tempfile.mkdtemp())
    make_split(root / "train", count=2)
    make_split(root / "val", count=1, first=100)
    return root


@functools.cache
def trained() -> Path:
    """The folder of a run on them."""
    from vision.train import main

    output = Path(tempfile.mkdtemp())
    words = ["--epochs", "1", "-b", "2", "--model-ema", "--output", str(output), "--experiment", "run"]
    main([str(images()), *TINY, *words])
    return output / "run"


@functools.cache
def shapes() -> Path:
    """A tiny set for segmentation."""
    return make_set(Path(tempfile.mkdtemp()) / "shapes", {"training": 2, "validation": 1})


@functools.cache
def segmenter() -> Path:
    """The folder of a run on it."""
    from vision.segment.train import main

    output = Path(tempfile.mkdtemp())
    words = ["-b", "2", "--steps", "1", "--val-steps", "1", "--output", str(output), "--experiment", "run"]
    main([str(shapes()), *TINY_SEGMENTER, *words])
    return output / "run"


def _checkpoint(folder: Path) -> list[Path]:
    shutil.copytree(trained(), folder / "run", dirs_exist_ok=True)
    return [folder / "run" / "last.pth.tar"]


def _segmenter(folder: Path) -> list[Path]:
    shutil.copytree(segmenter(), folder / "run", dirs_exist_ok=True)
    return [folder / "run" / "last.pth.tar"]


def _validate(folder: Path) -> None:
    from vision.validate import main

    main([str(images()), "--checkpoint", str(folder / "run" / "last.pth.tar"), "-b", "3", *QUICK])


def _resume(folder: Path) -> None:
    from vision.train import main

    words = ["--epochs", "1", "-b", "2", "--model-ema", "--output", str(folder / "again"), "--experiment", "run"]
    main([str(images()), *TINY, *words, "--resume", str(folder / "run" / "last.pth.tar")])


def _resume_segmenter(folder: Path) -> None:
    from vision.segment.train import main

    words = ["-b", "2", "--steps", "1", "--val-steps", "1", "--output", str(folder / "again"), "--experiment", "run"]
    main([str(shapes()), *TINY_SEGMENTER, *words, "--resume", str(folder / "run" / "last.pth.tar")])


def _load_segmenter(folder: Path) -> None:
    load_segmenter(str(folder / "run" / "last.pth.tar"))


def _maps(folder: Path) -> list[Path]:
    from vision.token_label.write_maps import write_label_maps

    with write_label_maps(folder / "maps", list(CLASSES), FILES, (2, 3), 2) as writer:
        for index in range(len(FILES)):
            scores, classes = torch.randn(3, 2, 3).topk(2, dim=0)
            writer.put(index, LabelMap(scores.half(), classes))
    return [folder / "maps" / name for name in ("header.json", "scores.npy", "classes.npy")]


def _read_maps(folder: Path) -> None:
    maps = open_label_maps(folder / "maps", list(CLASSES))
    for name in FILES:
        maps.read(name)


def _torch_maps(folder: Path) -> list[Path]:
    paths = [(folder / "maps" / name).with_suffix(".pt") for name in FILES]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        scores, classes = torch.randn(3, 2, 3).topk(2, dim=0)
        torch.save(torch.stack([scores, classes]).half(), path)
    return paths


def _parts(folder: Path) -> list[Path]:
    parts = _label_parts(folder)
    scores, classes = torch.randn(3, 2, 3).topk(2, dim=0)
    parts.write(0, {0: LabelMap(scores.half(), classes), 2: LabelMap(scores.half(), classes)})
    return list((folder / "parts").glob("*.npz"))


def _label_parts(folder: Path) -> LabelParts:
    return LabelParts(folder / "parts", {"model": "sot_micro", "top-k": 2}, 4, 3, (2, 2, 3))


def _read_parts(folder: Path) -> None:
    parts = _label_parts(folder)
    parts.is_made(0)
    parts.find(0)
    parts.read(0)


def _real_labels(folder: Path) -> list[Path]:
    return [_write(folder / "real.json", [[number % 1000] for number in range(50_000)])]


@functools.cache
def _names() -> list[str]:
    return [f"x/ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 50_001)]


def _read_real_labels(folder: Path) -> None:
    RealLabels(_names(), imagenet_names(), str(folder / "real.json"))


def _image(*formats: str) -> Any:
    def make(folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        for name in formats:
            ending, _, mode = name.partition("-")
            image = make_image(0, 1, 40)
            image = Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40) if mode == "16" else image
            image = image.convert({"p": "P", "a": "RGBA", "l": "L", "1": "1"}.get(mode, image.mode))
            image.save(folder / f"{name}.{ending}", **({"transparency": 3} if mode == "p" and ending == "png" else {}))
        return [folder / f"{name}.{name.partition('-')[0]}" for name in formats]

    return make


def _read_images(folder: Path) -> None:
    for path in folder.iterdir():
        read_image(path.read_bytes(), str(path))


def _damage_image(content: bytes, rng: random.Random) -> bytes:
    """Damage it, or claim another size where the format has it in its first bytes."""
    if rng.random() < 0.8:
        return damage_bytes(content, rng)
    data = bytearray(content)
    place = rng.randrange(4, min(60, len(data) - 4))
    data[place : place + 4] = rng.choice(
        (b"\x00\x00\xff\xff", b"\xff\xff\xff\xff", b"\x00\x01\x00\x00", b"\x7f\xff\x00\x00")
    )
    return bytes(data)


def _annotation(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((20, 30), 2, np.uint8)).save(folder / "a.png")
    return [folder / "a.png"]


def _read_annotation(folder: Path) -> None:
    read_annotation((folder / "a.png").read_bytes(), "a.png", (20, 30), LabelRules(4))


def _cifar(folder: Path) -> list[Path]:
    root = folder / CIFAR_FOLDERS["cifar10"]
    generator = np.random.default_rng(0)
    data = {"data": generator.integers(0, 256, (6, 3072)).astype(np.uint8), "labels": [0, 1, 2, 3, 4, 9]}
    meta = {"label_names": [f"class{number}" for number in range(10)]}
    return [
        _write(root / name, pickle.dumps(content, protocol=2))
        for name, content in (("batches.meta", meta), ("data_batch_1", data), ("test_batch", data))
    ]


def _read_cifar(folder: Path) -> None:
    for train in (True, False):
        load_cifar("cifar10", str(folder), train)


def _image_tar(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "images.tar", "w") as archive:
        archive.add(images(), ".")
    return [folder / "images.tar"]


def _read_image_tar(folder: Path) -> None:
    tree = open_tree(folder / "images.tar")
    for path in tree.files():
        tree.read(path)


def _names_file(folder: Path) -> list[Path]:
    lines = ["wall", "sky", "tree", "road"]
    colors = ["#ff0000", "0 255 0", "1,2,3", "9 9 9"]
    return [_write(folder / "names.txt", "\n".join(lines)), _write(folder / "palette.txt", "\n".join(colors))]


def _read_names(folder: Path) -> None:
    read_class_names(str(folder), str(folder / "names.txt"), 4)
    read_palette(str(folder / "palette.txt"), 4)


def _config(folder: Path) -> list[Path]:
    text = (Path(__file__).parents[2] / "vision" / "configs" / "sot_tiny.yaml").read_bytes()
    hvt = {"patch_size": 16, "num_heads": 3, "epochs": 2, "input_size": 224, "lr": 0.1}
    return [_write(folder / "config.yaml", text), _write(folder / "hvt.json", hvt)]


def _read_config(folder: Path) -> None:
    for path in folder.iterdir():
        read_yaml(path)


def _damage_text(content: bytes, rng: random.Random) -> bytes:
    return (
        damage_json(content, rng)
        if content.startswith(b"{") and b"NUMPY" not in content
        else damage_lines(content, rng)
    )


def _damage_map(content: bytes, rng: random.Random) -> bytes:
    return damage_bytes(content, rng) if content.startswith(b"\x93NUMPY") else damage_json(content, rng)


def _damage_real(content: bytes, rng: random.Random) -> bytes:
    """Change one label of many, or bytes."""
    if rng.random() < 0.5:
        return damage_bytes(content, rng)
    values = json.loads(content)
    values[rng.randrange(len(values))] = rng.choice(([], [-1], [1000], ["a"], None, 3, [[1]], [0.5], [2**70], [True]))
    return json.dumps(values[: rng.choice((len(values), 10))]).encode()


def _bare_weights(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"model": {"a.weight": torch.ones(3, 4), "module.b": torch.ones(2)}, "arch": "vit"}, folder / "w.pth")
    return [folder / "w.pth"]


VISION_READERS = (
    Reader("vision checkpoint, validate", _checkpoint, _validate, damage_checkpoint),
    Reader("vision checkpoint, resume", _checkpoint, _resume, damage_checkpoint),
    Reader("vision checkpoint, weights", _bare_weights, lambda f: read_state_dict(f / "w.pth"), damage_checkpoint),
    Reader("segmentation checkpoint", _segmenter, _load_segmenter, damage_checkpoint),
    Reader("segmentation checkpoint, resume", _segmenter, _resume_segmenter, damage_checkpoint),
    Reader("label maps in a folder", _maps, _read_maps, _damage_map),
    Reader("label maps in torch files", _torch_maps, _read_maps, damage_checkpoint),
    Reader("parts of label maps", _parts, _read_parts, damage_checkpoint),
    Reader("ReaL labels", _real_labels, _read_real_labels, _damage_real),
    Reader("images", _image("png", "jpeg", "bmp", "ppm", "webp", "gif", "tiff"), _read_images, _damage_image),
    Reader(
        "images of other modes",
        _image(*OTHER_MODES),
        _read_images,
        _damage_image,
    ),
    Reader("annotations", _annotation, _read_annotation, _damage_image),
    Reader("CIFAR", _cifar, _read_cifar, damage_bytes),
    Reader("tar of images", _image_tar, _read_image_tar, damage_bytes),
    Reader("class names and palettes", _names_file, _read_names, damage_lines),
    Reader("configurations", _config, _read_config, _damage_text),
)
