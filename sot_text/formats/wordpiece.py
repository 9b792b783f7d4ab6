"""BERT's WordPiece vocabulary: reading it, its casing, and its order in a fairseq dictionary.

A fairseq dictionary starts with ``<s> <pad> </s> <unk>`` and the task adds ``<mask>`` at the end. They stand for BERT's
``[CLS] [PAD] [SEP] [UNK]`` and ``[MASK]``; the other word pieces lie between, in the order of ``vocab.txt``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

import msgspec
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from sot_base.errors import UsageError
from sot_base.small_files import read_json, read_text
from sot_text.formats.dictionary import MASK, SPECIALS, UNK, write_dictionary

__all__ = [
    "WordPieceSettings",
    "read_settings",
    "read_vocab",
    "word_pieces",
    "fairseq_order",
    "write_dict",
    "build_tokenizer",
]

LEADING = ("[CLS]", "[PAD]", "[SEP]", "[UNK]")  # BERT's names of fairseq's <s> <pad> </s> <unk>
LAST = "[MASK]"
CONFIG = "tokenizer_config.json"


@dataclass(frozen=True)
class WordPieceSettings:
    """How text is normalised before it is cut into word pieces; the names are those of ``tokenizer_config.json``.

    Args:
        do_lower_case: Whether text is lower-cased (an uncased vocabulary).
        strip_accents: Whether accents are removed; None means "where text is lower-cased".
        tokenize_chinese_chars: Whether each CJK character is a word of its own.
        force_lower_case: Whether text is lower-cased although the vocabulary is cased.
    """

    do_lower_case: bool
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    force_lower_case: bool = False

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``tokenizer_config.json`` into `folder`."""
        fields = asdict(self)
        if not self.force_lower_case:
            del fields["force_lower_case"]  # a key of this toolkit: other files are as everywhere
        text = json.dumps(fields, indent=2) + "\n"
        (Path(folder) / CONFIG).write_text(text, encoding="utf-8")


def read_vocab(path: str | os.PathLike[str]) -> list[str]:
    """Read a ``vocab.txt``: one word piece a line, the line's number (from 0) is its BERT id.

    Raises:
        UsageError: If the file is absent or not UTF-8, lacks a special token, holds an entry twice, or one that fairseq
            keeps for itself (``<s>``, ``<mask>``...).
    """
    path = Path(path)
    lines = read_text(path, "give BERT's vocab.txt").split("\n")
    if not lines[-1]:
        lines.pop()
    vocab = [line.removesuffix("\r") for line in lines]
    seen: dict[str, int] = {}
    for number, piece in enumerate(vocab, 1):
        if piece in seen:
            raise UsageError(f"{piece!r} is repeated: {path} lines {seen[piece]} and {number}; give BERT's vocab.txt")
        if piece in (*SPECIALS, MASK):
            raise UsageError(f"fairseq keeps {piece!r} for itself: {path} line {number}; rename the entry")
        seen[piece] = number
    missing = [name for name in (*LEADING, LAST) if name not in seen]
    if missing:
        raise UsageError(f"no {' '.join(missing)} in the vocabulary: {path}; give BERT's vocab.txt")
    return vocab


def build_tokenizer(vocab: Sequence[str], settings: WordPieceSettings) -> Tokenizer:
    """Build BERT's tokenizer, without special tokens: each text is cut as Hugging Face's ``BertTokenizer`` cuts it."""
    numbers = {piece: number for number, piece in enumerate(vocab)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token=LEADING[UNK], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.tokenize_chinese_chars,
        strip_accents=settings.strip_accents,
        lowercase=settings.do_lower_case,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def word_pieces(vocab: Sequence[str]) -> list[str]:
    """The entries without the five special tokens, in order: the lines of the fairseq dictionary."""
    special = {*LEADING, LAST}
    return [piece for piece in vocab if piece not in special]


def fairseq_order(vocab: Sequence[str]) -> list[int]:
    """For each row of a fairseq embedding the row of BERT's embedding it comes from.

    The length is that of `vocab`: 4 specials, the word pieces, and ``<mask>``, which the fairseq task adds at load.

    Example:
        >>> fairseq_order(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s"])
        [2, 0, 3, 1, 5, 6, 4]
    """
    rows = {piece: row for row, piece in enumerate(vocab)}
    return [rows[piece] for piece in (*LEADING, *word_pieces(vocab), LAST)]


def write_dict(vocab: Sequence[str], path: str | os.PathLike[str]) -> None:
    """Write the ``dict.txt`` of a WordPiece vocabulary; every count is 1, for the vocabulary records none."""
    write_dictionary(path, [(piece, 1) for piece in word_pieces(vocab)])


class _TokenizerConfig(msgspec.Struct):
    """What is read of a ``tokenizer_config.json``."""

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = True
    force_lower_case: bool | None = None


def read_settings(
    vocab_file: str | os.PathLike[str],
    vocab: Sequence[str],
    lower_case: bool | None = None,
    force_lower_case: bool = False,
) -> WordPieceSettings:
    """Find out how a vocabulary wants its text: the vocabulary itself decides the casing.

    A vocabulary with upper-case letters (A-Z) is cased, one with lower-case letters only is not. What the command line
    (`lower_case`) or, if it is silent, a ``tokenizer_config.json`` beside the vocabulary says must agree with that.
    For a vocabulary without such letters they decide, and text keeps its case if neither speaks.

    `force_lower_case`, or the key of that name in ``tokenizer_config.json``, lower-cases text even if the vocabulary is
    cased, as BERT's scripts do with ``--do_lower_case``: words then become their lower-case entries, or several pieces.

    Raises:
        UsageError: If they disagree: text would mostly become ``[UNK]``, or lose the case that the encoder learned.
    """
    vocab_file = Path(vocab_file)
    config_file = vocab_file.parent / CONFIG
    config = _read_config(config_file)
    found = _lower_cased(vocab)
    if force_lower_case or config.force_lower_case:
        return _settings(config, True, force=found is False)
    said, where = (config.do_lower_case, config_file) if lower_case is None else (lower_case, "the command line")
    if said is not None and found is not None and said != found:
        letters = "no upper-case letter" if found else "upper-case letters"
        raise UsageError(
            f"{_name(said)} text is asked for, the vocabulary is {_name(found)} ({letters}): {vocab_file} and {where}; "
            f"give the encoder's own vocab.txt, or say --{_name(found)}"
        )
    found = said if found is None else found
    return _settings(config, bool(found))


def _settings(config: _TokenizerConfig, lower_case: bool, force: bool = False) -> WordPieceSettings:
    return WordPieceSettings(
        do_lower_case=lower_case,
        strip_accents=config.strip_accents,
        tokenize_chinese_chars=config.tokenize_chinese_chars is not False,
        force_lower_case=force,
    )


def _name(lower_case: bool) -> str:
    return "uncased" if lower_case else "cased"


def _lower_cased(vocab: Sequence[str]) -> bool | None:
    """Whether a vocabulary is lower-cased; None if it has no Latin letter to tell by."""
    letters = {letter for piece in vocab if not (piece.startswith("[") and piece.endswith("]")) for letter in piece}
    if letters & set(ascii_uppercase):
        return False
    return True if letters & set(ascii_lowercase) else None


def _read_config(path: Path) -> _TokenizerConfig:
    return read_json(path, _TokenizerConfig, "correct or remove it") if path.exists() else _TokenizerConfig()
