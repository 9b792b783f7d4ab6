"""A fast writer of fairseq's memory-mapped data sets (``.bin`` and ``.idx``).

The files are byte for byte those of fairseq's ``MMapIndexedDatasetBuilder``, which writes sample
by sample; here whole chunks are written from one flat array.
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType

import numpy as np

from sot_base.errors import UsageError

__all__ = ["IndexedWriter", "check_indexed", "fitting_dtype"]

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
OTHER_MAGICS = (b"TNTIDX\x00\x00", b"HUFFIDX\x00")  # of older and of packed data
HEADER_SIZE = len(MAGIC) + 17
DTYPES = {  # of ids, by fairseq's code
    number: np.dtype(kind)
    for number, kind in enumerate((np.uint8, np.int8, np.int16, np.int32, np.int64, float, float, np.uint16), 1)
} | {9: np.dtype(np.uint32), 10: np.dtype(np.uint64)}
DTYPE_CODES = {DTYPES[8]: 8, DTYPES[9]: 9}


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


def check_indexed(prefix: str, vocab_size: int) -> None:
    """Check a split before fairseq maps it into memory: the index fits both files, and every id the dictionary.

    Args:
        prefix: Path of the files without their suffix.
        vocab_size: Number of dictionary entries, special tokens included.

    Raises:
        UsageError: If a file is damaged, or of another dictionary.
    """
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    remedy = "preprocess the data again"
    if not index.is_file():
        return
    content = index.read_bytes()
    if content.startswith(OTHER_MAGICS):
        return
    if not data.is_file():
        raise UsageError(f"no data beside the index: {data.absolute()}; {remedy}")
    problem = _problem(content, data.stat().st_size)
    if problem:
        raise UsageError(f"the index is damaged ({problem}): {index.absolute()}; {remedy}")
    if data.stat().st_size == 0:
        return
    ids = np.memmap(data, dtype=DTYPES[content[len(MAGIC) + 8]], mode="r")
    lowest, highest = ids.min(), ids.max()
    if not 0 <= lowest <= highest < vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise UsageError(
            f"the id {wrong} is not in the dictionary of {vocab_size} entries: {data.absolute()}; {remedy}"
        )


def _problem(content: bytes, data_size: int) -> str | None:
    """What is wrong with an index of data of a size."""
    if len(content) < HEADER_SIZE or not content.startswith(MAGIC):
        return "it is none"
    version, code, rows = struct.unpack("<QBQ", content[len(MAGIC) : HEADER_SIZE])
    if version != VERSION or code not in DTYPES:
        return f"version {version}, type {code}"
    if len(content) != HEADER_SIZE + rows * 12:
        return f"{rows} rows in {len(content)} bytes"
    lengths = np.frombuffer(content, np.int32, rows, HEADER_SIZE).astype(np.int64)
    starts = np.frombuffer(content, np.int64, rows, HEADER_SIZE + 4 * rows)
    ends = np.cumsum(lengths) * DTYPES[code].itemsize
    if (lengths < 1).any() or (starts != ends - lengths * DTYPES[code].itemsize).any():
        return "rows do not lie one after the other"
    total = int(ends[-1]) if rows else 0
    return None if total == data_size else f"{total} bytes of data, the file has {data_size}"
