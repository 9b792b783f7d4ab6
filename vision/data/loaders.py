"""Loaders made of timm's transforms, collation and prefetching.

timm's ``create_loader`` combines the same parts, but drops the last partial batch in training, seeds by worker
and lets the data set replace a file that cannot be read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from timm.data import create_transform
from timm.data.loader import PrefetchLoader
from torch.utils.data import DataLoader, Dataset, Sampler

from sot_base.errors import UsageError
from sot_base.loading_processes import LoadingContext, obey_the_trainer_alone
from vision.data.augment import create_train_transform
from vision.data.dataset import BadImage, Batch, ImageSet, SampleKey
from vision.data.image_steps import add_steps
from vision.data.images import ImageError
from vision.data.sampling import TrainSampler

__all__ = [
    "BadImages",
    "Loader",
    "create_eval_loader",
    "create_train_loader",
    "eval_transform",
]

_logger = logging.getLogger(__name__)


class BadImages:
    """What happens to images that cannot be read, and their count.

    Args:
        policy: ``error`` stops at the first one; ``skip`` removes it from its batch, and logs it once.
    """

    def __init__(self, policy: str = "error") -> None:
        self.policy, self.count = policy, 0
        self._named: set[str] = set()

    def report(self, bad: Sequence[BadImage]) -> None:
        """Count the bad images of a batch.

        Raises:
            ImageError: with policy ``error``, naming the file.
        """
        if bad and self.policy == "error":
            raise ImageError(bad[0].name, bad[0].reason)
        self.count += len(bad)
        for image in bad:
            if image.name not in self._named:
                _logger.warning(f"skipped, as it cannot be read: {image.name} ({image.reason})")
            self._named.add(image.name)


class Loader:
    """torch's data loader, which reports bad images to `BadImages` in the main process.

    Args:
        dataset: The samples; ``dataset.collate`` turns them into a batch and a list of bad images.
        sampler: The order of the samples.
        batch_size: Samples of a batch.
        workers: Worker processes.
        device: The device that batches are moved to later.
        bad_images: What happens to unreadable images.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: Sequence[int] | Sampler[SampleKey],
        batch_size: int,
        workers: int,
        device: torch.device,
        bad_images: BadImages,
    ) -> None:
        self.dataset, self.sampler, self.device, self.bad_images = dataset, sampler, device, bad_images
        self._loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=workers,
            collate_fn=dataset.collate,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            generator=torch.Generator(),  # not the run's generator
            multiprocessing_context=LoadingContext() if workers else None,
            worker_init_fn=obey_the_trainer_alone,
        )

    def __len__(self) -> int:
        return -(-len(self.sampler) // self._loader.batch_size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        for images, targets, bad in self._batches():
            self.bad_images.report(bad)
            yield images, targets

    def _batches(self) -> Iterator[Batch]:
        try:
            yield from self._loader
        except UsageError as error:  # a worker process puts its traceback before the message
            raise UsageError(str(error).rpartition("UsageError: ")[2].rstrip()) from error


def _prefetch(loader: Loader, data_config: dict[str, Any], device: torch.device) -> PrefetchLoader:
    return PrefetchLoader(
        loader,
        mean=data_config["mean"],
        std=data_config["std"],
        channels=data_config["input_size"][0],
        device=device,
    )


def create_train_loader(
    dataset: ImageSet,
    data_config: dict[str, Any],
    batch_size: int,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    num_repeats: int = 1,
    workers: int = 0,
    device: torch.device | str = "cpu",
    bad_images: BadImages | None = None,
    **augmentation: Any,
) -> PrefetchLoader:
    """Shuffled, augmented, normalised batches on the device; the last one of an epoch may be smaller.

    Args:
        dataset: The images; its transform is set here. Batches of a `TokenLabelSet` have a `TokenLabelBatch`.
        data_config: As returned by ``timm.data.resolve_data_config``.
        batch_size: Images per batch on each process (> 0).
        seed: The run's seed.
        rank: This process.
        world_size: Processes.
        num_repeats: Repeated augmentation, see `TrainSampler`.
        workers: Worker processes; their number does not change the batches.
        device: Where the batches go.
        bad_images: What happens to unreadable images.
        **augmentation: Arguments of `create_train_transform`.

    Raises:
        UsageError: if there are no images.
    """
    if not len(dataset):
        raise UsageError(f"no training images: {dataset.source.where}; give a folder with images")
    dataset.transform = create_train_transform(data_config, **augmentation)
    sampler = TrainSampler(len(dataset), seed, rank, world_size, num_repeats)
    device, bad_images = torch.device(device), bad_images or BadImages()
    return _prefetch(Loader(dataset, sampler, batch_size, workers, device, bad_images), data_config, device)


def eval_transform(data_config: dict[str, Any], as_bytes: bool = True) -> Callable[[Any], torch.Tensor]:
    """Timm's transform for evaluation: resize and centre crop; normalised unless ``as_bytes``."""
    transform = create_transform(**data_config, is_training=False, use_prefetcher=as_bytes)
    return add_steps(
        transform, data_config["input_size"][0], limit_ratio=data_config.get("crop_mode") in (None, "center")
    )


def create_eval_loader(
    dataset: ImageSet,
    data_config: dict[str, Any],
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    device: torch.device | str = "cpu",
    bad_images: BadImages | None = None,
    indices: Sequence[int] | None = None,
) -> PrefetchLoader:
    """Batches in order, resized and cropped; over several processes each image is used once, without padding.

    The arguments are those of `create_train_loader`; ``indices`` are the images to load, None for all.
    """
    dataset.transform = eval_transform(data_config)
    sampler = (range(len(dataset)) if indices is None else indices)[rank::world_size]
    device, bad_images = torch.device(device), bad_images or BadImages()
    return _prefetch(Loader(dataset, sampler, batch_size, workers, device, bad_images), data_config, device)
