"""The order of the training images, which does not depend on the number of processes, workers and restarts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from vision.data.dataset import SampleKey

__all__ = ["TrainSampler"]


class TrainSampler(Sampler[SampleKey]):
    """Shuffled images with the seeds of their augmentation, both a function of the run's seed and the epoch.

    Position p of the epoch goes to process ``p % world_size``: a batch of b on each of w processes holds the images,
    augmented alike, of one batch of w * b on one process. Images are repeated so that all processes have equally many.

    Args:
        num_images: Images N (> 0).
        seed: The run's seed.
        rank: This process.
        world_size: Processes.
        num_repeats: Repeated augmentation: an epoch has N positions in which each chosen image appears this many
            times, differently augmented.
    """

    def __init__(self, num_images: int, seed: int, rank: int = 0, world_size: int = 1, num_repeats: int = 1) -> None:
        self.num_images, self.seed, self.num_repeats = num_images, seed, num_repeats
        self.rank, self.world_size = rank, world_size
        self.epoch = self.start = 0
        self.samples_per_process = -(-num_images // world_size)

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch, and how many of this process's images to skip at its start."""
        self.epoch, self.start = epoch, start

    def __len__(self) -> int:
        return self.samples_per_process - self.start

    def __iter__(self) -> Iterator[SampleKey]:
        generator = np.random.default_rng([self.seed, self.epoch])
        order = np.repeat(generator.permutation(self.num_images), self.num_repeats)[: self.num_images]
        order = np.resize(order, self.samples_per_process * self.world_size)
        seeds = generator.integers(2**31, size=len(order))
        mine = slice(self.rank + self.start * self.world_size, None, self.world_size)
        for index, seed in zip(order[mine].tolist(), seeds[mine].tolist(), strict=True):
            yield SampleKey(index, seed)
