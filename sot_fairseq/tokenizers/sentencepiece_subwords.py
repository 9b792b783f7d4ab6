"""sentencepiece models, the tokenizers of XLM-R and CamemBERT: from texts to ids of the fairseq dictionary."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sot_base.errors import UsageError
from sot_text.formats.dictionary import SPECIALS, UNK, read_dictionary, write_dictionary

__all__ = ["SentencePieceSubwords"]

DICT = "dict.txt"
BATCH = 1024  # texts handed over at once: bounds the memory that the pieces take


class SentencePieceSubwords:
    """A sentencepiece model with its fairseq dictionary, exactly as fairseq's own ``sentencepiece`` encoder.

    A model may keep white space or have pieces across it, so a text is not cut at its blanks but encoded as a whole.
    A piece without a line in ``dict.txt`` becomes ``<unk>``.

    Args:
        model: ``sentencepiece.bpe.model``, or the folder it lies in; ``dict.txt`` is beside it.

    Raises:
        UsageError: If a file is absent or not what its name says, the two do not belong together, or the package
            `sentencepiece` is not installed.
    """

    kind = "sentencepiece"
    separators = 2
    vocab_file = "sentencepiece.bpe.model"
    lower_case: bool | None = None
    whole_texts = True

    def __init__(self, model: str | os.PathLike[str]):
        path = Path(model) / self.vocab_file if Path(model).is_dir() else Path(model)
        self.model, self.dictionary = path, path.parent / DICT
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise UsageError(
                "the package sentencepiece is not installed: --bpe sentencepiece; run pip install sentencepiece"
            ) from None
        if not path.is_file():
            raise UsageError(
                f"no sentencepiece model: {path.absolute()}; give the {self.vocab_file} of the encoder's archive"
            )
        try:
            self._processor = SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError):
            raise UsageError(f"not a sentencepiece model: {path.absolute()}; get it again") from None
        tokens = [token for token, _ in read_dictionary(self.dictionary)]
        self.vocab_size = len(SPECIALS) + len(tokens)
        self._fairseq_id = {token: number for number, token in enumerate([*SPECIALS, *tokens])}
        unk = self._processor.unk_id()
        known = sum(self._processor.piece_to_id(token) != unk for token in tokens)
        if 2 * known < len(tokens):
            raise UsageError(
                f"only {known} of {len(tokens)} tokens are pieces of {path.name}: {self.dictionary.absolute()}; "
                "give the two files of one encoder"
            )

    def split(self, text: str) -> list[str]:
        return [text]

    def encode(self, pieces: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids: list[int] = []
        lengths: list[int] = []
        for start in range(0, len(pieces), BATCH):
            for tokens in self._processor.encode(list(pieces[start : start + BATCH]), out_type=str):
                words = " ".join(tokens).split()  # as fairseq: a model that keeps white space has it in its pieces
                ids.extend(self._fairseq_id.get(word, UNK) for word in words)
                lengths.append(len(words))
        return np.array(ids, dtype=np.int64), np.array(lengths, dtype=np.int64)

    def spans(self, text: str) -> list[tuple[int, int]]:
        pieces = self._processor.encode(text, out_type="immutable_proto").pieces
        return [(piece.begin, piece.end) for piece in pieces for _ in piece.piece.split()]

    def save(self, folder: Path) -> None:
        shutil.copyfile(self.model, folder / self.vocab_file)
        write_dictionary(folder / DICT, read_dictionary(self.dictionary))
