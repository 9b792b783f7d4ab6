"""Show which regions of an image a prediction depends on, in a figure or a self-contained HTML page.

python vision/visualize.py PHOTO.jpg FOLDER --checkpoint out/train/RUN/model_best.pth.tar --output maps.png
python vision/visualize.py PHOTO.jpg --model deit_tiny_distilled_patch16_224 --pretrained --method relevance
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sot_base.command_help import show_help
from vision.cli.command_options import MAX_COLUMNS, visualize_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(visualize_parser)

import torch

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError, run_main
from sot_base.names import name_key
from sot_visual.attribution import attribute
from sot_visual.check import check_table, draw_checks, usable_methods
from sot_visual.figures import save_figure
from sot_visual.outputs import check_figure, check_outputs, is_page
from sot_visual.plots import draw_spectrum
from sot_visual.spectrum import record_spectrum
from vision.cli.config_file import parse_args
from vision.cli.device import command_processes, default_workers, init_device
from vision.data import BadImages, ImageSet, create_eval_loader, describe
from vision.data.files import find_images
from vision.evaluation.load_trained import TrainedModel, load_trained
from vision.predict import PathSource, class_names
from vision.visualization.check import check_images
from vision.visualization.explain import explain_images
from vision.visualization.image_model import ImageModel
from vision.visualization.picture import CaptionedImage, draw_images, image_page

NOTHING_READ = "no image could be read: the command line; give others"


@command_processes()
def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and visualise."""
    args = parse_args(visualize_parser(), argv)
    outputs = check_outputs(args.output, figures_only=args.check)
    check_figure("--spectrum", args.spectrum)
    device = init_device(args)
    trained = load_trained(args, device)
    names = class_names(trained)
    chosen = _find_class(names, args.target)
    model = ImageModel(trained.model, trained.data_config["input_size"])
    paths = [path for path, _ in find_images(args.images)][: args.limit]
    if args.check:
        _check(args, trained, model, paths, outputs)
    elif args.spectrum:
        batches = _load_all(args, trained, paths, device)
        spectra = record_spectrum(model.head, lambda: [trained.model(images) for images in batches])
        draw_spectrum(*spectra, args.spectrum, f"{trained.recipe['name']}, {len(paths)} images")
    else:
        found = _explain(args, trained, model, paths, names, chosen)
        _write(found, outputs, f"{trained.recipe['name']}, {args.method.replace('_', ' ')}", args.method)


def _explain(
    args: Namespace,
    trained: TrainedModel,
    model: ImageModel,
    paths: Sequence[Path],
    names: Sequence[str],
    chosen: int | None,
) -> list[CaptionedImage]:
    found = []
    device = next(model.model.parameters()).device
    mean, std = (torch.tensor(trained.data_config[name], device=device).view(-1, 1, 1) for name in ("mean", "std"))
    for images, positions in _load(args, trained, paths, device):
        if not len(images):
            continue
        items = explain_images(model, images, images * std + mean, args.method, chosen, trained.multi_label)
        for item, position in zip(items, positions.tolist(), strict=True):
            truth = _truth(paths[position], names)
            found.append(
                CaptionedImage(
                    item,
                    str(paths[position]),
                    describe(names[item.prediction]),
                    describe(names[item.explained]),
                    None if item.without_words is None else describe(names[item.without_words]),
                    None if truth is None else describe(truth),
                )
            )
    return found


def _write(found: Sequence[CaptionedImage], outputs: Sequence[Path], title: str, method: str) -> None:
    if not found:
        raise UsageError(NOTHING_READ)
    for path in outputs:
        if is_page(path):
            with atomic_file(path) as temporary:
                text = image_page(found, title, method)
                temporary.write_text(text, encoding="utf-8", errors="replace")  # file names may be any bytes
        else:
            save_figure(draw_images(found[:MAX_COLUMNS], title), path)
        sys.stderr.write(f"wrote {path}\n")


def _find_class(names: Sequence[str], wanted: str | None) -> int | None:
    if wanted is None:
        return None
    for known in (names, [describe(name) for name in names]):
        keys = [name_key(name) for name in known]
        if name_key(wanted) in keys:
            return keys.index(name_key(wanted))
    raise UsageError(f"no such class: --class {wanted}; give one of the model's, such as {describe(names[0])}")


def _truth(path: Path, names: Sequence[str]) -> str | None:
    """The label by the image's folder, or by the synset that its file name begins with; None if neither is a class."""
    candidates = (path.absolute().parent.name, path.name.split("_")[0])
    return next((name for name in candidates if name in names), None)


def _load(
    args: Namespace, trained: TrainedModel, paths: Sequence[Path], device: torch.device
) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    source = PathSource(paths, args.max_pixels)
    workers = min(default_workers(args.workers), len(paths) // args.batch_size)
    return create_eval_loader(
        ImageSet(source),
        trained.data_config,
        args.batch_size,
        workers=workers,
        device=device,
        bad_images=BadImages(args.bad_images),
    )


def _load_all(
    args: Namespace, trained: TrainedModel, paths: Sequence[Path], device: torch.device
) -> list[torch.Tensor]:
    """Batches of the images that can be read, at least one."""
    batches = [images for images, _ in _load(args, trained, paths, device) if len(images)]
    if not batches:
        raise UsageError(NOTHING_READ)
    return batches


def _check(
    args: Namespace, trained: TrainedModel, model: ImageModel, paths: Sequence[Path], outputs: Sequence[Path]
) -> None:
    device = next(model.model.parameters()).device
    images = torch.cat(_load_all(args, trained, paths, device))
    view, target = model.view(), torch.zeros(1, dtype=torch.long, device=device)

    def attempt(method: str) -> None:
        attribute(view, (images[:1],), target, method)

    methods, reasons = usable_methods(attempt, args.check_methods)
    for reason in reasons:
        sys.stderr.write(f"left out: {reason}\n")
    checks = check_images(model, images, methods, trained.multi_label)
    sys.stdout.write(f"{len(images)} images, mean ± standard error\n\n{check_table(checks)}\n")
    for path in outputs:
        save_figure(draw_checks(checks, f"{trained.recipe['name']}, {len(images)} images"), path)
        sys.stderr.write(f"wrote {path}\n")


if __name__ == "__main__":
    run_main(main)
