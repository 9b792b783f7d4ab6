"""fairseq's ``dict.txt``: one ``<token> <count>`` a line, numbered from 4 after fairseq's own special tokens."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from sot_base.errors import UsageError
from sot_base.small_files import read_text

__all__ = ["SPECIALS", "TokenId", "BOS", "PAD", "EOS", "UNK", "MASK", "read_dictionary", "write_dictionary"]

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
BOS, PAD, EOS, UNK = range(len(SPECIALS))
MAX_BYTES = 64 * 2**20
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]
MAX_DIGITS = 18  # of a count
MASK = "<mask>"  # no line of the file: the sentence_prediction task adds it after the last one


def read_dictionary(path: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """Read the (token, count) pairs as :class:`fairseq.data.Dictionary` does; pair i has the id ``i + 4``.

    Raises:
        UsageError: If the file is absent or not UTF-8, or a line is malformed or repeats a token.
    """
    path = Path(path)
    lines = io.StringIO(read_text(path, "give fairseq's dict.txt", MAX_BYTES), newline=None).readlines()
    entries: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        token, space, count = line.rstrip().rpartition(" ")
        if not (space and count.isdecimal() and len(count) <= MAX_DIGITS):
            raise UsageError(f"not '<token> <count>': {path} line {number}; give fairseq's dict.txt")
        if token in entries or token in SPECIALS:
            raise UsageError(f"{token!r} is repeated: {path} line {number}; give fairseq's dict.txt")
        entries[token] = int(count)
    return list(entries.items())


def write_dictionary(path: str | os.PathLike[str], entries: Iterable[tuple[str, int]]) -> None:
    """Write (token, count) pairs as fairseq does."""
    text = "".join(f"{token} {count}\n" for token, count in entries)
    Path(path).write_text(text, encoding="utf-8", newline="\n")
