"""The data set and the loaders of segmentation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from vision.data import BadImages
from vision.data.dataset import BadImage, SampleKey, seeded
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
            image = read_image(self.source.read_image(index), image_name)
            name = annotation_name
            size = (image.height, image.width)
            classes = read_annotation(self.source.read_annotation(index), annotation_name, size, self.rules)
        except ImageError as error:
            return BadImage(name, error.reason)
        except OSError as error:  # a link to nothing, a file that has gone or is not ours
            return BadImage(name, error.strerror or str(error))
        pair = tv_tensors.Image(F.pil_to_tensor(image)), tv_tensors.Mask(torch.from_numpy(classes))
        if self.transform is not None:
            with contextlib.nullcontext() if seed is None else seeded(seed):
                pair = self.transform(*pair)
        return tuple(item.as_subclass(Tensor) for item in pair)


class StreamSampler(Sampler[SampleKey]):
    """Epochs of `TrainSampler` one after another, cut into steps that go on from one epoch into the next.

    Position p of the stream goes to process ``p % world_size``.

    Args:
        num_images: Images (> 0).
        seed: The run's seed.
        start: Positions of all processes to leave out at the begin.
        stop: Where the stream ends.
        rank: This process.
        world_size: Processes.
    """

    def __init__(self, num_images: int, seed: int, start: int, stop: int, rank: int = 0, world_size: int = 1) -> None:
        self.num_images, self.seed, self.start, self.stop = num_images, seed, start, stop
        self.rank, self.world_size = rank, world_size

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


def _collate(samples: Sequence[Pair | BadImage]) -> tuple[Tensor, Tensor, list[BadImage]]:
    bad = [sample for sample in samples if isinstance(sample, BadImage)]
    good = [sample for sample in samples if not isinstance(sample, BadImage)]
    if not good:
        return torch.empty(0, 3, 1, 1, dtype=torch.uint8), torch.empty(0, 1, 1, dtype=torch.int64), bad
    return torch.stack([image for image, _ in good]), torch.stack([classes for _, classes in good]), bad


class _Reporting:
    """A loader that hands bad images to `BadImages`, in the main process, and moves the others to the device."""

    def __init__(self, loader: DataLoader[Any], bad_images: BadImages, device: torch.device) -> None:
        self.loader, self.bad_images, self.device = loader, bad_images, device

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Pair]:
        for images, classes, bad in self.loader:
            self.bad_images.report(bad)
            yield images.to(self.device, non_blocking=True), classes.to(self.device, non_blocking=True)


def _create_loader(
    dataset: PairSet,
    sampler: Sequence[int] | StreamSampler,
    batch_size: int,
    workers: int,
    device: torch.device,
    bad_images: BadImages,
) -> _Reporting:
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # the loader draws from its own, not from the run's
    )
    return _Reporting(loader, bad_images, device)


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
) -> _Reporting:
    """Batches of crops (B, 3, S, S), uint8, and classes (B, S, S), one a step."""
    shown = batch_size * world_size
    sampler = StreamSampler(len(dataset), seed, steps.start * shown, steps.stop * shown, rank, world_size)
    return _create_loader(dataset, sampler, batch_size, workers, device, bad_images)


def eval_loader(
    dataset: PairSet, rank: int, world_size: int, workers: int, device: torch.device, bad_images: BadImages
) -> _Reporting:
    """Images of their own sizes, one by one, in order; over several processes each comes once."""
    return _create_loader(dataset, range(rank, len(dataset), world_size), 1, workers, device, bad_images)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """From (B, 3, H, W), uint8, to float32 with a mean of 0 and a deviation of 1 in each channel."""
    middle, width = (torch.tensor(values, device=images.device).view(-1, 1, 1) * 255 for values in (mean, std))
    return (images.float() - middle) / width
