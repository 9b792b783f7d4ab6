"""Check label maps against their images: ``python vision/check_label.py MAPS DIR``.

Lists images without a map, maps without an image, classes out of range and scores that are not finite; exit status 1
if there are any. Then reports how often a map agrees with the class of its image: maps of other images only agree by
chance.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sot_base.command_help import show_help
from vision.cli.command_options import check_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(check_parser)

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from sot_base.errors import UsageError, run_main
from vision.cli.config_file import parse_args
from vision.cli.device import command_processes, default_workers
from vision.data import open_source
from vision.token_label.read_maps import LabelMap, LabelMaps, open_label_maps

_WEAK = 0.1  # between chance (0) and perfect agreement (1)
_MANY_NEGATIVE = 0.1  # share of the positions


class _Reading(NamedTuple):
    """The content of an image's map, in plain values that a loading process can return.

    Attributes:
        fault: What is wrong with it; an empty string if nothing.
        best: The class with the largest mean score; a class has score 0 at positions that do not list it.
        named: Whether any position lists the class of the image.
        negative: Share of the positions whose best score is below 0.
    """

    fault: str
    best: int = -1
    named: bool = False
    negative: float = 0.0


class _Readings(Dataset[_Reading]):
    def __init__(self, maps: LabelMaps, names: Sequence[str], targets: Sequence[int], num_classes: int) -> None:
        self.maps, self.names, self.targets, self.num_classes = maps, names, targets, num_classes

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> _Reading:
        try:
            label_map = self.maps.read(self.names[index])
        except UsageError as error:
            return _Reading(str(error))
        named = bool((label_map.classes == self.targets[index]).any())
        negative = float((label_map.scores.amax(dim=0) < 0).float().mean())
        return _Reading("", best_class(label_map, self.num_classes), named, negative)


class Agreement(NamedTuple):
    """Shares of images, 0 to 1.

    Attributes:
        images: Their number.
        best: Images whose class is the map's best one.
        chance: The same for maps of other images, drawn at random.
        named: Images whose class is anywhere in the map.
    """

    images: int
    best: float
    chance: float
    named: float

    @property
    def is_weak(self) -> bool:
        """Whether the maps agree hardly more often than by chance (Cohen's kappa below 0.1)."""
        return self.best - self.chance < _WEAK * (1 - self.chance)


def best_class(label_map: LabelMap, num_classes: int) -> int:
    """The class with the largest mean score over all positions; it is 0 at positions that do not list a class."""
    sums = torch.zeros(num_classes).index_add_(0, label_map.classes.flatten(), label_map.scores.float().flatten())
    return int(sums.argmax())


def agreement(best: np.ndarray, named: np.ndarray, targets: np.ndarray, num_classes: int) -> Agreement:
    """How often maps agree with their images' classes.

    Args:
        best: (N,) each map's best class.
        named: (N,) whether each map has the class of its image.
        targets: (N,) each image's class.
        num_classes: Classes.
    """
    shares = [np.bincount(values, minlength=num_classes) / len(targets) for values in (best, targets)]
    hits = float((best == targets).mean())
    return Agreement(len(targets), hits, float(shares[0] @ shares[1]), float(named.mean()))


@command_processes()
def main(argv: Sequence[str] | None = None) -> int:
    """Print the errors, and how often maps and classes agree."""
    args = parse_args(check_parser(), argv)
    source = open_source(args.data_dir, args.train_split, args.dataset, args.download)
    maps = open_label_maps(args.maps, source.class_names)
    names = [source.key(index) for index in range(len(source.targets))]
    absent = set(maps.missing(names))
    faults = 0
    for fault in (
        *(f"no label map of {name}: {maps.where}" for name in names if name in absent),
        *(f"a label map of no image: {name} in {maps.where}" for name in maps.superfluous(names)),
    ):
        faults += 1
        print(fault)  # noqa: T201
    present = np.array([index for index, name in enumerate(names) if name not in absent], dtype=np.int64)
    targets = source.targets[present]
    dataset = _Readings(maps, [names[index] for index in present], targets.tolist(), len(source.class_names))
    loader = DataLoader(dataset, batch_size=None, num_workers=default_workers(args.workers))
    best, named, negative = np.full(len(present), -1), np.zeros(len(present), bool), np.zeros(len(present))
    for place, reading in enumerate(tqdm(loader, unit="map", leave=False, disable=None)):
        best[place], named[place], negative[place] = reading.best, reading.named, reading.negative
        if reading.fault:
            faults += 1
            print(reading.fault)  # noqa: T201
    good = best >= 0
    if good.any():
        _print_figures(agreement(best[good], named[good], targets[good], len(source.class_names)), negative[good])
    print(f"{faults} faults" if faults else "every image has its label map")  # noqa: T201
    return 1 if faults else 0


def _print_figures(found: Agreement, negative: np.ndarray) -> None:
    print(  # noqa: T201
        f"{found.images} maps: {found.best:.2%} have the image's class as their best one (by chance "
        f"{found.chance:.2%}), {found.named:.2%} have it anywhere"
    )
    if found.is_weak:
        print(  # noqa: T201
            "that is hardly more than chance: the maps may be of other images, in another order, or of a classifier "
            "that has learned little"
        )
    if negative.mean() > _MANY_NEGATIVE:
        print(  # noqa: T201
            f"{negative.mean():.2%} of the places have no score above 0, which is what a class counts that is not "
            "there: make the maps with --scores centred"
        )


if __name__ == "__main__":
    run_main(main)
