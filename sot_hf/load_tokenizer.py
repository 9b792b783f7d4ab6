"""The tokenizer of a model, and how many tokens a sample may have."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tokenizers import normalizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from sot_base.errors import UsageError
from sot_hf.error_text import first_sentence, model_location
from sot_hf.modeling import SoTForSequenceClassification
from sot_text.formats.wordpiece import read_settings, read_vocab

__all__ = ["load_tokenizer", "usable_length"]

logger = logging.getLogger(__name__)

DECODER_TOKENS = {"bos_token": "<|start|>", "sep_token": "<|delimiter|>", "cls_token": "<|extract|>"}
DEFAULT_LENGTH = 128


def load_tokenizer(
    path: str,
    model: SoTForSequenceClassification,
    tokenizer_name: str | None = None,
    do_lower_case: bool = False,
    cache_dir: str | None = None,
    force_lower_case: bool = False,
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Special tokens written in a text (``[SEP]``, ``<s>``) are split like any other text, as on the fairseq side: a text
    cannot forge the border of a pair. A decoder without a separator gets tokens for start, delimiter and end; the
    model's embedding grows with them.

    Args:
        path: Folder or name of the model.
        model: The model.
        tokenizer_name: A tokenizer from elsewhere.
        do_lower_case: Whether the user expects lower-casing; a cased vocabulary keeps the case, with a warning.
        cache_dir: Where downloads are kept.
        force_lower_case: Whether text is lower-cased even with a cased vocabulary; saved with the tokenizer.

    Raises:
        UsageError: If it cannot be read, has more tokens than the model, or cannot be made to lower-case.
    """
    source = tokenizer_name or path
    tokenizer = _read(source, None if tokenizer_name else model, cache_dir)
    rows = model.get_input_embeddings().num_embeddings
    where = model_location(source)
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes of absent files
        raise UsageError(f"no vocabulary: {where}; put the tokenizer's files there, or give --tokenizer_name")
    if len(tokenizer) > rows:
        raise UsageError(
            f"the tokenizer has {len(tokenizer)} tokens, the model {rows}: {where}; give the model's own tokenizer"
        )
    if force_lower_case:
        _lower_case(tokenizer, source)
    elif do_lower_case and _keeps_case(tokenizer):
        logger.warning(
            "the vocabulary of %s is cased: --do_lower_case is ignored, text keeps its case; --force_lower_case "
            "lower-cases it all the same",
            source,
        )
    if model.config.cls_position == "last" and tokenizer.sep_token is None:
        tokenizer = _with_decoder_tokens(tokenizer)
        if len(tokenizer) > rows:  # else it has rows to spare
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.cls_token or tokenizer.unk_token
    return tokenizer


def usable_length(
    model: SoTForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    wanted: int | None,
    pairs: bool = False,
    option: str = "--max_seq_length",
) -> int:
    """The most tokens of a sample, special ones included.

    Args:
        model: The model. Some rows of RoBERTa's position table are not used by any token.
        tokenizer: Its tokenizer.
        wanted: The user's limit; None: 128, or less if the model takes less.
        pairs: Whether samples are pairs of texts; at least one token of each must be left.
        option: What the user calls the limit.

    Raises:
        UsageError: If the model takes less than the user wants, or nothing would be left beside special tokens.
    """
    limits = [tokenizer.model_max_length]
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        tables = [m for name, m in model.backbone.named_modules() if name.endswith("position_embeddings")]
        unused = [t.padding_idx + 1 for t in tables if getattr(t, "padding_idx", None) is not None]
        limits.append(positions - max(unused, default=0))
    most, least = int(min(limits)), tokenizer.num_special_tokens_to_add(pair=pairs) + 1 + pairs
    if wanted is not None and not least <= wanted <= most:
        raise UsageError(f"{option} {wanted}, but the model takes {least} to {most} tokens; give one of these")
    return min(DEFAULT_LENGTH, most) if wanted is None else wanted


def _read(source: str, model: SoTForSequenceClassification | None, cache_dir: str | None) -> PreTrainedTokenizerBase:
    options: dict[str, Any] = {"split_special_tokens": True}
    vocab = Path(source) / "vocab.txt"
    if vocab.is_file() and not any((vocab.parent / f"tokenizer{end}").is_file() for end in (".json", "_config.json")):
        options["do_lower_case"] = read_settings(vocab, read_vocab(vocab)).do_lower_case
    if model is not None:
        options["config"] = model.config.backbone
    try:
        return AutoTokenizer.from_pretrained(source, cache_dir=cache_dir, use_fast=True, **options)
    except Exception as error:
        raise UsageError(
            f"cannot load the tokenizer ({first_sentence(error)}): {model_location(source)}; give --tokenizer_name"
        ) from error


def _keeps_case(tokenizer: PreTrainedTokenizerBase) -> bool:
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is None or normalizer.normalize_str("A") == "A"


def _lower_case(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    """Let BERT's tokenizer lower-case text and strip its accents although the vocabulary is cased."""
    if not _keeps_case(tokenizer):
        return
    normalizer = tokenizer.backend_tokenizer.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        raise UsageError(
            f"not BERT's word pieces, which alone can be lower-cased: --force_lower_case and {model_location(source)}; "
            "leave it out"
        )
    normalizer.lowercase = True
    tokenizer.backend_tokenizer.normalizer = normalizer
    tokenizer.init_kwargs |= {"do_lower_case": True, "force_lower_case": True}  # what is saved
    if hasattr(tokenizer, "do_lower_case"):
        tokenizer.do_lower_case = True  # a BertTokenizer saves its own attribute


def _with_decoder_tokens(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Mark the start, the border of a pair and the end, whose state is classified (GPT's own recipe)."""
    tokenizer.add_special_tokens(DECODER_TOKENS)
    core = tokenizer.backend_tokenizer
    start, delimiter, end = DECODER_TOKENS.values()
    core.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {delimiter} $B {end}",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in (start, delimiter, end)],
    )
    names = {**tokenizer.special_tokens_map, **DECODER_TOKENS, "model_max_length": tokenizer.model_max_length}
    names["model_input_names"] = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=core, split_special_tokens=True, **names)
