"""The word pieces in a Hugging Face ``tokenizer.json``: newer versions save no ``vocab.txt`` beside it."""

from __future__ import annotations

from pathlib import Path

from sot_base.errors import UsageError
from sot_text.formats.architecture import read_json
from sot_text.formats.wordpiece import LAST, LEADING

__all__ = ["read_tokenizer_json"]


def read_tokenizer_json(path: Path) -> list[str]:
    """Return the entries by id, as :func:`~sot_text.formats.wordpiece.read_vocab` does for ``vocab.txt``.

    Raises:
        UsageError: If it is no WordPiece tokenizer, numbers are missing, or a special token is.
    """
    content = read_json(path)
    model = content.get("model", {})
    if model.get("type") != "WordPiece":
        raise UsageError(f"not a WordPiece tokenizer: {path.resolve()}; give the tokenizer of a BERT or its vocab.txt")
    numbers: dict[str, int] = dict(model["vocab"])
    for token in content.get("added_tokens", []):
        numbers.setdefault(token["content"], token["id"])
    pieces = sorted(numbers, key=numbers.__getitem__)
    if [numbers[piece] for piece in pieces] != list(range(len(pieces))):
        raise UsageError(f"the entries are not numbered from 0 without a gap: {path.resolve()}; give its vocab.txt")
    missing = [name for name in (*LEADING, LAST) if name not in numbers]
    if missing:
        raise UsageError(f"no {' '.join(missing)} in the vocabulary: {path.resolve()}; give the tokenizer of a BERT")
    return pieces
