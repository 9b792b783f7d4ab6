"""Loading JPEGs with the toolkit's loader and with timm's, in training and in evaluation.

Without ``--data-dir`` seeded JPEGs of 500 x 375 pixels are drawn. Both sides use one process, the same batch size, 224
pixels and, in training, random crops and flips and timm's RandAugment ``rand-m9-mstd0.5``. In evaluation the batches
are compared, pixel by pixel. The floor is Pillow's decoding to RGB alone.

Time is a pass over all images, the median over the repetitions, in which contenders take turns: with one CPU thread its
CPU time, else wall time.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import create_dataset, create_loader

from benchmarks.report import Report, Row, benchmark_parser
from benchmarks.timing import take_turns
from vision.data.dataset import ImageSet
from vision.data.loaders import create_eval_loader, create_train_loader
from vision.data.sources import open_source

CONFIG = {
    "input_size": (3, 224, 224),
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bicubic",
    "crop_pct": 0.875,
}
AUGMENTATION = {"auto_augment": "rand-m9-mstd0.5"}
FLOOR = "Pillow's decoding"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = benchmark_parser(__doc__, repetitions=5, quick="8 images, one repetition")
    parser.add_argument("--data-dir", type=Path, help="folder of class folders; default: drawn images")
    parser.add_argument("--images", type=int, default=256, help="of those that are drawn")
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args(argv)
    if args.quick:
        args.images, args.repetitions, args.batch_size = 8, 1, 4
    report = Report(args, f"batch {args.batch_size}, median of {args.repetitions}")
    with tempfile.TemporaryDirectory() as folder:
        root = args.data_dir or draw_images(Path(folder), args.images)
        for training in (True, False):
            rows = compare(root, training, args.batch_size, args.repetitions, report.device)
            report.table(f"Loading for {'training' if training else 'evaluation'}; ratios to timm's loader", rows)
    report.save()


def draw_images(folder: Path, count: int) -> Path:
    """Write smooth random images with some noise, as JPEGs of two classes."""
    random = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        pixels = np.asarray(coarse, dtype=np.int16) + random.integers(-12, 13, (375, 500, 1), dtype=np.int16)
        path = folder / f"class{number % 2}" / f"{number:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return folder


def compare(root: Path, training: bool, batch_size: int, repetitions: int, device: torch.device) -> list[Row]:
    """Rows of a table."""
    stock = create_dataset("", str(root), split="")
    ours = ImageSet(open_source(str(root), "."))
    arguments: dict[str, Any] = {"batch_size": batch_size, "device": device}
    augmentation = AUGMENTATION if training else {}
    stock_loader = create_loader(
        stock, is_training=training, num_workers=0, persistent_workers=False, **CONFIG, **arguments, **augmentation
    )
    if training:
        our_loader = create_train_loader(ours, CONFIG, **arguments, **augmentation)
    else:
        our_loader = create_eval_loader(ours, CONFIG, **arguments)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    epochs = itertools.count(1)

    def read_next_epoch() -> int:
        if training:
            our_loader.sampler.set_epoch(next(epochs))  # other draws than the last pass had, as timm's loader has
        return _read(our_loader)

    steps = {
        "timm": lambda: _read(stock_loader),
        "vision": read_next_epoch,
        FLOOR: lambda: [Image.open(path).convert("RGB").load() for path in files],
    }
    counts = {"timm": _read(stock_loader), "vision": _read(our_loader), FLOOR: len(files)}
    same = None if training else _same(stock_loader, our_loader)
    turns = take_turns(steps, repetitions, device)
    return [
        {
            "": name,
            "ms per image": 1e3 * turns.median(name) / counts[name],
            "ratio": turns.ratio(name, "timm") * counts["timm"] / counts[name],
            "images": counts[name],
            **({} if training else {"same pixels": None if name == FLOOR else same}),
        }
        for name in steps
    ]


def _read(loader: Any) -> int:
    return sum(len(images) for images, _ in loader)


def _same(stock: Any, ours: Any) -> str:
    pairs = zip(stock, ours, strict=True)
    return "yes" if all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs) else "no"


if __name__ == "__main__":
    main()
