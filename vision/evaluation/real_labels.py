"""ImageNet's reassessed labels, counted by timm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from msgspec import Meta
from timm.data import RealLabelsImagenet
from torch import Tensor

from sot_base.errors import UsageError
from sot_base.small_files import read_json
from vision.data.classes import imagenet_names

__all__ = ["RealLabels"]

ClassIndex = Annotated[int, Meta(ge=0, lt=1000)]


class RealLabels:
    """Count predictions against `timm.data.RealLabelsImagenet`, batch by batch in the loader's order.

    Args:
        names: Paths of the images, ``.../ILSVRC2012_val_00000001.JPEG`` and so on, in the loader's order.
        class_names: The model's classes, all of ImageNet's synsets in any order.
        json_file: A file with the list of labels of each image; None: timm's.
        world_size: Processes; one alone sees the images in order.

    Raises:
        UsageError: if images, classes or processes do not allow it.

    Reference:
        arXiv:2006.07159.
    """

    def __init__(
        self, names: Sequence[str], class_names: Sequence[str], json_file: str | None = None, world_size: int = 1
    ) -> None:
        if world_size > 1:
            raise UsageError("--real-labels counts on one process; run it without torchrun")
        if not set(imagenet_names()) <= set(class_names):
            raise UsageError("--real-labels needs a model of ImageNet's 1,000 classes; leave it out")
        if json_file is not None:
            read_json(json_file, list[list[ClassIndex]], "it must be the JSON list of the labels of each image")
        try:
            self.counter = RealLabelsImagenet(names, json_file)
            unknown = [name for name in names if name.rsplit("/", 1)[-1] not in self.counter.real_labels]
        except AssertionError:
            unknown = [f"{len(names)} images"]
        if unknown:
            raise UsageError(
                f"--real-labels: not all of ImageNet's validation images by name: {unknown[0]}; leave it out"
            )
        order = {name: position for position, name in enumerate(class_names)}
        self.columns = torch.tensor([order[name] for name in imagenet_names()])

    def update(self, output: Tensor, target: Tensor) -> None:
        """Count a batch of logits (B, K); ``target`` is not used."""
        self.counter.add_result(output[:, self.columns.to(output.device)])

    def accuracy(self) -> dict[str, float]:
        """``real_top1`` and ``real_top5`` in percent, of the images that have labels."""
        return {f"real_top{k}": accuracy for k, accuracy in self.counter.get_accuracy().items()}
