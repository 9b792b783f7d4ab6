"""Segment images: for each a PNG of class values, one of colours, and optionally an overlay on the image.

python vision/segment/predict.py PHOTO.jpg FOLDER --checkpoint RUN/model_best.pth.tar --output DIR
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from sot_base.command_help import show_help
from vision.segment.options import predict_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(predict_parser)

import numpy as np
from PIL import Image
from torchvision.transforms.v2 import functional as F
from tqdm import tqdm

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError, run_main
from vision.cli.config_file import parse_args
from vision.cli.device import init_device, memory_format
from vision.data import BadImages
from vision.data.dataset import BadImage
from vision.data.files import find_images
from vision.data.images import ImageError, read_image
from vision.segment.inference import create_pixel_predict
from vision.segment.load_trained import as_trained, load_segmenter
from vision.segment.palette import bit_palette, read_palette

__all__ = ["main", "name_results", "plan_results", "predict", "predict_parser"]


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, predict and write."""
    files = predict(parse_args(predict_parser(), argv))
    print(f"{len(files)} files written")  # noqa: T201


def name_results(paths: Sequence[str]) -> dict[str, Path]:
    """The images of a command line, by the names of their results: relative to the folder that was named.

    Raises:
        UsageError: for a path that does not exist, a folder without images, and two images with one result.
    """
    found: dict[str, Path] = {}
    for path, relative in find_images(paths):
        name = str(Path(relative).with_suffix(""))
        if name in found:
            raise UsageError(f"two images with one result, {name}.png: {found[name]} and {path}; predict them apart")
        found[name] = path
    return found


def plan_results(found: Mapping[str, Path], output: str, endings: Sequence[str]) -> dict[str, list[Path]]:
    """The files for the results of each image.

    Args:
        found: As returned by `name_results`.
        output: Folder of the results.
        endings: What follows the name of each, but ``.png``.

    Raises:
        UsageError: if a file would hold two results, or replace an image.
    """
    images = {path.resolve() for path in found.values()}
    taken: dict[Path, Path] = {}
    plan = {name: [Path(output) / f"{name}{ending}.png" for ending in endings] for name in found}
    for name, targets in plan.items():
        for target in targets:
            if target.resolve() in images:
                raise UsageError(f"a result would take the place of an image: {target}; choose another --output")
            if target in taken:
                raise UsageError(f"two results in one file, {target}: of {taken[target]} and {found[name]}; rename one")
            taken[target] = found[name]
    return plan


def predict(args: Namespace) -> list[Path]:
    """Segment as the options say.

    Returns:
        The files that were written.
    """
    device = init_device(args)
    if args.output is None:
        raise UsageError("nowhere to write: give --output FOLDER")
    found = name_results(args.images)
    plan = plan_results(found, args.output, ("", "_color", "_overlay") if args.overlay else ("", "_color"))
    trained = load_segmenter(args.checkpoint, args.model, args.model_kwargs, args.pretrained)
    count, rules = trained.rules.num_classes, trained.rules
    colors = _colors(args.palette, count, int(rules.to_values(np.array(0))))
    inference = as_trained(args, trained, device)
    layout = memory_format(args.channels_last)
    model = trained.model.to(device=device, memory_format=layout)
    predict_classes = create_pixel_predict(model, inference, trained.images, layout, args.compile)
    bad_images, written = BadImages(args.bad_images), []
    for name, path in tqdm(found.items(), disable=None):
        try:
            image = read_image(path.read_bytes(), str(path), args.max_pixels)
        except ImageError as error:
            bad_images.report([BadImage(str(path), error.reason)])
            continue
        except OSError as error:
            bad_images.report([BadImage(str(path), error.strerror or str(error))])
            continue
        classes = predict_classes(F.pil_to_tensor(image).unsqueeze(0).to(device))[0].cpu().numpy()
        values = rules.to_values(classes)
        largest = int(rules.to_values(np.array(count - 1)))
        painted = Image.fromarray(colors[classes])
        pictures = [Image.fromarray(values.astype(np.uint8 if largest <= 255 else np.uint16)), painted]
        if args.overlay:
            pictures.append(Image.blend(image, painted, 0.5))
        for target, picture in zip(plan[name], pictures, strict=True):
            with atomic_file(target) as temporary:
                picture.save(temporary, format="PNG")
            written.append(target)
    return written


def _colors(path: str | None, num_classes: int, first: int) -> np.ndarray:
    """The colours of the classes (K, 3): those of a file, else those that `bit_palette` gives to their values."""
    return bit_palette(num_classes + first)[first:] if path is None else read_palette(path, num_classes)


if __name__ == "__main__":
    run_main(main)
