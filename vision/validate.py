"""Validate a model on a data set: top-1, top-5, the accuracy of each class, and which classes are confused.

Of a model of ``--multi-label``: mean average precision, F1 and exact matches.

python vision/validate.py DIR --checkpoint out/train/RUN/model_best.pth.tar
python vision/validate.py DIR SoT_Tiny -b 256 --checkpoint SoT_Tiny.pth.tar             # a published checkpoint
python vision/validate.py IMAGENET_A SoT_Tiny --checkpoint SoT_Tiny.pth.tar --imagenet-a
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sot_base.command_help import show_help
from vision.cli.command_options import validate_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(validate_parser)

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from sot_base.errors import UsageError, run_main
from sot_visual.plots import draw_calibration, draw_confusion
from vision.cli.config_file import parse_args
from vision.cli.device import command_processes, default_workers, init_device, memory_format
from vision.cli.run_files import write_json, write_rows
from vision.data import BadImages, ImageSet, create_eval_loader, describe, match_classes, names_for_model, open_source
from vision.data.classes import imagenet_a_names
from vision.data.multi_label import MultiLabelSet, open_multi_label
from vision.evaluation.dry_run import dry_run
from vision.evaluation.evaluate import create_predict, evaluate
from vision.evaluation.load_trained import TrainedModel, load_trained
from vision.evaluation.metrics import ClassEvaluator, warn_if_collapsed
from vision.evaluation.multi_label import MultiLabelEvaluator
from vision.evaluation.real_labels import RealLabels


@command_processes()
def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, validate and print."""
    validate(parse_args(validate_parser(), argv))


def validate(args: Namespace) -> dict[str, Any]:
    """Validate as the options say, write the requested files and print the metrics.

    Returns:
        Loss, top1, top5 (percent), the number of images, and what else was counted; an empty dictionary for a dry run.
    """
    device = init_device(args)
    trained = load_trained(args, device)
    _check_options(args, trained)
    dataset, names, evaluator = (_open_multi_label if trained.multi_label else _open_classes)(args, trained, device)
    if args.dry_run:
        batch = next(iter(create_eval_loader(dataset, trained.data_config, 8, device=device)))
        facts = {"recipe": trained.recipe, "data_config": trained.data_config, "weights": trained.weights}
        loss = binary_cross_entropy_with_logits if trained.multi_label else cross_entropy
        dry_run(args, facts, batch, create_predict(trained.model, trained.autocast), loss)
        return {}
    observers = [evaluator.update]
    if args.real_labels is not None:
        real_labels = RealLabels(dataset.names(), names, args.real_labels or None, args.world_size)
        observers.append(real_labels.update)
    confidences: list[Tensor] = []
    if args.calibration is not None:
        observers.append(lambda output, target: confidences.append(_confidence(output, target)))
    bad_images = BadImages(args.bad_images)
    workers = default_workers(args.workers, args.world_size)
    loader = create_eval_loader(
        dataset, trained.data_config, args.batch_size, args.rank, args.world_size, workers, device, bad_images
    )
    predict = create_predict(trained.model, trained.autocast, memory_format(args.channels_last), args.compile)
    evaluate(predict, loader, *observers)
    metrics = {**evaluator.compute(args.distributed), "images": evaluator.num_images}
    if args.real_labels is not None:
        metrics |= real_labels.accuracy()
    bad = torch.tensor(bad_images.count, device=device)
    if args.distributed:
        dist.all_reduce(bad)
    if bad:
        metrics["bad_images"] = int(bad)
    warn_if_collapsed(evaluator.collapsed(names), f"{dataset.source.where} by {trained.recipe['name']}")
    if args.rank == 0:
        _report(args, metrics, evaluator, names, trained.weights)
        if confidences:
            confidence, correct = torch.cat(confidences, dim=1).cpu().numpy()
            metrics["calibration_error"] = draw_calibration(confidence, correct > 0, args.calibration)
    return metrics


def _confidence(output: Tensor, target: Tensor) -> Tensor:
    """Probability of each predicted class, and whether it is right: (2, B)."""
    best, predicted = output.double().softmax(dim=1).max(dim=1)
    return torch.stack((best, (predicted == target).double()))


def _open_classes(
    args: Namespace, trained: TrainedModel, device: torch.device
) -> tuple[ImageSet, list[str], ClassEvaluator]:
    """The images with one class each, the names of the model's classes, and what counts."""
    dataset_name = args.dataset or trained.dataset
    source = open_source(args.data_dir, args.val_split, dataset_name, args.download, args.max_pixels)
    names = trained.class_names or names_for_model(trained.num_classes, source.class_names)
    dataset = ImageSet(source, class_index=match_classes(source.class_names, names, source.where))
    allowed = _imagenet_a(names, source.class_names) if args.imagenet_a else None
    return dataset, names, ClassEvaluator(trained.num_classes, device, allowed, confusion=len(names) <= 5000)


def _open_multi_label(
    args: Namespace, trained: TrainedModel, device: torch.device
) -> tuple[ImageSet, list[str], MultiLabelEvaluator]:
    """The same of images with any number of classes."""
    source, names = (
        open_multi_label(args.data_dir, args.val_split, args.label_column, args.max_pixels),
        trained.class_names,
    )
    dataset = MultiLabelSet(source, match_classes(source.class_names, names, source.where), trained.num_classes)
    return dataset, names, MultiLabelEvaluator(device, threshold=args.threshold)


def _check_options(args: Namespace, trained: TrainedModel) -> None:
    """Make sure that a model of several classes per image gets no single-label option."""
    given = {"imagenet_a": args.imagenet_a, "real_labels": args.real_labels is not None, "confusion": args.confusion}
    given |= {"calibration": args.calibration}
    unfit = next((name for name, value in given.items() if value), None)
    if args.calibration is not None and args.world_size > 1:
        raise UsageError("--calibration on several processes: the command line; use one")
    if trained.multi_label and unfit:
        raise UsageError(f"the model's images have any number of classes: --{unfit.replace('_', '-')}; leave it out")


def _imagenet_a(names: Sequence[str], data_names: Sequence[str]) -> list[int]:
    """The model's indices of ImageNet-A's classes, which must be the data's."""
    index = {name: position for position, name in enumerate(names)}
    missing = [name for name in imagenet_a_names() if name not in index]
    if missing:
        raise UsageError(f"--imagenet-a needs a model of ImageNet's classes: it lacks {missing[0]}; leave it out")
    others = sorted(set(data_names) - set(imagenet_a_names()))
    if others:
        raise UsageError(f"--imagenet-a: the data has {others[0]}, none of ImageNet-A's 200 classes; leave it out")
    return [index[name] for name in imagenet_a_names()]


def _report(
    args: Namespace,
    metrics: dict[str, Any],
    evaluator: ClassEvaluator | MultiLabelEvaluator,
    names: Sequence[str],
    weights: str,
) -> None:
    shown = [describe(name) for name in names]
    rows = evaluator.per_class(shown)
    print(f"{evaluator.headline(metrics)}, {metrics['images']} images, {weights} weights")  # noqa: T201
    for key in ("real_top1", "real_top5", "bad_images"):
        if key in metrics:
            print(f"{key}: {metrics[key]}")  # noqa: T201
    for line in evaluator.worst(rows):
        print(f"  {line}")  # noqa: T201
    if args.per_class:
        write_rows(args.per_class, rows)
    if args.confusion:
        if evaluator.confusion is None:
            raise UsageError(f"--confusion: {len(names)} classes are too many for a picture; use --per-class")
        draw_confusion(evaluator.confusion, shown, args.confusion)
    if args.results:
        content = {"checkpoint": args.checkpoint, "data": args.data_dir, "weights": weights, **metrics}
        write_json(args.results, {**content, "per_class": rows})


if __name__ == "__main__":
    run_main(main)
