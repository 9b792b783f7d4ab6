"""Sub-word tokenizers that fairseq models use: from pieces of text to ids of the fairseq dictionary.

A piece is a part of a text that is tokenized independently of what stands around it: usually a word with the space
before it. :class:`~sot_fairseq.tokenizers.tokenization.TextEncoder` remembers the ids of every piece, so each new
piece comes here once.
Each class has a folder of files it loads from and saves to, and one entry in :data:`SUBWORDS`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import regex
from tokenizers import Tokenizer, models, pre_tokenizers

from sot_base.errors import UsageError
from sot_base.small_files import parse_json, read_text
from sot_fairseq.tokenizers.sentencepiece_subwords import SentencePieceSubwords
from sot_text.formats.dictionary import MAX_BYTES, SPECIALS, UNK, TokenId, read_dictionary, write_dictionary
from sot_text.formats.wordpiece import (
    LAST,
    LEADING,
    build_tokenizer,
    read_settings,
    read_vocab,
    word_pieces,
    write_dict,
)

__all__ = ["SUBWORDS", "Gpt2Subwords", "SentencePieceSubwords", "Subwords", "WordPieceSubwords"]

DICT = "dict.txt"
BATCH = 16384  # pieces handed over at once: bounds the memory that the tokenizer's results take


class Subwords(Protocol):
    """What the text encoder needs of a tokenizer."""

    kind: str
    separators: int  # tokens between the two texts of a pair
    vocab_size: int  # entries of the fairseq dictionary with its four specials, without <mask>
    vocab_file: str  # name of the main file in a saved folder
    lower_case: bool | None  # None: the tokenizer knows no casing
    whole_texts: bool  # a text is one piece, which is not worth remembering

    def split(self, text: str) -> list[str]:
        """Cut a text into pieces whose ids, put together, are those of the text."""

    def encode(self, pieces: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all pieces, one after the other, and the number of ids of each piece."""

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return first character and end of each id of a whole text."""

    def save(self, folder: Path) -> None:
        """Write the files that the class can be loaded from, and ``dict.txt``."""


class Gpt2Subwords:
    """GPT-2's byte-level BPE with RoBERTa's dictionary, exactly as in fairseq's ``multiprocessing_bpe_encoder``.

    Words are cut by fairseq's own pattern and the `regex` package it uses, whose Unicode tables are newer than those of
    the Rust tokenizer; that does the merges. A token id without a line in ``dict.txt`` becomes ``<unk>``.

    Args:
        folder: Has ``encoder.json``, ``vocab.bpe`` and ``dict.txt``.

    Raises:
        UsageError: If a file is absent or not what its name says.
    """

    kind = "gpt2"
    separators = 2
    vocab_file = "vocab.bpe"
    lower_case: bool | None = None
    whole_texts = False
    files = ("encoder.json", "vocab.bpe", DICT)
    pattern = regex.compile(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # as in fairseq
    )

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        encoder, merges = self._read_json(), self._read_merges()
        try:
            self._tokenizer = Tokenizer(models.BPE(encoder, merges))
        except Exception as error:  # the Rust library raises a bare Exception
            raise UsageError(
                f"encoder.json and vocab.bpe do not fit together ({str(error)[:200]}): {self.folder}"
            ) from None
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        missing = set(pre_tokenizers.ByteLevel.alphabet()) - encoder.keys()
        if missing:
            raise UsageError(f"{len(missing)} of 256 bytes have no entry: {self.folder / 'encoder.json'}; get it again")
        entries = read_dictionary(self.folder / DICT)
        self.vocab_size = len(SPECIALS) + len(entries)
        index = {token: number for number, (token, _) in enumerate(entries, len(SPECIALS))}
        self._fairseq_id = np.full(max(encoder.values()) + 1, UNK, dtype=np.int64)
        for number in encoder.values():
            self._fairseq_id[number] = index.get(str(number), UNK)

    def _read(self, name: str) -> str:
        return read_text(self.folder / name, f"get fairseq's {', '.join(self.files)}", MAX_BYTES)

    def _read_json(self) -> dict[str, int]:
        where = str((self.folder / "encoder.json").absolute())
        return parse_json(self._read("encoder.json"), dict[str, TokenId], where, "get it again")

    def _read_merges(self) -> list[tuple[str, str]]:
        merges = []
        for number, line in enumerate(self._read("vocab.bpe").split("\n")[1:-1], 2):  # as in fairseq
            left, blank, right = line.partition(" ")
            if not (left and blank and right):
                raise UsageError(f"not '<left> <right>': {self.folder / 'vocab.bpe'} line {number}; get it again")
            merges.append((left, right))
        return merges

    def split(self, text: str) -> list[str]:
        # The pattern never joins two words over a blank, and takes the blank with the word after it. So cutting before
        # every blank is exact if each stands alone and there is no other white space (which str.isprintable excludes).
        if text.isprintable() and "  " not in text:
            return text.replace(" ", "\n ").split("\n")
        words: list[str] = self.pattern.findall(text)
        return words

    def encode(self, pieces: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        words = [self.pattern.findall(piece) for piece in pieces]
        return _encode(self._tokenizer, words, self._fairseq_id, is_pretokenized=True)

    def spans(self, text: str) -> list[tuple[int, int]]:
        words = list(self.pattern.finditer(text))
        encoding = self._tokenizer.encode([word[0] for word in words], is_pretokenized=True, add_special_tokens=False)
        starts = [words[number].start() for number in encoding.word_ids]
        return [(start + a, start + b) for start, (a, b) in zip(starts, encoding.offsets, strict=True)]

    def save(self, folder: Path) -> None:
        for name in ("encoder.json", "vocab.bpe"):
            shutil.copyfile(self.folder / name, folder / name)
        write_dictionary(folder / DICT, read_dictionary(self.folder / DICT))


class WordPieceSubwords:
    """BERT's word pieces, as Hugging Face's ``BertTokenizer`` makes them, with the toolkit's fairseq dictionary.

    ``[SEP]`` and the like in a text are plain text.

    Args:
        vocab: ``vocab.txt``, or the folder it lies in.
        lower_case: Whether text is lower-cased; by default what the vocabulary wants. See
            :func:`sot_text.formats.wordpiece.read_settings`.
        force_lower_case: Whether text is lower-cased even if the vocabulary is cased.

    Raises:
        UsageError: If the vocabulary is absent or malformed, or is not of the casing asked for.
    """

    kind = "wordpiece"
    separators = 1
    vocab_file = "vocab.txt"
    whole_texts = False

    def __init__(self, vocab: str | os.PathLike[str], lower_case: bool | None = None, force_lower_case: bool = False):
        path = Path(vocab) / self.vocab_file if Path(vocab).is_dir() else Path(vocab)
        self.vocab = read_vocab(path)
        self.settings = read_settings(path, self.vocab, lower_case, force_lower_case)
        numbers = {piece: number for number, piece in enumerate(self.vocab)}
        self.lower_case: bool | None = self.settings.do_lower_case
        self._tokenizer = build_tokenizer(self.vocab, self.settings)
        pieces = word_pieces(self.vocab)
        self.vocab_size = len(SPECIALS) + len(pieces)
        order = [*LEADING, *pieces, LAST]
        self._fairseq_id = np.empty(len(order), dtype=np.int64)
        self._fairseq_id[[numbers[piece] for piece in order]] = np.arange(len(order))

    def split(self, text: str) -> list[str]:
        return text.split(" ")

    def encode(self, pieces: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return _encode(self._tokenizer, pieces, self._fairseq_id)

    def spans(self, text: str) -> list[tuple[int, int]]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).offsets)

    def save(self, folder: Path) -> None:
        text = "".join(f"{piece}\n" for piece in self.vocab)
        (folder / self.vocab_file).write_text(text, encoding="utf-8", newline="\n")
        self.settings.save(folder)
        write_dict(self.vocab, folder / DICT)


def _encode(
    tokenizer: Tokenizer,
    inputs: Sequence[str] | Sequence[list[str]],
    fairseq_id: np.ndarray,
    is_pretokenized: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    lengths: list[int] = []
    ids: list[int] = []
    for start in range(0, len(inputs), BATCH):
        encodings = tokenizer.encode_batch_fast(
            inputs[start : start + BATCH], is_pretokenized=is_pretokenized, add_special_tokens=False
        )
        for encoding in encodings:
            numbers = encoding.ids
            lengths.append(len(numbers))
            ids.extend(numbers)
    return fairseq_id[np.array(ids, dtype=np.int64)], np.array(lengths, dtype=np.int64)


SUBWORDS: dict[str, type[Gpt2Subwords] | type[SentencePieceSubwords] | type[WordPieceSubwords]] = {
    subwords.kind: subwords for subwords in (Gpt2Subwords, SentencePieceSubwords, WordPieceSubwords)
}
