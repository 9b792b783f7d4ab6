"""Model and tokenizer of a run: a plain backbone with a new head, or a saved model with its own."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase
from transformers import PreTrainedTokenizerFast as FastTokenizer

from sot_base.errors import UsageError
from sot_hf.configuration import SoTConfig
from sot_hf.modeling import SoTForSequenceClassification
from sot_text.formats.wordpiece import read_settings, read_vocab
from sot_text.glue import GlueTask

__all__ = ["load_config", "load_model", "load_tokenizer", "load_weights", "saved_labels", "usable_length"]

logger = logging.getLogger(__name__)

MODEL_TYPES = {"spanbert": "bert", "gpt": "openai-gpt"}  # names of --model_type that transformers does not have
DECODER_TOKENS = {"bos_token": "<|start|>", "sep_token": "<|delimiter|>", "cls_token": "<|extract|>"}
DEFAULT_LENGTH = 128


def load_config(
    path: str, model_type: str | None = None, config_name: str | None = None, cache_dir: str | None = None
) -> PretrainedConfig:
    """The configuration of a model: an `SoTConfig` for one saved with its head, else the backbone's.

    Args:
        path: Folder or name of the model.
        model_type: Its kind, for a ``config.json`` that does not say; must agree with one that does.
        config_name: Another place of the ``config.json``.
        cache_dir: Where downloads are kept.

    Raises:
        UsageError: if it cannot be read, or is of another kind.
    """
    source = config_name or path
    if os.path.isfile(path):
        raise UsageError(f"a file where a model's folder is expected: {os.path.abspath(path)}; give its folder")
    if not os.path.exists(path) and (path.startswith((os.sep, ".", "~")) or path.count("/") > 1):
        raise UsageError(f"no such model folder: {os.path.abspath(path)}; check the path")
    wanted = None if model_type is None else MODEL_TYPES.get(model_type, model_type)
    if wanted is not None and wanted not in CONFIG_MAPPING:
        raise UsageError(f"no such model type: --model_type {model_type}; leave it out, or give for instance bert")
    try:
        values, _ = PretrainedConfig.get_config_dict(source, cache_dir=cache_dir)
        if not values:
            raise OSError("no config.json")
        if "model_type" in values or wanted is None:
            config = AutoConfig.from_pretrained(source, cache_dir=cache_dir)
        else:
            config = CONFIG_MAPPING[wanted].from_dict(values)
    except UsageError:
        raise
    except Exception as error:  # whatever a configuration trips over that is not as transformers writes it
        raise UsageError(
            f"cannot load the model ({_sentence(error)}): {_where(source)}; give a model folder"
        ) from error
    found = config.backbone.model_type if isinstance(config, SoTConfig) else config.model_type
    if wanted is not None and found != wanted:
        raise UsageError(
            f"a {found} where --model_type {model_type} is given: {_where(source)}; leave --model_type out"
        )
    return config


def saved_labels(config: PretrainedConfig) -> list[str] | None:
    """Names of the classes of a model saved with its head, in order; None for a backbone or a regression."""
    if not isinstance(config, SoTConfig) or config.num_labels < 2:
        return None
    return [str(config.id2label[number]) for number in range(config.num_labels)]


def load_weights(path: str, **arguments: Any) -> SoTForSequenceClassification:
    """As `SoTForSequenceClassification.from_pretrained`.

    Raises:
        UsageError: for whatever keeps it from loading.
    """
    try:
        return SoTForSequenceClassification.from_pretrained(path, **arguments)
    except UsageError:
        raise
    except Exception as error:  # files that are cut off, or no weights at all
        raise UsageError(
            f"cannot load the weights ({_sentence(error)}): {_where(path)}; give a model folder"
        ) from error


def load_model(
    path: str,
    config: PretrainedConfig,
    task: GlueTask,
    head: Mapping[str, Any],
    recipe: Mapping[str, Any],
    train: bool,
    strict_head: bool = False,
    freeze_backbone: bool = False,
    cache_dir: str | None = None,
) -> tuple[SoTForSequenceClassification, GlueTask]:
    """Load a model for a task.

    A saved head is used if it has the task's labels, in whatever order, and the settings asked for. Otherwise a
    training starts a new one, with a warning.

    Args:
        path: Folder or name of the model.
        config: What :func:`load_config` gave.
        task: The task with its labels.
        head: Fields of `HeadConfig` that the user gives.
        recipe: Those that hold otherwise, for a new head on a plain backbone.
        train: Whether the model will be trained.
        strict_head: Whether a saved head that does not fit is an error.
        freeze_backbone: Whether only the head learns.
        cache_dir: Where downloads are kept.

    Returns:
        The model, in float32, and the task with its labels in the model's order.

    Raises:
        UsageError: if there is no head and no training, or a saved head does not fit and may not be replaced.
    """
    names = ["score"] if task.regression else list(task.labels)
    label_arguments: dict[str, Any] = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "regression" if task.regression else "single_label_classification",
    }
    arguments: dict[str, Any] = {"cache_dir": cache_dir, "dtype": torch.float32}
    if not isinstance(config, SoTConfig):
        if not train:
            raise UsageError(f"a backbone without a trained head: {_where(path)}; give --do_train, or a trained model")
        settings = {**recipe, **head}
        config = _new_config(config, settings, label_arguments, freeze_backbone, path)
        return load_weights(path, config=config, **arguments), task
    saved = saved_labels(config)
    same_labels = sorted(map(str.casefold, saved or [])) == sorted(map(str.casefold, task.labels))
    try:
        wanted = SoTConfig(config.backbone, head={**config.head, **head}, num_labels=len(names)).head
    except ValueError as error:
        raise UsageError(f"the head cannot be built: {error}; see docs/heads.md") from error
    model = load_weights(path, **arguments)
    if model.config.freeze_backbone != freeze_backbone:
        model.freeze_backbone(freeze_backbone)
    if same_labels and wanted == config.head:
        if saved is not None:
            order = {name.casefold(): name for name in task.labels}
            task = dataclasses.replace(task, labels=tuple(order[name.casefold()] for name in saved))
        return model, task
    changed = [f"{key} {config.head[key]!r} -> {value!r}" for key, value in wanted.items() if config.head[key] != value]
    if not same_labels:
        changed.insert(0, f"labels {', '.join(saved or ['a number'])} -> {', '.join(names)}")
    problem = f"the saved head has other {'labels' if not same_labels else 'settings'} ({'; '.join(changed)})"
    if strict_head or not train:
        mend = "leave out --strict_head" if train else "train one with --do_train"
        raise UsageError(f"{problem}: {_where(path)}; give a model of this task, or {mend}")
    logger.warning("%s: all of its tensors start from new values", problem)
    config = _new_config(config.backbone, wanted, label_arguments, freeze_backbone, path)
    return SoTForSequenceClassification(config, backbone=model.backbone), task


def load_tokenizer(
    path: str,
    model: SoTForSequenceClassification,
    tokenizer_name: str | None = None,
    do_lower_case: bool = False,
    cache_dir: str | None = None,
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; a decoder's learns tokens for start, delimiter and end, as the model's embedding does.

    Casing is the vocabulary's: with a vocabulary that has upper-case letters, `do_lower_case` gives a warning.

    Args:
        path: Folder or name of the model.
        model: The model; its embedding grows with the tokens added.
        tokenizer_name: Another place of the tokenizer.
        do_lower_case: Whether the user expects lower-casing.
        cache_dir: Where downloads are kept.

    Raises:
        UsageError: if it cannot be read.
    """
    source = tokenizer_name or path
    options: dict[str, Any] = {}
    vocab = Path(source) / "vocab.txt"
    if vocab.is_file() and not any((vocab.parent / f"tokenizer{end}").is_file() for end in (".json", "_config.json")):
        options["do_lower_case"] = read_settings(vocab, read_vocab(vocab)).do_lower_case
    kind = {"config": model.config.backbone} if tokenizer_name is None else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, cache_dir=cache_dir, use_fast=True, **kind, **options)
    except Exception as error:
        raise UsageError(
            f"cannot load the tokenizer ({_sentence(error)}): {_where(source)}; give --tokenizer_name"
        ) from error
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes of absent files
        raise UsageError(f"no vocabulary: {_where(source)}; put the tokenizer's files there, or give --tokenizer_name")
    if len(tokenizer) > rows:
        raise UsageError(
            f"the tokenizer has {len(tokenizer)} tokens, the model {rows}: {_where(source)}; give the model's own one"
        )
    if do_lower_case and _keeps_case(tokenizer):
        logger.warning("the vocabulary of %s is cased: --do_lower_case plays no part, text keeps its case", source)
    if model.config.cls_position == "last" and tokenizer.sep_token is None:
        tokenizer = _with_decoder_tokens(tokenizer)
        if len(tokenizer) > rows:  # else it has rows to spare
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.cls_token or tokenizer.unk_token
    return tokenizer


def usable_length(
    model: SoTForSequenceClassification, tokenizer: PreTrainedTokenizerBase, wanted: int | None, pairs: bool = False
) -> int:
    """The most tokens of a sample, special ones included.

    Args:
        model: The model: RoBERTa's table of positions has rows that no token uses.
        tokenizer: Its tokenizer.
        wanted: The user's limit; None: 128, or less if the model takes less.
        pairs: Whether samples are pairs of texts, of each of which a token is to be left.

    Raises:
        UsageError: if the model takes less than the user wants, or nothing would be left beside special tokens.
    """
    limits = [tokenizer.model_max_length]
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        tables = [m for name, m in model.backbone.named_modules() if name.endswith("position_embeddings")]
        unused = [t.padding_idx + 1 for t in tables if getattr(t, "padding_idx", None) is not None]
        limits.append(positions - max(unused, default=0))
    most, least = int(min(limits)), tokenizer.num_special_tokens_to_add(pair=pairs) + 1 + pairs
    if wanted is not None and not least <= wanted <= most:
        raise UsageError(f"--max_seq_length {wanted}, but the model takes {least} to {most} tokens; give one of these")
    return min(DEFAULT_LENGTH, most) if wanted is None else wanted


def _keeps_case(tokenizer: PreTrainedTokenizerBase) -> bool:
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is None or normalizer.normalize_str("A") == "A"


def _with_decoder_tokens(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Mark a text's start, the border of a pair and the end, whose state is classified (GPT's own recipe)."""
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
    return FastTokenizer(tokenizer_object=core, **names)


def _new_config(
    backbone: PretrainedConfig, head: Mapping[str, Any], labels: Mapping[str, Any], freeze: bool, path: str
) -> SoTConfig:
    try:
        return SoTConfig(backbone, head=head, freeze_backbone=freeze, **labels)
    except ValueError as error:
        raise UsageError(f"the head cannot be built ({error}): {_where(path)}; see docs/heads.md") from error


def _where(path: str) -> str:
    return os.path.abspath(path) if os.path.exists(path) else path


def _sentence(error: BaseException) -> str:
    """The first sentence of a message."""
    lines = str(error).strip().splitlines()
    sentence = lines[0].partition(". ")[0].rstrip(".:") if lines else type(error).__name__
    return f"no {sentence}" if isinstance(error, KeyError) else sentence
