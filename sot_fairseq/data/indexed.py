"""A fast writer of fairseq's memory-mapped data sets (``.bin`` and ``.idx``).

The files are byte for byte those of fairseq's ``MMapIndexedDatasetBuilder``, which writes sample
by sample; here whole chunks are written from one flat array.
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType

import numpy as np

__all__ = ["IndexedWriter", "fitting_dtype"]

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPE_CODES = {np.dtype(np.uint16): 8, np.dtype(np.uint32): 9}


def fitting_dtype(vocab_size: int) -> np.dtype:
    """The integer type that fairseq stores the ids of a vocabulary in.

    Args:
        vocab_size: Number of dictionary entries, special tokens included.
    """
    return np.dtype(np.uint16 if vocab_size < 65500 else np.uint32)


class IndexedWriter:
    """Write one split: ``<prefix>.bin`` as samples come, ``<prefix>.idx`` on leaving the context.

    Args:
        prefix: Path of the files without their suffix.
        vocab_size: Number of dictionary entries, special tokens included.

    Example:
        >>> with IndexedWriter(folder / "train", vocab_size=50264) as writer:
        ...     writer.write(np.array([4, 5, 2, 7, 2]), lengths=np.array([3, 2]))
    """

    def __init__(self, prefix: Path, vocab_size: int):
        self.prefix = prefix
        self.dtype = fitting_dtype(vocab_size)
        self._lengths: list[np.ndarray] = []
        self._stream = prefix.with_name(prefix.name + ".bin").open("wb")

    def write(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Append samples.

        Args:
            ids: Token ids of all samples, one after the other.
            lengths: Tokens of each sample; they add up to the length of `ids`.
        """
        self._stream.write(ids.astype(self.dtype).tobytes())
        self._lengths.append(lengths.astype(np.int32))

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        if kind is None:
            self._write_index()

    def _write_index(self) -> None:
        lengths = np.concatenate([np.empty(0, np.int32), *self._lengths])
        ends = np.cumsum(lengths, dtype=np.int64) * self.dtype.itemsize
        starts = np.concatenate([np.zeros(1, np.int64), ends])[: len(lengths)]
        with self.prefix.with_name(self.prefix.name + ".idx").open("wb") as stream:
            stream.write(MAGIC + struct.pack("<QBQ", VERSION, DTYPE_CODES[self.dtype], len(lengths)))
            stream.write(lengths.tobytes())
            stream.write(starts.tobytes())
