"""Token states of rows in memory: what has been encoded once is not encoded again, as in a cross-validation."""

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
Row = tuple[Tensor, ...]  # of each layer (T, D)


class RowCache:
    """States of rows by a key of their content; those that were used least recently make room for others.

    Args:
        max_bytes: Size of the states that are kept.
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
            keys: For each row what tells its content.
            lengths: Tokens of each row.
            encode: Gives the states of some rows by their numbers, for each layer (B, T, D), padded at the right.
            max_tokens: Tokens to encode at once, padding included.
        """
        found: dict[str, Row] = {key: self._rows[key] for key in keys if key in self._rows}
        missing = np.array([row for row, key in enumerate(keys) if key not in found], dtype=np.int64)
        first = {keys[row]: row for row in missing[::-1].tolist()}  # of equal rows one is encoded
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
