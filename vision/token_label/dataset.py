"""Images with their label maps: the data set, its batches, and targets made of them on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from vision.data.dataset import BadImage, ImageSet, SampleKey, collate
from vision.data.sources import Source
from vision.token_label.read_maps import LabelMap, LabelMaps, check_complete
from vision.token_label.targets import TokenLabelTarget, make_targets
from vision.token_label.transforms import FollowTransform

__all__ = ["TokenLabelBatch", "TokenLabelSet"]


class TokenLabelBatch(NamedTuple):
    """What targets are made of: of one image (`TokenLabelSet`) or a batch.

    Attributes:
        truth: (B,) class indices.
        label_map: Label maps (B, k, h, w) of the whole images.
        frames: (B, F, 2, 3) how the images were moved, on the CPU.
    """

    truth: Tensor
    label_map: LabelMap
    frames: Tensor

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TokenLabelBatch:
        """Move classes and maps to a device; called by ``timm.data.loader.PrefetchLoader``."""
        truth, scores, classes = (part.to(device, non_blocking=non_blocking) for part in (self.truth, *self.label_map))
        return TokenLabelBatch(truth, LabelMap(scores, classes), self.frames)

    def targets(self, grid: tuple[int, int], num_classes: int, smoothing: float = 0.0) -> TokenLabelTarget:
        """Labels of images and patches, see `make_targets`."""
        return make_targets(self.truth, self.label_map, self.frames, grid, num_classes, smoothing)


class TokenLabelSet(ImageSet):
    """`ImageSet` with the label map of every image; a sample is (image, `TokenLabelBatch` of one image).

    Args:
        source: The images.
        maps: Their label maps, of the model's classes; images of a folder go by ``<class>/<image>``, images of one file
            (CIFAR, digits) by their number.
        transform: As for `FollowTransform`; it may be set later.
        class_index: As `ImageSet`.

    Raises:
        UsageError: if an image has no map, or the maps cannot follow the transform; for a map that does not fit, when
            its sample is read.
    """

    collate = staticmethod(partial(collate, default_collate))

    def __init__(
        self,
        source: Source,
        maps: LabelMaps,
        transform: Callable[[Any], Any] | None = None,
        class_index: np.ndarray | None = None,
    ) -> None:
        super().__init__(source, transform, class_index)
        self.maps = maps
        check_complete(maps, [source.key(index) for index in range(len(self))])

    @property
    def transform(self) -> FollowTransform | None:
        """The transform, as a `FollowTransform`."""
        return self._transform

    @transform.setter
    def transform(self, transform: Callable[[Any], Any] | None) -> None:
        plain = transform is None or isinstance(transform, FollowTransform)
        self._transform = transform if plain else FollowTransform(transform)

    def __getitem__(self, key: int | SampleKey) -> tuple[Any, TokenLabelBatch] | BadImage:
        sample = super().__getitem__(key)
        if isinstance(sample, BadImage):
            return sample
        image, truth = sample
        image, frames = (image, torch.eye(2, 3)[None]) if self.transform is None else image
        index = key[0] if isinstance(key, SampleKey) else key
        return image, TokenLabelBatch(torch.tensor(truth), self.maps.read(self.source.key(index)), frames)
