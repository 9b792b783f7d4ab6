"""From text to the ids of a fairseq dictionary: one encoder for preprocessing and for prediction.

Speed comes from remembering pieces: in running text nearly every word has been seen before, so a chunk of texts costs
one cut at its blanks, one look-up a word and a few array operations. New words go to the Rust tokenizer together.
Only sentencepiece gets whole texts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sot_base.errors import UsageError
from sot_fairseq.tokenizers.detokenize import MosesDetokenizer
from sot_fairseq.tokenizers.subwords import SUBWORDS, Gpt2Subwords, SentencePieceSubwords, Subwords, WordPieceSubwords
from sot_text.formats.dictionary import EOS

__all__ = ["TextEncoder"]

MAX_REMEMBERED = 2**18  # pieces; beyond that, forget them all (about 60 MB)


class _PieceNumbers(dict[str | None, int]):
    """Number of each piece; looking an unknown piece up numbers it and lists it in `new`."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, piece: str) -> int:
        self.new.append(piece)
        number = self[piece] = len(self)
        return number


class TextEncoder:
    """Encode texts as fairseq's data pipeline does: strip, sub-words, dictionary ids, ``</s>`` at the end.

    Args:
        subwords: The tokenizer.
        moses_detokenize: Detokenize every text first (:mod:`sot_fairseq.tokenizers.detokenize`).

    Example:
        >>> encoder = TextEncoder.from_folder("data-bin/RTE/tokenizer")
        >>> [ids.tolist() for ids in encoder.encode_batch(["Hello world", ""])]
        [[31414, 232, 2], [2]]
    """

    def __init__(self, subwords: Subwords, moses_detokenize: bool = False):
        self.subwords = subwords
        self._detokenize: Callable[[str], str] | None = MosesDetokenizer() if moses_detokenize else None
        self._forget()

    @property
    def moses_detokenize(self) -> bool:
        """Whether texts are detokenized first."""
        return self._detokenize is not None

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str], moses_detokenize: bool = False) -> TextEncoder:
        """Load from a folder with the main file of a tokenizer and what belongs to it.

        That is ``vocab.bpe`` (GPT-2), ``sentencepiece.bpe.model`` or ``vocab.txt`` (WordPiece).

        Raises:
            UsageError: If it holds none, or more than one, or broken files.
        """
        folder = Path(folder)
        kinds = [kind for kind in SUBWORDS.values() if (folder / kind.vocab_file).is_file()]
        if len(kinds) != 1:
            names = " or ".join(kind.vocab_file for kind in SUBWORDS.values())
            raise UsageError(f"need one of {names} in the folder: {folder.absolute()}; give a tokenizer's folder")
        return cls(kinds[0](folder), moses_detokenize)

    @classmethod
    def gpt2(cls, folder: str | os.PathLike[str], moses_detokenize: bool = False) -> TextEncoder:
        """Load GPT-2's BPE. See :class:`Gpt2Subwords`."""
        return cls(Gpt2Subwords(folder), moses_detokenize)

    @classmethod
    def sentencepiece(cls, model: str | os.PathLike[str], moses_detokenize: bool = False) -> TextEncoder:
        """Load a sentencepiece model. See :class:`SentencePieceSubwords`."""
        return cls(SentencePieceSubwords(model), moses_detokenize)

    @classmethod
    def wordpiece(
        cls,
        vocab: str | os.PathLike[str],
        lower_case: bool | None = None,
        moses_detokenize: bool = False,
        force_lower_case: bool = False,
    ) -> TextEncoder:
        """Load a WordPiece vocabulary. See :class:`WordPieceSubwords`."""
        return cls(WordPieceSubwords(vocab, lower_case, force_lower_case), moses_detokenize)

    @property
    def vocab_size(self) -> int:
        """Entries of the fairseq dictionary with its four specials, without ``<mask>``."""
        return self.subwords.vocab_size

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything that :meth:`from_folder` needs, and ``dict.txt``, into a new or empty folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.subwords.save(folder)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode each text by itself.

        Returns:
            For each text its int64 ids, ``</s>`` last. An empty text is ``</s>`` alone.

        Raises:
            UsageError: If a text is not a string, or holds half of a surrogate pair; the message gives its row from 0.
        """
        if not len(texts):
            return []
        ids, lengths = self.encode_flat(texts)
        return np.split(ids, np.cumsum(lengths)[:-1])

    def encode_spans(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The text as it is cut into sub-words, and the characters of each one; ``</s>`` has none.

        Raises:
            UsageError: As :meth:`encode_batch`.
        """
        _check_texts([text])
        text = (text if self._detokenize is None else self._detokenize(text)).strip()
        return text, self.subwords.spans(text)

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode texts (at least one) into one array of ids; the second array has the number of ids of each text.

        Raises:
            UsageError: As :meth:`encode_batch`.
        """
        if self._detokenize is not None:
            _check_texts(texts)
            texts = [self._detokenize(text) for text in texts]
        if self.subwords.whole_texts:
            return self._encode_whole(texts)
        if len(self._numbers) > MAX_REMEMBERED:
            self._forget()
        split = self.subwords.split
        pieces: list[str | None] = []
        counts: list[int] = []
        try:
            for text in texts:
                cut = split(text.strip())
                pieces += cut
                pieces.append(None)  # stands for </s>
                counts.append(len(cut) + 1)
            numbers = np.fromiter(map(self._numbers.__getitem__, pieces), np.int64, len(pieces))
            self._learn()
        except BaseException as error:
            self._forget()  # pieces that are numbered, but have no ids yet
            if isinstance(error, (AttributeError, TypeError, UnicodeError)):
                _check_texts(texts)
            raise
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1]) + np.repeat(self._starts[numbers] - (ends - lengths), lengths)
        last_pieces = np.cumsum(counts) - 1
        return self._ids[places], np.diff(ends[last_pieces], prepend=0)

    def _encode_whole(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        _check_texts(texts)
        ids, lengths = self.subwords.encode([text.strip() for text in texts])
        return np.insert(ids, np.cumsum(lengths), EOS), lengths + 1

    def _forget(self) -> None:
        self._numbers = _PieceNumbers()
        self._numbers[None] = 0
        self._ids = np.array([EOS])
        self._starts = np.array([0])
        self._lengths = np.array([1])

    def _learn(self) -> None:
        """Append the ids of new pieces to the tables."""
        new = self._numbers.new
        if not new:
            return
        ids, lengths = self.subwords.encode(new)
        starts = len(self._ids) + np.cumsum(lengths) - lengths
        self._ids = np.concatenate([self._ids, ids])
        self._starts = np.concatenate([self._starts, starts])
        self._lengths = np.concatenate([self._lengths, lengths])
        new.clear()


def _check_texts(texts: Sequence[str]) -> None:
    """Raise `UsageError` for the first row that is not a text."""
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"{type(text).__name__} where a text is expected: row {row}; give a string, '' if need be")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(f"half of a surrogate pair in a text: row {row}; decode the text as UTF-8") from None
