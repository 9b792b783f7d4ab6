"""Configurations that hold an expression: in each field they have, and in others that fairseq evaluates."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sot_fairseq.fairseq_patches.option_types import LITERALS

EVALUATED = (  # by parts of fairseq that no checkpoint may name, and by options of other spelling
    *LITERALS,
    *("xformers_att_config", "character_filters", "conv_feature_layers", "conv_aggregator_layers", "wer_args"),
    *("left_pad_source", "left_pad_target", "decoder_layers", "decoder_attention", "pretrained", "user_dir"),
)


def expression(canary: Path) -> str:
    """Python that makes the file."""
    return f'open("{canary}","w").close()'


def fields(config: Any, path: tuple = ()) -> Iterator[tuple]:
    """The paths of all values in a configuration: through dictionaries, namespaces and lists, and those themselves."""
    items = vars(config) if isinstance(config, argparse.Namespace) else config
    if path:
        yield path
    if isinstance(items, Mapping):
        for name, value in items.items():
            yield from fields(value, (*path, name))
    elif isinstance(items, (list, tuple)):
        for index, value in enumerate(items):
            yield from fields(value, (*path, index))


def added_fields(config: Any) -> Iterator[tuple]:
    """Paths of fields that a checkpoint need not have, but fairseq evaluates where it finds them."""
    if isinstance(config, argparse.Namespace):
        yield from ((name,) for name in EVALUATED)
    else:
        yield from ((section, name) for section in ("model", "task", "criterion", "optimizer") for name in EVALUATED)


def without(config: Mapping[str, Any], path: tuple) -> dict[str, Any]:
    """A copy of a configuration without a section or an option of one."""
    step, *rest = path
    if not rest:
        return {key: value for key, value in config.items() if key != step}
    options = config[step]
    if isinstance(options, argparse.Namespace):
        return {**config, step: argparse.Namespace(**without(vars(options), tuple(rest)))}
    return {**config, step: without(options, tuple(rest))}


def with_value(config: Any, path: tuple, value: Any) -> Any:
    """A copy of a configuration with another value in one place; what is not changed is shared."""
    if not path:
        return value
    step, *rest = path
    if isinstance(config, argparse.Namespace):
        return argparse.Namespace(**with_value(vars(config), path, value))
    if isinstance(config, Mapping):
        return {**config, step: with_value(config.get(step), rest, value)}
    return type(config)(with_value(item, rest, value) if i == step else item for i, item in enumerate(config))


def as_args(config: Mapping[str, Any]) -> argparse.Namespace:
    """The flat namespace that older versions of fairseq keep in a checkpoint, of the sections of `config`."""
    flat: dict[str, Any] = {}
    for options in config.values():
        flat |= options if isinstance(options, dict) else vars(options) if options is not None else {}
    for section in ("task", "criterion", "optimizer", "lr_scheduler"):
        flat[section] = config[section]["_name"]
    flat["arch"] = flat.pop("_name")
    return argparse.Namespace(**{**flat, "arch": vars(config["model"])["_name"], "bpe": None, "tokenizer": None})
