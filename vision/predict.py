"""Predict the classes of images: names and probabilities as text, JSON or CSV.

python vision/predict.py PHOTO.jpg FOLDER --checkpoint out/train/RUN/model_best.pth.tar --format json
"""

from __future__ import annotations

import csv
import io
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sot_base.command_help import show_help
from vision.cli.command_options import predict_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(predict_parser)

import numpy as np
from PIL import Image

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError, run_main
from vision.cli.config_file import parse_args
from vision.cli.device import command_processes, default_workers, init_device, memory_format
from vision.data import BadImages, ImageSet, create_eval_loader, describe, read_image
from vision.data.classes import imagenet_names
from vision.data.files import find_images
from vision.data.names import MAX_PIXELS
from vision.evaluation.evaluate import create_predict
from vision.evaluation.load_trained import TrainedModel, load_trained


class PathSource:
    """Image files without labels; their targets are their positions.

    Args:
        paths: The files.
        max_pixels: The largest image that is read; 0: any.
    """

    def __init__(self, paths: Sequence[Path], max_pixels: int = MAX_PIXELS) -> None:
        self.max_pixels = max_pixels
        self.paths, self.where, self.class_names = list(paths), "the images given", []
        self.targets = np.arange(len(paths))

    def name(self, index: int) -> str:
        return str(self.paths[index])

    def image(self, index: int) -> Image.Image:
        return read_image(self.paths[index].read_bytes(), self.name(index), self.max_pixels)


@command_processes()
def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, predict and write."""
    args = parse_args(predict_parser(), argv)
    rows = predict(args)
    text = _WRITERS[args.format](rows)
    if args.output is None:
        sys.stdout.write(text)
    else:
        with atomic_file(args.output) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="surrogateescape")  # names of files may be any bytes


def predict(args: Namespace) -> list[dict[str, Any]]:
    """Predict as the options say.

    Returns:
        For each image its path, the ``class`` and ``probability``, and ``top``: the most probable classes in order;
        from a model of several classes an image also ``labels``: those whose probability reaches the threshold.
    """
    device = init_device(args)
    trained = load_trained(args, device)
    names = class_names(trained)
    predict = create_predict(trained.model, trained.autocast, memory_format(args.channels_last), args.compile)
    source = PathSource([path for path, _ in find_images(args.images)], args.max_pixels)
    workers = min(default_workers(args.workers), len(source.paths) // args.batch_size)
    bad_images = BadImages(args.bad_images)
    loader = create_eval_loader(
        ImageSet(source), trained.data_config, args.batch_size, workers=workers, device=device, bad_images=bad_images
    )
    rows = []
    for images, positions in loader:
        if not len(images):
            continue
        logits = predict(images)
        probabilities = logits.sigmoid() if trained.multi_label else logits.softmax(1)
        best = probabilities.topk(min(args.topk, trained.num_classes))
        found = zip(positions.tolist(), *(part.tolist() for part in best), strict=True)
        for place, (position, values, indices) in enumerate(found):
            top = [
                {"class": names[index], "description": describe(names[index]), "probability": round(value, 6)}
                for value, index in zip(values, indices, strict=True)
            ]
            row = {"image": source.name(position), **top[0], "top": top}
            if trained.multi_label:
                values = probabilities[place].tolist()
                row["labels"] = [name for name, value in zip(names, values, strict=False) if value >= args.threshold]
            rows.append(row)
    return rows


def class_names(trained: TrainedModel) -> list[str]:
    """The model's class names; ImageNet's for a model of 1,000 classes that was saved without names."""
    if trained.class_names is not None:
        return trained.class_names
    if trained.num_classes == len(imagenet_names()):
        return list(imagenet_names())
    raise UsageError("the checkpoint names no classes; use a checkpoint of vision/train.py")


def _as_text(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        best = ", ".join(f"{item['description']} {item['probability']:.3f}" for item in row["top"])
        labels = f"{', '.join(map(describe, row['labels'])) or 'no class'}; " if "labels" in row else ""
        lines.append(f"{row['image']}: {labels}{best}\n")
    return "".join(lines)


def _as_json(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps(rows, indent=1) + "\n"


def _as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    several = any("labels" in row for row in rows)
    writer.writerow(["image", "rank", "class", "description", "probability", *(["has_it"] if several else [])])
    for row in rows:
        for rank, item in enumerate(row["top"], start=1):
            has_it = [int(item["class"] in row["labels"])] if several else []
            probability = f"{item['probability']:.6f}"
            writer.writerow([row["image"], rank, item["class"], item["description"], probability, *has_it])
    return text.getvalue()


_WRITERS = {"text": _as_text, "json": _as_json, "csv": _as_csv}


if __name__ == "__main__":
    run_main(main)
