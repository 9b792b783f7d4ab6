"""The tokens in a Hugging Face ``tokenizer.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sot_base.errors import UsageError
from sot_base.schema import of_type
from sot_base.small_files import read_json
from sot_text.formats.dictionary import MAX_BYTES, TokenId
from sot_text.formats.wordpiece import LAST, LEADING

__all__ = ["TokenizerJson", "read_word_pieces"]


class _Model(msgspec.Struct):
    vocab: dict[str, TokenId]
    merges: list[str | tuple[str, str]] = []


class _AddedToken(msgspec.Struct):
    content: str
    id: TokenId


class TokenizerJson(msgspec.Struct):
    """What is read of the file.

    Attributes:
        model: The vocabulary and, for a BPE, its merges.
        added_tokens: Special tokens, which the vocabulary need not hold.
    """

    model: _Model
    added_tokens: list[_AddedToken] = []

    @classmethod
    def load(cls, path: Path, kind: str, remedy: str) -> TokenizerJson:
        """Read a file whose tokenizer is of a kind, ``WordPiece`` or ``BPE``.

        Raises:
            UsageError: If it is of another kind, or damaged.
        """
        where = str(path.absolute())
        content = read_json(path, dict[str, Any], remedy, MAX_BYTES)
        model = content.get("model")
        if not isinstance(model, dict) or model.get("type") != kind:
            raise UsageError(f"not a {kind} tokenizer: {where}; {remedy}")
        found = of_type(content, cls, where, remedy)
        if any(isinstance(merge, str) and merge.count(" ") != 1 for merge in found.model.merges):
            raise UsageError(f"a merge that is not a pair of tokens: {where}; {remedy}")
        return found

    @property
    def numbers(self) -> dict[str, int]:
        """All tokens with their ids, the added ones among them."""
        return {token.content: token.id for token in self.added_tokens} | self.model.vocab

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The pairs that a BPE joins, the first ones first."""
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in self.model.merges)
        return [(left, right) for left, right in pairs]


def read_word_pieces(path: Path) -> list[str]:
    """Return the entries by id, as :func:`~sot_text.formats.wordpiece.read_vocab` does for ``vocab.txt``.

    Raises:
        UsageError: If it is not a WordPiece tokenizer, numbers are missing, or a special token is.
    """
    numbers = TokenizerJson.load(path, "WordPiece", "give the tokenizer of a BERT or its vocab.txt").numbers
    pieces = sorted(numbers, key=numbers.__getitem__)
    if [numbers[piece] for piece in pieces] != list(range(len(pieces))):
        raise UsageError(f"the entries are not numbered from 0 without a gap: {path.absolute()}; give its vocab.txt")
    missing = [name for name in (*LEADING, LAST) if name not in numbers]
    if missing:
        raise UsageError(f"no {' '.join(missing)} in the vocabulary: {path.absolute()}; give the tokenizer of a BERT")
    return pieces
