"""Which options a checkpoint's configuration may have, and of which types: read from fairseq's own definitions."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerConfig
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

from sot_fairseq.models.sot_roberta import SoTRobertaModel

__all__ = ["LITERALS", "SECTIONS", "allowed_names", "building_options", "fields_of", "option_types"]

SECTIONS = {name: field.type for name, field in FairseqConfig.__dataclass_fields__.items() if name != "_name"}

# What a checkpoint may name: this package's classes and those of fairseq's plain text encoders.
REGISTERED: dict[str, tuple[str, ...]] = {
    "task": (
        *("sentence_prediction_mgcrp", "sentence_prediction", "sentence_ranking"),
        *("masked_lm", "multilingual_masked_lm"),
    ),
    "criterion": ("sentence_prediction_mgcrp", "sentence_prediction", "sentence_ranking", "masked_lm", "cross_entropy"),
    "optimizer": ("adam", "adamax", "adadelta", "adafactor", "adagrad", "cpu_adam", "lamb", "nag", "sgd"),
    "lr_scheduler": (
        *("polynomial_decay", "inverse_sqrt", "cosine", "fixed", "pass_through", "reduce_lr_on_plateau", "step"),
        *("tri_stage", "triangular"),
    ),
    "scoring": ("bleu", "sacrebleu", "chrf", "wer"),
    "bpe": ("gpt2", "sentencepiece", "bert"),
    "tokenizer": ("moses", "nltk", "space"),
}

# Options whose strings fairseq evaluates or takes apart, with the type of their values.
LITERALS: dict[str, Any] = {
    **dict.fromkeys(("adam_betas", "adamax_betas", "lamb_betas", "adafactor_eps"), tuple[float, float]),
    **dict.fromkeys(("encoder_xformers_att_config", "decoder_xformers_att_config"), dict[str, Any]),
    **dict.fromkeys(("adaptive_softmax_cutoff", "adaptive_input_cutoff"), list[int]),
    **dict.fromkeys(("pipeline_balance", "pipeline_encoder_balance", "pipeline_decoder_balance"), list[int]),
    **dict.fromkeys(("pipeline_devices", "pipeline_encoder_devices", "pipeline_decoder_devices"), list[int]),
    **dict.fromkeys(("model_overrides", "optimizer_overrides"), dict[str, Any]),
    **dict.fromkeys(("encoder_layers_to_keep", "decoder_layers_to_keep"), list[int] | int),
}


@functools.cache
def allowed_names() -> dict[str, tuple[str, ...]]:
    """Return the class names that a checkpoint may have in each section."""
    archs = (
        name
        for name, model in ARCH_MODEL_REGISTRY.items()
        if model is RobertaModel or issubclass(model, SoTRobertaModel)
    )
    return {"model": tuple(archs), **REGISTERED}


@functools.cache
def option_types() -> dict[str, list[Any]]:
    """Return the types of every option by name, of any section: a value has one of them.

    A flat namespace (``args``, and the model's options in ``cfg``) has the options of all sections.
    """
    found: dict[str, list[Any]] = {}
    for name, kind in _all_options():
        found.setdefault(name, []).append(kind)
    for section, names in allowed_names().items():
        found[section] = [Literal[names]]
    found["arch"] = found["model"]
    found["print_alignment"].append(bool)  # of older files
    return found


@functools.cache
def fields_of(section: str, name: str | None) -> frozenset[str] | None:
    """Return the options that a section has, None where fairseq does not say: its class takes a flat namespace.

    Args:
        section: One of :data:`SECTIONS`.
        name: The name of its class, if it has one.
    """
    config = _dataclass(section, name) if section in REGISTERED else SECTIONS[section]
    return frozenset(config.__dataclass_fields__) if _is_config(config) else None


@functools.cache
def building_options() -> frozenset[str]:
    """Return the options that a task and its model are built from, of all that a flat namespace has."""
    return frozenset((*dict(_task_options()), *dict(_model_options()), *allowed_names(), "arch"))


def _all_options() -> Iterator[tuple[str, Any]]:
    """Every option with its type, which is ``Any`` where fairseq does not say it."""
    for config in SECTIONS.values():
        yield from _fields(config)
    for section in REGISTERED.keys() - {"task"}:
        yield from _registered_options(section)
    yield from _task_options()
    yield from _model_options()


def _task_options() -> Iterator[tuple[str, Any]]:
    return _registered_options("task")


def _model_options() -> Iterator[tuple[str, Any]]:
    yield from _fields(TransformerConfig)
    for model in {ARCH_MODEL_REGISTRY[name] for name in allowed_names()["model"]}:
        yield from _arguments(model)


def _registered_options(section: str) -> Iterator[tuple[str, Any]]:
    for name in REGISTERED[section]:
        config = _dataclass(section, name)
        yield from _arguments(_class(section, name)) if config is None else _fields(config)


def _dataclass(section: str, name: str | None) -> Any:
    registry = TASK_DATACLASS_REGISTRY if section == "task" else REGISTRIES[section]["dataclass_registry"]
    return registry.get(name)


def _class(section: str, name: str) -> Any:
    return (TASK_REGISTRY if section == "task" else REGISTRIES[section]["registry"])[name]


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, FairseqDataclass)


def _fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options of one of fairseq's dataclasses; those of a nested one have its name in front, as in a namespace."""
    for field in dataclasses.fields(config) if _is_config(config) else ():
        if field.name in ("_name", "user_dir"):  # a class's name; a module to import is up to the command line
            continue
        if _is_config(field.type):
            yield from _fields(field.type, f"{prefix}{field.name}_")
        else:
            yield prefix + field.name, field.type


def _arguments(owner: Any) -> Iterable[tuple[str, Any]]:
    """Options that a class adds to the command line."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False, add_help=False)
    owner.add_args(parser)
    return [(action.dest, _argument_type(action)) for action in parser._actions]


def _argument_type(action: argparse.Action) -> Any:
    if action.nargs == 0:  # store_true and its kind
        return bool
    if action.choices is not None:
        kind: Any = Literal[tuple(action.choices)]
    else:
        kind = action.type if isinstance(action.type, type) else str if action.type is None else Any
    return list[kind] if action.nargs in ("+", "*") else kind
