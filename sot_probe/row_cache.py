"""An in-memory cache of token states, so that a cross-validation encodes each row once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sot_probe.states import TokenStates
from sot_probe.store_writer import plan_batches

__all__ = ["RowCache"]

MAX_BYTES = 1 << 30
Row = tuple[Tensor, ...]  # (T, D) for each layer


class RowCache:
    """A least-recently-used cache of the states of rows.

    Args:
        max_bytes: Maximum size of the states.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes, self.size = max_bytes, 0
        self._rows: OrderedDict[str, Row] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies, which leave the rows out."""
        return {**vars(self), "size": 0, "_rows": OrderedDict()}

    def states(
        self,
        keys: Sequence[str],
        lengths: np.ndarray,
        encode: Callable[[np.ndarray], Sequence[Tensor]],
        max_tokens: int,
    ) -> TokenStates:
        """The states of rows, in float32.

        Args:
            keys: A key of the content of each row.
            lengths: Number of tokens of each row.
            encode: Encodes rows by their indices: (B, T, D) for each layer, padded on the right.
            max_tokens: Maximum number of tokens in a batch, padding included.
        """
        found: dict[str, Row] = {key: self._rows[key] for key in keys if key in self._rows}
        missing = np.array([row for row, key in enumerate(keys) if key not in found], dtype=np.int64)
        first = {keys[row]: row for row in missing[::-1].tolist()}  # equal rows are encoded once
        rows = np.array(sorted(first.values()), dtype=np.int64)
        for batch in plan_batches(lengths[rows], max_tokens):
            layers = encode(rows[batch])
            for place, row in enumerate(rows[batch].tolist()):
                found[keys[row]] = tuple(layer[place, : lengths[row]].float().clone() for layer in layers)
        for key in dict.fromkeys(keys):
            self._keep(key, found[key])
        return TokenStates.from_rows([found[key] for key in keys])

    def _keep(self, key: str, row: Row) -> None:
        if key in self._rows:
            self._rows.move_to_end(key)
            return
        self._rows[key] = row
        self.size += _nbytes(row)
        while self.size > self.max_bytes:
            self.size -= _nbytes(self._rows.popitem(last=False)[1])


def _nbytes(row: Row) -> int:
    return sum(layer.nbytes for layer in row)
