"""Token states of a set of rows, in memory or memory-mapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["TokenStates"]


@dataclass(frozen=True)
class TokenStates:
    """Token states of rows, of one or several layers of an encoder.

    Args:
        layers: For each layer, the states of all tokens; the tokens of a row are contiguous.
        starts: Index of the first token of each row.
        lengths: Number of tokens of each row (> 0).

    Shape:
        layers (tokens, D) each, starts and lengths (rows,), int64.
    """

    layers: tuple[Tensor, ...]
    starts: Tensor
    lengths: Tensor

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Tensor]]) -> TokenStates:
        """Concatenate the states of rows, each a tensor (T, D) for each layer."""
        lengths = torch.tensor([len(row[0]) for row in rows], dtype=torch.int64)
        layers = tuple(torch.cat(list(parts)) for parts in zip(*rows, strict=True))
        return cls(layers, lengths.cumsum(0) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def embed_dim(self) -> int:
        """Token width D."""
        return self.layers[0].shape[-1]

    def subset(self, rows: Tensor) -> TokenStates:
        """The states of some rows, in this order, without copying them."""
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows])

    def gather(self, rows: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """A padded batch.

        Args:
            rows: Indices of the rows.

        Shape:
            rows (B,) -> for each layer states (B, T, D) in float32, and padding_mask (B, T), True at padding, or None
            where no row is padded. Padding repeats the row's first token.
        """
        starts, lengths = self.starts[rows].unsqueeze(1), self.lengths[rows].unsqueeze(1)
        place = torch.arange(int(lengths.max()))
        padding_mask = place >= lengths
        index = starts + place.masked_fill(padding_mask, 0)
        states = tuple(layer[index].float() for layer in self.layers)
        return states, padding_mask if bool(padding_mask.any()) else None
