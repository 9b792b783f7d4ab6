"""The batches of an epoch whose order of rows is drawn every epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from fairseq.data import data_utils

__all__ = ["EpochBatches"]


class EpochBatches:
    """Draws the batches of an epoch as fairseq does for a new iterator, so that one iterator serves all epochs.

    Args:
        task: Filters rows by their size.
        seed: With the number of the epoch it decides the order.
        max_tokens: Of a batch, padding included; None for any.
        max_sentences: Of a batch; None for any.
        max_positions: Of a row; None for any.
        ignore_invalid_inputs: Leave out longer rows instead of raising.
        required_batch_size_multiple: Of the number of rows.
        **others: What else `FairseqTask.get_batch_iterator` is given; the defaults are its own.
    """

    def __init__(
        self,
        task: Any,
        *,
        seed: int = 1,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        max_positions: Any = None,
        ignore_invalid_inputs: bool = False,
        required_batch_size_multiple: int = 1,
        **others: Any,
    ) -> None:
        self.task, self.seed = task, seed
        self.max_positions, self.ignore_invalid_inputs = max_positions, ignore_invalid_inputs
        self.limits = {
            "max_tokens": max_tokens,
            "max_sentences": max_sentences,
            "required_batch_size_multiple": required_batch_size_multiple,
        }

    def __call__(self, dataset: Any, epoch: int) -> list[np.ndarray]:
        """The rows of each batch."""
        with data_utils.numpy_seed(self.seed + epoch):
            rows = dataset.ordered_indices()
        if self.max_positions is not None:
            rows = self.task.filter_indices_by_size(rows, dataset, self.max_positions, self.ignore_invalid_inputs)
        batches: list[np.ndarray] = dataset.batch_by_size(rows, **self.limits)
        return batches
