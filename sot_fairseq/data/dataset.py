"""Data sets of sentence classification: pairs within the length limit, and batches of similar length."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset
from torch import Tensor

from sot_base.errors import UsageError
from sot_fairseq.data.truncation import longest_first
from sot_fairseq.fairseq_patches.stop_signals import leave_signals_to_the_parent

__all__ = ["BatchedDataset", "SentenceDataset"]

logger = logging.getLogger(__name__)


class SentenceDataset(FairseqDataset):
    """Token numbers of a sentence, or of two as one sequence, cut to a maximum length with their separators kept.

    ``[init] a ... </s>`` and ``[init] a ... </s> [separator] b ... </s>``.

    Args:
        first: Sentences, each ending in ``</s>``.
        second: Second sentences, or None.
        init_token: Number put first, or None.
        separator_token: Number put before the second sentence, or None.
        max_length: Most tokens of a sequence, special ones included.
        split: Name of the split, for the log.

    Raises:
        UsageError: if the two hold different numbers of rows or the limit leaves no room for a token.
    """

    def __init__(
        self,
        first: FairseqDataset,
        second: FairseqDataset | None,
        init_token: int | None,
        separator_token: int | None,
        max_length: int,
        split: str,
    ) -> None:
        super().__init__()
        if second is not None and len(second) != len(first):
            raise UsageError(
                f"input0 has {len(first)} rows and input1 {len(second)}: split {split!r}; preprocess it again"
            )
        self.first, self.second = first, second
        self.init = [] if init_token is None else [init_token]
        self.separator = [] if separator_token is None or second is None else [separator_token]
        ends = 1 if second is None else 2
        special = len(self.init) + len(self.separator) + ends
        if max_length <= special:
            raise UsageError(f"--max-positions {max_length} leaves no room beside {special} special tokens; give more")
        lengths = [np.asarray(part.sizes) - 1 for part in (first, second) if part is not None]
        total = sum(lengths) + special
        self.kept = longest_first(lengths[0], lengths[1] if ends == 2 else 0 * lengths[0], max_length - special)
        self.sizes = sum(self.kept) + special
        cut = int((total > max_length).sum())
        if cut:
            logger.warning("%d of %d rows of split %r cut to %d tokens", cut, len(first), split, max_length)

    def __getitem__(self, index: int) -> Tensor:
        parts = [torch.tensor(self.init, dtype=torch.long), _cut(self.first[index], self.kept[0][index])]
        if self.second is not None:
            parts += [torch.tensor(self.separator, dtype=torch.long), _cut(self.second[index], self.kept[1][index])]
        return torch.cat(parts)

    def __len__(self) -> int:
        return len(self.first)

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    num_tokens = size


def _cut(tokens: Tensor, kept: int) -> Tensor:
    """The first ``kept`` tokens and the ``</s>`` at the end."""
    return tokens if len(tokens) == kept + 1 else torch.cat((tokens[:kept], tokens[-1:]))


class BatchedDataset(BaseWrapperDataset):
    """Batches of rows of about the same length, so that little is padded, and without losing a row.

    For training, rows are ordered by length times a random factor within 25 %, anew every epoch; fairseq cuts the
    order into batches and shuffles those. (It seeds numpy with seed and epoch before it asks for the order, which
    makes it repeatable.) For evaluation they are ordered by length.

    fairseq by itself drops the last batch, in training and in validation, when its size is not a multiple of
    ``--required-batch-size-multiple`` (8 by default); here it is kept.

    Args:
        dataset: The rows.
        training: Whether the order is drawn every epoch.
        keep_order: Leave the rows as they are.
        split: Name of the split, for messages.
    """

    def __init__(self, dataset: Any, training: bool, keep_order: bool, split: str) -> None:
        super().__init__(dataset)
        self.training, self.keep_order, self.split = training, keep_order, split

    def check_max_tokens(self, max_tokens: int | None) -> None:
        """Refuse a limit that a row alone exceeds.

        Raises:
            UsageError: naming the row.
        """
        lengths = np.asarray(self.dataset.sizes[0])
        if max_tokens is not None and len(lengths) and lengths.max() > max_tokens:
            row = int(lengths.argmax())
            flag = "--max-tokens" if self.training else "--max-tokens or --max-tokens-valid"
            raise UsageError(
                f"row {row + 1} of split {self.split!r} has {lengths[row]} tokens, a batch at most {max_tokens}: "
                f"{flag}; give {lengths[row]} or more, or a smaller --max-positions"
            )

    def __getitem__(self, index: int) -> Any:
        leave_signals_to_the_parent()
        return super().__getitem__(index)

    def ordered_indices(self) -> np.ndarray:
        if self.keep_order:
            return np.arange(len(self))
        lengths = np.asarray(self.dataset.sizes[0], dtype=np.float64)
        if self.training:
            lengths = lengths * np.random.uniform(0.8, 1.25, len(lengths))
        return np.argsort(lengths, kind="stable")

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        self.check_max_tokens(max_tokens)
        batches = list(super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple))
        left = indices[sum(len(batch) for batch in batches) :]
        return [*batches, left] if len(left) else batches

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """As the rows' own, with the name of the split and its number of rows as ``split``."""
        batch = super().collater(samples)
        return {**batch, "split": (self.split, len(self))} if batch else batch

    @property
    def draws_order(self) -> bool:
        """Whether every epoch has an order of its own."""
        return self.training and not self.keep_order

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        return True
