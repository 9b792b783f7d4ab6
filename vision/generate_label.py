"""Make the label maps of token labeling with any classifier.

python vision/generate_label.py DIR --checkpoint out/train/RUN/model_best.pth.tar --output maps
python vision/generate_label.py imagenet dm_nfnet_f6 --pretrained --img-size 576 --amp -b 32 --output imagenet-maps
torchrun --nproc_per_node 8 vision/generate_label.py DIR MODEL --checkpoint CHECKPOINT --output maps
python vision/generate_label.py DIR MODEL --checkpoint CHECKPOINT --output maps --shard 1/4  # then 2/4, ..., then none

For every training image the best classes of each place of the model's last feature map, with their scores before the
softmax. The whole image is resized to the model's input, its sides each on their own, and nothing is cropped: training
cuts the map as it cuts the image. The map is as large as the model's own; images of another --img-size give another.

The maps are made in parts (OUTPUT.parts): an interrupted run resumes where it stopped, and several machines with the
same images make a --shard each. A run without --shard makes the parts that are missing and puts all together.
"""

from __future__ import annotations

import hashlib
import json
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sot_base.command_help import show_help
from vision.cli.command_options import label_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(label_parser)

import numpy as np
import torch
import torch.distributed as dist
from tqdm import tqdm

from sot_base.errors import UsageError, run_main
from vision.cli.config_file import parse_args
from vision.cli.device import command_processes, default_workers, init_device
from vision.data import BadImages, ImageSet, Source, create_eval_loader, match_classes, names_for_model, open_source
from vision.evaluation.load_trained import TrainedModel, load_trained
from vision.evaluation.teacher import Teacher
from vision.token_label.map_parts import LabelParts
from vision.token_label.read_maps import HALF_LIMIT, LabelMap, torch_file
from vision.token_label.write_maps import write_label_maps, write_torch_maps

_WRITERS = {"folder": write_label_maps, "torch": write_torch_maps}


@command_processes()
def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and make the maps."""
    generate(parse_args(label_parser(), argv))


def generate(args: Namespace) -> None:
    """Make the parts that this process is to make; unless it is a shard, the first process then joins all parts.

    Raises:
        UsageError: as all command lines; also for options of cropping, for an output that is there, for parts of other
            options, weights or images, for a model that cannot classify places, and for scores that are not finite.
    """
    _check_options(args)
    device = init_device(args)
    trained = load_trained(args, device)
    dataset_name = args.dataset or trained.dataset
    source = open_source(args.data_dir, args.train_split, dataset_name, args.download, args.max_pixels)
    keys = [source.key(index) for index in range(len(source.targets))]
    if args.format == "torch":
        _check_torch_format(source, keys)
    names = trained.class_names or names_for_model(trained.num_classes, source.class_names)
    class_index = match_classes(source.class_names, names, source.where)
    teacher = Teacher(args, trained, class_index, device)
    shape = (min(args.top_k, len(source.class_names)), *teacher.grid)
    facts = {**_facts(args, trained, source.class_names, keys), "top-k and grid": list(shape)}
    parts = LabelParts(_parts_folder(args), facts, len(keys), args.part_size, shape)
    index, count = args.shard or (1, 1)
    share = range(index - 1, len(parts), count)
    _make_parts(args, teacher, source, parts, share, device)
    if args.rank == 0:
        _report(args, source, keys, parts, share)


def _make_parts(
    args: Namespace, teacher: Teacher, source: Source, parts: LabelParts, share: range, device: torch.device
) -> None:
    """Make those parts of a share that are not there, each process some of them."""
    made = {part for part in range(len(parts)) if parts.is_made(part)}  # also those of other shards are to be alike
    missing = [part for part in share if part not in made]
    group = dist.new_group(backend="gloo", timeout=timedelta(days=7)) if args.distributed else None
    if group is not None:
        agreed = [missing]  # parts may appear at any time: the first process says which ones were missing
        dist.broadcast_object_list(agreed, group=group)
        missing = agreed[0][args.rank :: args.world_size]
    if missing:
        _make(args, teacher, source, parts, missing, device)
    if group is not None:
        dist.barrier(group)


def _make(
    args: Namespace, teacher: Teacher, source: Source, parts: LabelParts, numbers: Sequence[int], device: torch.device
) -> None:
    """Make parts one after the other, from one stream of batches."""
    indices = [index for part in numbers for index in parts.images(part)]
    dataset = ImageSet(source)
    dataset.targets = np.arange(len(dataset))  # which image a map is of
    loader = create_eval_loader(
        dataset,
        teacher.data_config,
        args.batch_size,
        workers=default_workers(args.workers, args.world_size),
        device=device,
        bad_images=BadImages(args.bad_images),
        indices=indices,
    )
    queue: deque[int] = deque(numbers)
    found: dict[int, LabelMap] = {}

    def finish_part() -> None:
        parts.write(queue.popleft(), found)
        found.clear()

    with tqdm(total=len(indices), unit="image", leave=False, disable=None if args.rank == 0 else True) as bar:
        for images, positions in loader:
            bar.update(len(images))
            maps = _checked_maps(teacher.label(images), positions.tolist(), source) if len(images) else ()
            for index, label_map in maps:
                while index not in parts.images(queue[0]):  # the last images of the part were bad
                    finish_part()
                found[index] = label_map
                if index == parts.images(queue[0])[-1]:
                    finish_part()
    while queue:
        finish_part()


def _checked_maps(maps: LabelMap, positions: Sequence[int], source: Source) -> Iterator[tuple[int, LabelMap]]:
    """Each image's map.

    Raises:
        UsageError: for scores that are not finite in half precision, with the image.
    """
    for row, index in enumerate(positions):
        scores, classes = maps.scores[row], maps.classes[row]
        if not scores.isfinite().all():
            raise UsageError(
                f"scores that are not finite in half precision: {source.name(index)}; "
                "compute without --amp, or with another checkpoint"
            )
        yield index, LabelMap(scores, classes)


def _report(args: Namespace, source: Source, keys: Sequence[str], parts: LabelParts, share: range) -> None:
    """Say what is made; put all parts together unless they are a shard's."""
    have = np.concatenate([np.empty(0, np.int64), *(parts.find(part) for part in share)])
    bad = sum(len(parts.images(part)) for part in share) - len(have)
    if args.shard is None:
        _put_together(args, source, keys, parts, have)
        top_k, height, width = parts.shape
        classes = len(source.class_names)
        print(  # noqa: T201
            f"label maps of {len(have)} images, top-{top_k} of {classes} classes on {height}x{width}: {args.output}"
        )
    else:
        index, count = args.shard
        print(f"shard {index}/{count}: {len(share)} of {len(parts)} parts, {len(have)} images: {parts.folder}")  # noqa: T201
    if bad:
        print(f"bad_images: {bad}")  # noqa: T201


def _put_together(args: Namespace, source: Source, keys: Sequence[str], parts: LabelParts, have: np.ndarray) -> None:
    left_out = np.setdiff1d(np.arange(len(keys)), have)
    if not len(have):
        raise UsageError(f"no image can be read: {source.where}; give other images, and remove {parts.folder}")
    if len(left_out) and args.bad_images == "error":
        raise UsageError(
            f"{len(left_out)} images are left out of the parts: {source.name(left_out[0])} (--bad-images skip); "
            f"repair or remove them and {parts.folder}, or skip them again"
        )
    top_k, *grid = parts.shape
    files = [keys[index] for index in have]
    with _WRITERS[args.format](args.output, source.class_names, files, tuple(grid), top_k) as writer:
        place = 0
        for part in tqdm(range(len(parts)), unit="part", leave=False, disable=None):
            _, scores, classes = parts.read(part)
            for label_map in zip(torch.from_numpy(scores), torch.from_numpy(classes), strict=True):
                writer.put(place, LabelMap(*label_map))
                place += 1
    parts.remove()


def _facts(args: Namespace, trained: TrainedModel, class_names: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """What the maps depend on, by the words for what differs; the files' content is not read for it."""
    config = trained.data_config
    weights = hashlib.sha256()
    for name, tensor in trained.model.state_dict().items():
        weights.update(name.encode())
        weights.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return {
        "model": json.dumps(trained.recipe, sort_keys=True, default=str),
        "weights": weights.hexdigest(),
        "images' names": _digest(keys),
        "classes": _digest(class_names),
        "image size": list(config["input_size"]),
        "interpolation": config["interpolation"],
        "mean and std": [list(config["mean"]), list(config["std"])],
        "scores": args.scores,
        "precision": args.amp_dtype if args.amp else "float32",
    }


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(words)).encode()).hexdigest()


def _check_options(args: Namespace) -> None:
    if args.output is None:
        raise UsageError("no place for the label maps: --output; name a folder to make")
    for name in ("crop_pct", "crop_mode"):
        if getattr(args, name) is not None:
            raise UsageError(f"a label map covers the whole image: --{name.replace('_', '-')}; leave it out")
    args.crop_pct, args.crop_mode = 1.0, "squash"  # the whole image, resized
    path = Path(args.output)
    if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
        raise UsageError(f"something is there already: {path.absolute()}; remove it or choose another --output")


def _check_torch_format(source: Source, keys: Sequence[str]) -> None:
    if len(source.class_names) > HALF_LIMIT + 1:
        raise UsageError(
            f"{len(source.class_names)} classes are too many for --format torch: half precision holds class numbers up "
            f"to {HALF_LIMIT:,} alone; use --format folder"
        )
    seen: dict[str, str] = {}
    for key in keys:
        other = seen.setdefault(torch_file(key), key)
        if other != key:
            raise UsageError(
                f"images that would share a file of --format torch: {source.where}/{other} and {key}; "
                "use --format folder"
            )


def _parts_folder(args: Namespace) -> Path:
    path = Path(args.output)
    return path.with_name(f"{path.name}.parts")


if __name__ == "__main__":
    run_main(main)
