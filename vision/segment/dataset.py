"""The data set of segmentation, the order of its images, and its loaders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler, default_collate
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from vision.data import BadImages, Loader
from vision.data.dataset import BadImage, SampleKey, collate, seeded
from vision.data.images import ImageError, read_image
from vision.data.sampling import TrainSampler
from vision.segment.files import PairSource
from vision.segment.labels import LabelRules, read_annotation

__all__ = ["PairSet", "StreamSampler", "eval_loader", "normalize", "train_loader"]

Pair = tuple[Tensor, Tensor]


class PairSet(Dataset[Any]):
    """Images (3, H, W), uint8, with their class indices (H, W), int64; what cannot be read becomes a `BadImage`.

    Args:
        source: The files.
        rules: What the annotations' values mean.
        transform: Of image and annotation together.
    """

    collate = staticmethod(partial(collate, default_collate))

    def __init__(
        self, source: PairSource, rules: LabelRules, transform: Callable[[Any, Any], Pair] | None = None
    ) -> None:
        self.source, self.rules, self.transform = source, rules, transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: int | SampleKey) -> Pair | BadImage:
        index, seed = key if isinstance(key, SampleKey) else (key, None)
        image_name, annotation_name = self.source.names(index)
        name = image_name
        try:
            image = read_image(self.source.read_image(index), image_name, self.source.max_pixels)
            name = annotation_name
            size = (image.height, image.width)
            annotation, limit = self.source.read_annotation(index), self.source.max_pixels
            classes = read_annotation(annotation, annotation_name, size, self.rules, limit)
        except ImageError as error:
            return BadImage(name, error.reason)
        except OSError as error:  # a broken link, a deleted file, or one that may not be read
            return BadImage(name, error.strerror or str(error))
        pair = tv_tensors.Image(F.pil_to_tensor(image)), tv_tensors.Mask(torch.from_numpy(classes))
        if self.transform is not None:
            with contextlib.nullcontext() if seed is None else seeded(seed):
                pair = self.transform(*pair)
        return tuple(item.as_subclass(Tensor) for item in pair)


class StreamSampler(Sampler[SampleKey]):
    """Epochs of `TrainSampler` in a row, cut into intervals that may end in the middle of an epoch.

    Position p of the stream goes to process ``p % world_size``.

    Args:
        num_images: Images (> 0).
        seed: The run's seed.
        start: First position, of all processes.
        stop: Where the stream ends.
        rank: This process.
        world_size: Processes.
        interval: Positions of an interval; None: all are one.
    """

    def __init__(
        self,
        num_images: int,
        seed: int,
        start: int,
        stop: int,
        rank: int = 0,
        world_size: int = 1,
        interval: int | None = None,
    ) -> None:
        self.num_images, self.seed, self.rank, self.world_size = num_images, seed, rank, world_size
        self._start, self._stop, self._interval = start, stop, interval or max(1, stop - start)
        self.set_epoch(0)

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the interval, and how many of this process's images to skip at its start."""
        first = self._start + epoch * self._interval
        self.stop = min(first + self._interval, self._stop)
        self.samples_per_process = len(range(first + self.rank, self.stop, self.world_size))
        self.start = first + start * self.world_size

    def __len__(self) -> int:
        return len(range(self.start + self.rank, self.stop, self.world_size))

    def __iter__(self) -> Iterator[SampleKey]:
        epochs = TrainSampler(self.num_images, self.seed)
        position = self.start
        while position < self.stop:
            epochs.set_epoch(*divmod(position, self.num_images))
            for key in epochs:
                if position >= self.stop:
                    return
                if position % self.world_size == self.rank:
                    yield key
                position += 1


class _OnDevice(Loader):
    """A loader that moves its batches to the device."""

    def __iter__(self) -> Iterator[Pair]:
        for images, classes in super().__iter__():
            yield images.to(self.device, non_blocking=True), classes.to(self.device, non_blocking=True)


def train_loader(
    dataset: PairSet,
    batch_size: int,
    steps: range,
    seed: int,
    rank: int,
    world_size: int,
    workers: int,
    device: torch.device,
    bad_images: BadImages,
    interval: int | None = None,
) -> Loader:
    """Batches of crops (B, 3, S, S), uint8, and classes (B, S, S), one batch per step.

    The arguments are those of `vision.data.create_train_loader`; ``steps`` are those of the run, ``interval`` is the
    number of steps between validations, None for a single interval.
    """
    shown = batch_size * world_size
    interval = None if interval is None else interval * shown
    sampler = StreamSampler(len(dataset), seed, steps.start * shown, steps.stop * shown, rank, world_size, interval)
    return _OnDevice(dataset, sampler, batch_size, workers, device, bad_images)


def eval_loader(
    dataset: PairSet, rank: int, world_size: int, workers: int, device: torch.device, bad_images: BadImages
) -> Loader:
    """Images of their own sizes, one by one, in order; over several processes each is used once."""
    indices = range(rank, len(dataset), world_size)
    return _OnDevice(dataset, indices, 1, workers, device, bad_images)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Images (B, 3, H, W), uint8, as float32 with ``mean`` subtracted and divided by ``std``, both for [0, 1].

    With one mean they become grey (B, 1, H, W).
    """
    if len(mean) == 1:
        images = F.rgb_to_grayscale(images)
    middle, width = (torch.tensor(values, device=images.device).view(-1, 1, 1) * 255 for values in (mean, std))
    return (images.float() - middle) / width
