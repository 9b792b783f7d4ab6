r"""Train heads on the stored token states of a frozen image model, and save the best as a model.

python vision/probe.py DIR --model efficientnet_lite0 --heads cls mgcrp --output-dir out/probe
python vision/probe.py DIR --model vit_small_patch16_224 --pretrained --heads cls gap mgcrp --lr 3e-4 1e-3 3e-3

The weights of ``efficientnet_lite0`` come with a Python package; any other timm model needs ``--pretrained`` or
``--checkpoint``. The first run stores the token states of the images, later ones read them. docs/probing.md describes
heads, options and the table. ``OUTPUT_DIR/model/model_best.pth.tar`` can be read by vision/validate.py, predict.py and
export.py.
"""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sot_base.command_help import show_help
from vision.cli.command_options import probe_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(probe_parser)

import numpy as np
from sklearn.metrics import f1_score
from torch import Tensor, nn

from sot_base.atomic import atomic_folder
from sot_base.device import choose_device
from sot_base.errors import UsageError, run_main
from sot_probe.command import check_options, run_probe
from sot_probe.grid import ProbeSettings
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Kind
from sot_probe.trainee import Optimize, adamw
from vision.cli.device import command_processes, default_workers
from vision.data import match_classes, open_source
from vision.data.multi_label import open_multi_label
from vision.probing.image_encoder import ImageEncoder
from vision.probing.probe_data import ImageStates, source_digest

__all__ = ["ImageProbe", "main", "probe_parser"]

ENCODING = 1  # increased when the states of a model change, so that old ones are not reused


class ImageProbe:
    """A timm model and labelled images, for `sot_probe.command.run_probe`.

    Args:
        args: The command line.

    Raises:
        UsageError: for mistakes in the options or the data.
    """

    command: Sequence[str] = ("python", "vision/probe.py")
    optimize: Optimize = staticmethod(adamw)

    def __init__(self, args: Namespace) -> None:
        data_dir = args.data_dir or args.data_path
        self.args = args
        self.kind: Kind = "sets" if args.multi_label else "classes"
        self.main_metric = "f1_micro" if args.multi_label else "top1"
        self.sources = {name: self.open_split(data_dir, split) for name, split in self._splits().items()}
        train, val = self.sources.values()
        self.labels, self.num_classes = train.class_names, len(train.class_names)
        if self.num_classes < (1 if args.multi_label else 2):
            raise UsageError(f"only one class, {self.labels[0]}: {train.where}; give images of several")
        self.targets: dict[str, np.ndarray] = {"train": train.targets, "val": self._in_train_order(val)}
        self.encoder = ImageEncoder.open(
            *(args.model, args.pretrained, args.checkpoint, args.img_size, args.layers, choose_device(args.device)),
            train_layers=args.train_layers,
        )
        self.layers = self.encoder.layers
        if args.save != "none" and not args.train_layers and self.layers != [self.encoder.num_layers]:
            raise UsageError("an image model reads the last layer: --layers; give --save none")
        self.task = args.dataset or (Path(data_dir).stem if data_dir else "images")
        self.name = f"{self.task}-{args.model}"
        self.words = self._own_words(data_dir)

    def _splits(self) -> dict[str, str]:
        return {"train": self.args.train_split, "val": self.args.val_split}

    def open_split(self, data_dir: str | None, split: str) -> Any:
        """Open the images of a split."""
        args = self.args
        if args.multi_label:
            return open_multi_label(data_dir, split, args.label_column, args.max_pixels)
        return open_source(data_dir, split, args.dataset, args.download, args.max_pixels)

    def _in_train_order(self, val: Any) -> np.ndarray:
        index = match_classes(val.class_names, self.labels, val.where)
        if self.kind == "classes":
            return index[val.targets]
        targets = np.zeros((len(val.targets), self.num_classes), dtype=np.float32)
        targets[:, index] = val.targets
        return targets

    def _own_words(self, data_dir: str | None) -> list[str]:
        args = self.args
        words = [data_dir] if data_dir else []
        names = (
            "model",
            "checkpoint",
            "dataset",
            "img_size",
            "train_split",
            "val_split",
            "label_column",
            "encode_batch",
        )
        defaults = {name: probe_parser().get_default(name) for name in names}
        given = [(name, getattr(args, name)) for name in names if getattr(args, name) not in (None, defaults[name])]
        words += [word for name, value in given for word in (f"--{name.replace('_', '-')}", str(value))]
        return words + [f"--{name.replace('_', '-')}" for name in ("pretrained", "multi_label") if getattr(args, name)]

    def keep(self, split: str, rows: np.ndarray) -> None:
        """Use only these images of a split; to be called before anything is encoded."""
        self.sources[split] = self.sources[split].subset(rows)
        self.targets[split] = self.targets[split][rows]

    def describe(self) -> dict[str, Any]:
        images = {name: source_digest(source) for name, source in self.sources.items()}
        return {"encoding": ENCODING, **self.encoder.describe(), "data": images, "batch": self.args.encode_batch}

    def create_encoder(self) -> ImageStates:
        return ImageStates(self.encoder, self.sources, self.args.encode_batch, default_workers(self.args.workers))

    def create_head(self, settings: Mapping[str, Any], start: Mapping[str, Tensor]) -> nn.Module:
        return self.encoder.create_head(settings, self.num_classes, start)

    def create_top_layers(self, count: int) -> nn.Module:
        return self.encoder.create_top_layers(count)

    def measure(self, predictions: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Metrics in percent."""
        if self.kind == "classes":
            return {"top1": 100.0 * float((predictions == targets).mean())}
        micro, macro = (f1_score(targets, predictions, average=name, zero_division=0.0) for name in ("micro", "macro"))
        exact = (predictions == targets.astype(bool)).all(axis=1).mean()
        return {"f1_micro": 100.0 * micro, "f1_macro": 100.0 * macro, "exact": 100.0 * float(exact)}

    def warnings(self, predictions: np.ndarray, targets: np.ndarray, where: str) -> list[str]:
        """Warn if all predictions are the same."""
        if (predictions == predictions[0]).all() and not (targets == targets[0]).all():
            return [f"all {len(predictions)} predictions of {where} are the same: the head has collapsed"]
        return []

    def save_model(self, head: LayerHead, setting: ProbeSettings, folder: Path) -> None:
        with atomic_folder(folder) as temporary:
            self.encoder.save(head, self.labels, self.kind == "sets", temporary)


@command_processes()
def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run the probe.

    Returns:
        The exit status: 1 if some of the trainings failed.
    """
    args = probe_parser().parse_args(argv)
    logging.basicConfig(format="%(message)s")
    check_options(args)
    return run_probe(args, ImageProbe(args))


if __name__ == "__main__":
    run_main(main)
