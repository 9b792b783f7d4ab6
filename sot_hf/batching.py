"""Batches of rows of similar length: little padding, few shapes, an order that depends on seed and epoch alone.

A batch is as wide as its longest row, rounded up (:func:`padded_length`). In training, rows are sorted into buckets by
length, shuffled within their bucket and cut into batches, which are shuffled again. A bucket spans an eighth of an
octave, and its borders move from epoch to epoch. Measured with MiniLM's tokenizer and 32 rows a batch: 1.7 % of the
tokens are padding on CoLA, 4.4 % on RTE (51 and 48 % in random order), and in ten epochs a row meets as many other rows
as in the mega-batches of transformers' ``group_by_length`` (4.0 and 4.8 % without rounding).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, Dataset
from transformers import BatchEncoding, DataCollatorWithPadding, PreTrainedTokenizerBase

from sot_base.errors import UsageError

__all__ = ["LengthBatchSampler", "PaddingCollator", "SortedByLength", "padded_length", "row_lengths"]

STEPS_PER_OCTAVE = 16  # sizes of batches between two powers of two
BUCKETS_PER_OCTAVE = 8


def padded_length(length: int, limit: int | None = None) -> int:
    """Round a length up so that few sizes occur: 16 of them between two powers of two.

    Args:
        length: Tokens of the longest row (> 0).
        limit: The longest row that the model takes; None: no limit.

    Example:
        >>> [padded_length(length) for length in (7, 31, 33, 70, 127, 200)]
        [7, 31, 34, 72, 128, 200]
    """
    step = max(1, (1 << (length.bit_length() - 1)) // STEPS_PER_OCTAVE)
    rounded = -(-length // step) * step
    return rounded if limit is None else max(length, min(rounded, limit))


def row_lengths(dataset: Dataset) -> np.ndarray:
    """Tokens of each row of a dataset of tokenized texts, special ones included.

    Shape:
        (rows,), int64.
    """
    rows = getattr(dataset, "encodings", dataset)
    return np.array([len(rows[row]["input_ids"]) for row in range(len(rows))], dtype=np.int64)


class LengthBatchSampler(BatchSampler):
    """Batches of training rows: rows of similar length go together, in an order of its own in every epoch.

    Each process of several takes every n-th batch; all of them get as many batches, so a few batches may come twice in
    an epoch.

    Args:
        lengths: Tokens of each row.
        batch_size: Rows of a batch (> 0); with `max_tokens` the most there may be, None: no limit.
        seed: Of the order.
        max_tokens: The most tokens of a batch, padding included; None: no limit.
        limit: As of :func:`padded_length`.
        drop_last: Whether the one batch of fewer than `batch_size` rows is left out.
        rank: Number of this process.
        world_size: Number of processes.

    Raises:
        UsageError: If a row has more than `max_tokens` tokens, or no batch is left.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int | None,
        seed: int,
        max_tokens: int | None = None,
        limit: int | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.lengths, self.batch_size, self.seed, self.max_tokens = lengths, batch_size, seed, max_tokens
        self.drop_last, self.rank, self.world_size = drop_last, rank, world_size
        self.sizes = np.array([padded_length(length, limit) for length in lengths.tolist()])
        self.epoch = 0
        longest = int(self.sizes.max())
        if max_tokens is not None and longest > max_tokens:
            raise UsageError(
                f"a row takes {longest} tokens: --max_tokens {max_tokens}; give {longest} or more, or a lower "
                "--max_seq_length"
            )
        self.count = len(self._batches())
        if not len(self):
            raise UsageError(
                f"no batch for {len(lengths)} rows: --dataloader_drop_last; leave it out, or give a smaller "
                "--per_device_train_batch_size"
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0 on, whose order the next iteration has."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count // self.world_size if self.drop_last else -(-self.count // self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._batches()
        for number in range(self.rank, len(self) * self.world_size, self.world_size):
            yield batches[number % len(batches)].tolist()

    def _batches(self) -> list[np.ndarray]:
        """All batches of the epoch, for all processes; every epoch has as many."""
        random = np.random.default_rng((self.seed, self.epoch))
        if self.max_tokens is None:
            shift = random.random()
            buckets = np.floor(np.log2(self.lengths) * BUCKETS_PER_OCTAVE + shift)
        else:
            buckets = self.sizes
        order = random.permutation(len(self.lengths))
        order = order[np.argsort(-buckets[order], kind="stable")]
        ends = self._equal_cuts(random) if self.max_tokens is None else self._budget_cuts(order)
        batches = [order[start:end] for start, end in pairwise([0, *ends])]
        if self.drop_last and self.max_tokens is None:
            batches = [batch for batch in batches if len(batch) == self.batch_size]
        return [batches[number] for number in random.permutation(len(batches))]

    def _equal_cuts(self, random: np.random.Generator) -> list[int]:
        """Ends of batches of `batch_size` rows; the one with fewer lies anywhere."""
        rows, size = len(self.lengths), self.batch_size or len(self.lengths)
        sizes = np.full(-(-rows // size), size)
        sizes[random.integers(len(sizes))] -= len(sizes) * size - rows
        return np.cumsum(sizes).tolist()

    def _budget_cuts(self, order: np.ndarray) -> list[int]:
        """Ends of batches that hold as many rows as `max_tokens` allows; the longest row of each is its first one."""
        ends, sizes, most = [0], self.sizes[order].tolist(), self.batch_size or len(order)
        while ends[-1] < len(order):
            fitting = min(most, self.max_tokens // sizes[ends[-1]])
            ends.append(min(ends[-1] + fitting, len(order)))
        return ends[1:]


class SortedByLength(Dataset):
    """A dataset from its longest row to its shortest.

    Args:
        dataset: Tokenized rows.

    Attributes:
        order: For each of its rows the number it has in `dataset`.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.order = np.argsort(-row_lengths(dataset), kind="stable")

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.order[index])]

    def in_row_order(self, values: np.ndarray) -> np.ndarray:
        """Put values of the sorted rows, the first axis, back into the order of `dataset`."""
        restored = np.empty_like(values)
        restored[self.order] = values
        return restored


class PaddingCollator:
    """Puts rows into a batch that is as wide as :func:`padded_length` says.

    Args:
        tokenizer: Pads.
        limit: As of :func:`padded_length`.
        to_limit: Whether every batch is `limit` wide.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: int, to_limit: bool = False) -> None:
        self.tokenizer, self.limit, self.to_limit = tokenizer, limit, to_limit

    def __call__(self, rows: Sequence[dict[str, Any]]) -> BatchEncoding:
        width = self.limit
        if not self.to_limit:
            width = padded_length(max(len(row["input_ids"]) for row in rows), self.limit)
        pad = DataCollatorWithPadding(self.tokenizer, padding="max_length", max_length=width)
        batch: BatchEncoding = pad(list(rows))
        return batch
