"""Validate UperNet: mean IoU, the IoU of each class, pixel accuracy and mean accuracy.

python vision/segment/validate.py DIR --checkpoint out/segment/RUN/model_best.pth.tar
python vision/segment/validate.py DIR --checkpoint upernet_lvvit_s.pth --model lvvit_s     # of mmsegmentation
python vision/segment/validate.py DIR --checkpoint RUN/model_best.pth.tar --multi-scale 0.5 0.75 1 1.25 1.5 1.75 --flip
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from sot_base.command_help import show_help
from vision.segment.options import validate_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(validate_parser)

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sot_base.errors import UsageError, run_main
from vision.cli.config_file import parse_args
from vision.cli.device import command_processes, default_workers, init_device, memory_format
from vision.cli.run_files import write_json, write_rows
from vision.data import BadImages, Loader
from vision.evaluation.dry_run import dry_run
from vision.evaluation.evaluate import evaluate
from vision.segment.dataset import PairSet, eval_loader, normalize
from vision.segment.files import PairSource
from vision.segment.inference import Inference, create_pixel_predict
from vision.segment.load_trained import Segmenter, as_trained, load_segmenter
from vision.segment.metrics import ConfusionMatrix, require_pixels

__all__ = ["main", "validate", "validate_parser"]


@command_processes()
def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, validate and print."""
    validate(parse_args(validate_parser(), argv))


def validate(args: Namespace) -> dict[str, Any]:
    """Validate as the options say, write the requested files and print the metrics.

    Returns:
        ``miou``, ``pixel_accuracy`` and ``mean_accuracy`` in percent, ``images`` and ``bad_images``; nothing for a dry
        run.
    """
    device = init_device(args)
    if args.data_dir is None:
        raise UsageError("no data: DIR; give the folder that has images/ and annotations/")
    trained = load_segmenter(args.checkpoint, args.model, args.model_kwargs, args.pretrained)
    inference = as_trained(args, trained, device)
    dataset = PairSet(PairSource(args.data_dir, args.val_split, args.max_pixels), trained.rules)
    bad_images = BadImages(args.bad_images)
    workers = default_workers(args.workers, args.world_size)
    loader = eval_loader(dataset, args.rank, args.world_size, workers, device, bad_images)
    layout = memory_format(args.channels_last)
    model = trained.model.to(device=device, memory_format=layout)
    if args.dry_run:
        _dry_run(args, trained, inference, loader)
        return {}
    confusion = ConfusionMatrix(trained.rules.num_classes, trained.rules.ignore_index, device)
    evaluate(create_pixel_predict(model, inference, trained.images, layout, args.compile), loader, confusion.update)
    confusion.reduce()
    counts = torch.tensor([len(loader) - bad_images.count, bad_images.count], device=device)
    if args.distributed:
        dist.all_reduce(counts)
    images, bad = counts.tolist()
    if not images:
        raise UsageError(f"no image can be read: {dataset.source.where}; repair the files")
    require_pixels(confusion.counts, dataset.source.where)
    metrics = {**confusion.compute(), "images": images, "bad_images": bad}
    if args.rank == 0:
        _report(args, metrics, confusion, trained.class_names)
    return metrics


def _dry_run(args: Namespace, trained: Segmenter, inference: Inference, loader: Loader) -> None:
    """Print the options and the cross-entropy of the pixels of the first image that can be read."""
    batch = next((batch for batch in loader if len(batch[0])), None)
    if batch is None:
        raise UsageError("no image can be read: --val-split; repair the files")
    pixels, classes = batch
    batch = normalize(pixels, trained.images["mean"], trained.images["std"]), classes
    ignore_index = trained.rules.ignore_index

    def cross_entropy(probabilities: Tensor, classes: Tensor) -> Tensor:
        return F.nll_loss(probabilities.clamp_min(1e-30).log(), classes, ignore_index=ignore_index)

    predict = partial(inference, trained.model.eval())
    facts = {"recipe": trained.recipe, "images": trained.images, "inference": inference.describe()}
    dry_run(args, facts, batch, predict, cross_entropy)


def _report(
    args: Namespace, metrics: dict[str, Any], confusion: ConfusionMatrix, class_names: Sequence[str] | None
) -> None:
    names = class_names or [f"class {index}" for index in range(confusion.num_classes)]
    rows = [{"class": name, **row} for name, row in zip(names, confusion.per_class(), strict=True)]
    print(  # noqa: T201
        f"mIoU {metrics['miou']:.2f} %, pixel accuracy {metrics['pixel_accuracy']:.2f} %, "
        f"mean accuracy {metrics['mean_accuracy']:.2f} %, {metrics['images']} images"
    )
    if metrics["bad_images"]:
        print(f"bad_images: {metrics['bad_images']}")  # noqa: T201
    for row in rows:
        if row["iou"] is not None:
            print(f"  {row['class']}: IoU {row['iou']:.2f} %, {row['pixels']} pixels")  # noqa: T201
    if args.per_class:
        write_rows(args.per_class, rows)
    if args.results:
        content = {"checkpoint": args.checkpoint, "data": args.data_dir, **metrics, "per_class": rows}
        write_json(args.results, content)


if __name__ == "__main__":
    run_main(main)
