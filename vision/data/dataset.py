"""The data set that the loaders read: an image, transformed, with its target, or the report of a bad file."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from timm.data.loader import fast_collate
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from sot_base.errors import UsageError
from vision.data.images import ImageError
from vision.data.sources import Source

__all__ = ["BadImage", "Batch", "ImageSet", "SampleKey", "collate", "seeded"]

Batch = tuple[Tensor, Any, list["BadImage"]]


class SampleKey(NamedTuple):
    """Which image to read, and the seed of its augmentation."""

    index: int
    seed: int


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be read: its file and the reason."""

    name: str
    reason: str


def collate(stack: Callable[[Sequence[Any]], Any], samples: Sequence[Any]) -> Batch:
    """Stack images and targets; bad images are returned as a list. Without a good image the batch is empty.

    Args:
        stack: Turns a list of samples into images and targets.
        samples: Samples of a data set.
    """
    bad = [sample for sample in samples if isinstance(sample, BadImage)]
    good = [sample for sample in samples if not isinstance(sample, BadImage)]
    if not good:
        return torch.empty(0, 3, 1, 1, dtype=torch.uint8), torch.empty(0, dtype=torch.int64), bad
    if get_worker_info() is None:
        return *stack(good), bad
    with _room_in_shared_memory(len(good)):
        batch = stack(good)
        for tensor in _tensors(batch):  # torch would do so on a thread whose errors leave the main process waiting
            tensor.share_memory_()
    return *batch, bad


@contextlib.contextmanager
def _room_in_shared_memory(count: int) -> Iterator[None]:
    """Report in one line that there is no room for a batch, which loading processes send through shared memory."""
    try:
        yield
    except RuntimeError as error:
        if "shared memory" not in str(error) and "No space left" not in str(error):
            raise
        raise UsageError(
            f"no room in shared memory for a batch of {count} images: /dev/shm; raise it (docker run --shm-size), or "
            "lower -j or -b"
        ) from error


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, tuple | list):
        for part in batch:
            yield from _tensors(part)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the CPU generators of Python, numpy and torch for a block; the main process restores their state."""
    in_worker = get_worker_info() is not None
    states = None if in_worker else (random.getstate(), np.random.get_state(), torch.get_rng_state())
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        if states is not None:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])


class ImageSet(Dataset[tuple[Any, int] | BadImage]):
    """Images of a source with the model's targets.

    An image that cannot be read becomes a `BadImage`: another one never takes its place.

    Args:
        source: The images.
        transform: Maps an RGB image to what the loader collates.
        class_index: (K,) the model's index of each of the source's classes; None: as in the source.

    Attributes:
        collate: From samples to a batch.
    """

    collate = staticmethod(partial(collate, fast_collate))

    def __init__(
        self,
        source: Source,
        transform: Callable[[Any], Any] | None = None,
        class_index: np.ndarray | None = None,
    ) -> None:
        self.source, self.transform = source, transform
        self.targets = source.targets if class_index is None else class_index[source.targets]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, key: int | SampleKey) -> tuple[Any, int] | BadImage:
        index, seed = key if isinstance(key, SampleKey) else (key, None)
        try:
            image = self.source.image(index)
        except ImageError as error:
            return BadImage(self.source.name(index), error.reason)
        except OSError as error:  # a broken link, a deleted file, or one that may not be read
            return BadImage(self.source.name(index), error.strerror or str(error))
        if self.transform is not None:
            with contextlib.nullcontext() if seed is None else seeded(seed):
                image = self.transform(image)
        return image, self.target(index)

    def target(self, index: int) -> Any:
        """The target of an image."""
        return int(self.targets[index])

    def names(self) -> list[str]:
        """Names of all images, in order."""
        return [self.source.name(index) for index in range(len(self))]
