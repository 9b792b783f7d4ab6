"""Tokenizers between the sides: the folder ``tokenizer`` of preprocessed fairseq data, and ``tokenizer.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sot_base.errors import UsageError
from sot_base.small_files import read_json, read_text
from sot_text.formats.dictionary import MASK, MAX_BYTES, SPECIALS, TokenId, read_dictionary, write_dictionary
from sot_text.formats.tokenizer_json import TokenizerJson, read_word_pieces
from sot_text.formats.wordpiece import LAST, LEADING, build_tokenizer, read_settings, read_vocab, write_dict

__all__ = ["bert_tokenizer", "read_bert_vocab", "roberta_tokenizer", "save_bert_files", "save_roberta_files"]

ROBERTA_NAMES = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIALS, strict=True))
ROBERTA_NAMES |= {"cls_token": SPECIALS[0], "sep_token": SPECIALS[2], "mask_token": MASK}
BERT_NAMES = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token"), LEADING, strict=True))
BERT_NAMES |= {"mask_token": LAST}


def read_bert_vocab(folder: Path) -> list[str]:
    """The word pieces of a folder with ``vocab.txt`` or ``tokenizer.json``, by their numbers."""
    vocab = folder / "vocab.txt"
    return read_vocab(vocab) if vocab.is_file() else read_word_pieces(folder / "tokenizer.json")


def bert_tokenizer(folder: Path, max_length: int) -> PreTrainedTokenizerFast:
    """BERT's tokenizer from a folder with ``vocab.txt`` and ``tokenizer_config.json``."""
    vocab = read_vocab(folder / "vocab.txt")
    settings = read_settings(folder / "vocab.txt", vocab)
    numbers = {piece: number for number, piece in enumerate(vocab)}
    core = build_tokenizer(vocab, settings)
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, numbers[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        split_special_tokens=True,  # written in a text, [SEP] is text
        do_lower_case=settings.do_lower_case,
        **({"force_lower_case": True} if settings.force_lower_case else {}),
        **BERT_NAMES,
    )


def save_bert_files(source: Path, folder: Path, dictionary: Path) -> list[str]:
    """Write fairseq's files of a BERT tokenizer; returns the word pieces by their Hugging Face numbers."""
    pieces = read_bert_vocab(source)
    file = source / "vocab.txt" if (source / "vocab.txt").is_file() else source / "tokenizer.json"
    settings = read_settings(file, pieces)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8", newline="\n")
    settings.save(folder)
    write_dict(pieces, folder / "dict.txt")
    write_dict(pieces, dictionary)
    return pieces


def roberta_tokenizer(folder: Path, max_length: int) -> PreTrainedTokenizerFast:
    """RoBERTa's tokenizer from ``encoder.json``, ``vocab.bpe`` and ``dict.txt``; its numbers are fairseq's.

    Raises:
        UsageError: If the dictionary lacks a token of the BPE, which it would turn into ``<unk>``.
    """
    encoder = read_json(folder / "encoder.json", dict[str, TokenId], "get it again", MAX_BYTES)
    entries = read_dictionary(folder / "dict.txt")
    token_of = {str(number): token for token, number in encoder.items()}
    names = [*SPECIALS, *(token_of.get(entry, entry) for entry, _ in entries), MASK]
    numbers = {name: number for number, name in enumerate(names)}
    missing = [token for token in encoder if token not in numbers]
    if missing:
        raise UsageError(
            f"{len(missing)} tokens of encoder.json are not in dict.txt: {folder.absolute()}; get them again"
        )
    lines = read_text(folder / "vocab.bpe", "get it again").split("\n")[1:-1]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    try:
        core = Tokenizer(models.BPE(numbers, merges, unk_token=SPECIALS[3]))
    except Exception as error:  # the Rust library raises a bare Exception
        raise UsageError(
            f"encoder.json and vocab.bpe do not fit together ({str(error)[:200]}): {folder.absolute()}"
        ) from None
    core.normalizer = normalizers.Strip()
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, numbers[token]) for token in ("<s>", "</s>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,  # written in a text, </s> is text
        **ROBERTA_NAMES,
    )


def save_roberta_files(source: Path, folder: Path, dictionary: Path) -> None:
    """Write fairseq's files of a RoBERTa tokenizer.

    Raises:
        UsageError: If ``tokenizer.json`` is not a byte-level BPE with RoBERTa's special tokens in fairseq's places.
    """
    file = source / "tokenizer.json"
    content = TokenizerJson.load(file, "BPE", "give the tokenizer of a RoBERTa")
    numbers = content.numbers
    names = sorted(numbers, key=numbers.__getitem__)
    if tuple(names[: len(SPECIALS)]) != SPECIALS or names[-1] != MASK:
        raise UsageError(f"not {' '.join(SPECIALS)} first and {MASK} last: {file.absolute()}; give that of a RoBERTa")
    merges = content.merges
    tokens = set(pre_tokenizers.ByteLevel.alphabet()) | {left + right for left, right in merges}
    encoder, entries = _number_tokens(names[len(SPECIALS) : -1], tokens)
    (folder / "encoder.json").write_text(json.dumps(encoder), encoding="utf-8")
    text = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges)
    (folder / "vocab.bpe").write_text(text, encoding="utf-8", newline="\n")
    for path in (folder / "dict.txt", dictionary):
        write_dictionary(path, entries)


def _number_tokens(names: Sequence[str], tokens: set[str]) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """GPT-2's table of tokens, numbered anew, and the lines of fairseq's dictionary, which name those numbers."""
    encoder: dict[str, int] = {}
    entries: list[tuple[str, int]] = []
    for name in names:
        if name in tokens:
            encoder[name] = len(encoder)
        entries.append((str(encoder[name]) if name in tokens else name, 1))
    return encoder, entries
