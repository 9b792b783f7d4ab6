"""Images as the rows of a probe: loading in the order of the plan, and a digest for the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sot_probe.fingerprint import array_digest
from sot_probe.store_writer import SplitPlan
from vision.data import BadImages, ImageSet, create_eval_loader
from vision.data.files import FolderTree
from vision.data.multi_label import MultiLabelSet
from vision.data.sources import ArraySource, TreeImages
from vision.probing.image_encoder import ImageEncoder

__all__ = ["ImageStates", "source_digest"]


class ImageStates:
    """The encoder over the images of all splits, see `sot_probe.store_writer.StateEncoder`.

    Args:
        encoder: The encoder.
        sources: The images by split.
        batch_size: Images in a forward pass.
        workers: Number of loading processes.
    """

    def __init__(self, encoder: ImageEncoder, sources: Mapping[str, Any], batch_size: int, workers: int) -> None:
        self.encoder, self.sources, self.batch_size, self.workers = encoder, sources, batch_size, workers
        self.layers = [f"layer-{layer}" for layer in encoder.layers]
        self.embed_dim, self.start = encoder.embed_dim, encoder.start
        self.plans = {name: self._plan(len(source.targets)) for name, source in sources.items()}
        self._batches: dict[str, Iterator[Any]] = {}
        self._next: dict[str, int] = {}

    def _plan(self, rows: int) -> SplitPlan:
        numbers = np.arange(rows)
        batches = [numbers[begin : begin + self.batch_size] for begin in range(0, rows, self.batch_size)]
        return SplitPlan(np.full(rows, self.encoder.num_tokens), batches)

    def encode(self, split: str, rows: np.ndarray) -> list[Tensor]:
        """Encode the next images; loading restarts at ``rows`` if complete shards were skipped."""
        first = int(rows[0])
        if self._next.get(split) != first:
            source = self.sources[split]
            rest = range(first, len(source.targets))
            loader = create_eval_loader(
                ImageSet(source) if source.targets.ndim == 1 else MultiLabelSet(source),
                self.encoder.data_config,
                self.batch_size,
                workers=self.workers,
                bad_images=BadImages(),
                indices=rest,
            )
            self._batches[split] = iter(loader)
        self._next[split] = int(rows[-1]) + 1
        images, _ = next(self._batches[split])
        return self.encoder.encode(images)


def source_digest(source: Any) -> str:
    """A digest of the images of a split: of their values, or of names, sizes and times of their files."""
    if isinstance(source, ArraySource):
        return array_digest([source.images])
    if not isinstance(source, TreeImages):
        raise TypeError(f"no images: {type(source).__name__}")
    root = Path(source.tree.root)
    files = [Path(source.where) / path for path in source.paths] if isinstance(source.tree, FolderTree) else [root]
    stamps = [(status.st_size, status.st_mtime_ns) for status in (file.stat() for file in files)]
    return array_digest([np.frombuffer(json.dumps([source.where, source.paths, stamps]).encode(), np.uint8)])
