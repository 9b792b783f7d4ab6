"""The command line of ``python -m sot_hf.run_glue``: transformers' training options, the task's and the head's."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from transformers import HfArgumentParser, IntervalStrategy, TrainingArguments

from sot_base.class_weights import parse_class_weights
from sot_base.errors import UsageError
from sot_core.names import LAYER_PAIRS
from sot_core.options import HEAD_OPTIONS, add_head_options, head_settings

__all__ = ["GlueArguments", "Options", "parse_arguments"]

# options of older versions of the script: what they are now
OLD_SPELLINGS: dict[str, tuple[str, ...]] = {
    "--per_gpu_train_batch_size": ("--per_device_train_batch_size",),
    "--per_gpu_eval_batch_size": ("--per_device_eval_batch_size",),
    "--no_cuda": ("--use_cpu",),
    "--evaluate_during_training": ("--eval_strategy", "steps"),
    "--evaluation_strategy": ("--eval_strategy",),
    "--group_by_length": ("--train_sampling_strategy", "group_by_length"),
    "--overwrite_cache": (),  # nothing is cached
}


# the smallest values that make sense; smaller ones end in an error deep in a training
SMALLEST: dict[str, int] = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0,
    "weight_decay": 0,
    "max_train_samples": 1,
    "max_eval_samples": 1,
    "train_layers": 0,
    "max_tokens": 1,
    "early_stopping_patience": 1,
    "early_stopping_threshold": 0,
}
BATCH_SIZE: int = TrainingArguments.__dataclass_fields__["per_device_train_batch_size"].default
SIMILAR = 0.75  # how like a known option an unknown one must be to be taken for a slip of it, of 1


def _option(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass
class GlueArguments:
    """Options of the task and the model."""

    model_name_or_path: str = _option(dataclasses.MISSING, "a local folder, or a name on the Hugging Face Hub")
    data_dir: str = _option(dataclasses.MISSING, "the folder of the task's TSV files")
    task_name: str | None = _option(None, "a GLUE task, for instance RTE")
    text_columns: str | None = _option(None, "own data: names A or A,B of one or two columns, as in line 1")
    label_column: str | None = _option(None, "own data: name of the column with the label")
    labels: str | None = _option(None, "own data: the labels X,Y,... in order; by default sorted")
    regression: bool = _option(False, "own data: the label is a number")
    multi_label: bool = _option(False, "own data: a row may have several labels, written a,b, or none")
    class_weights: str | None = _option(
        None, "weights of the classes in the loss: balanced, or NAME=WEIGHT,... (others: 1)"
    )
    model_type: str | None = _option(None, "the kind of backbone, where its config.json does not say")
    config_name: str | None = _option(None, "a config.json from elsewhere")
    tokenizer_name: str | None = _option(None, "a tokenizer from elsewhere")
    cache_dir: str | None = _option(None, "where downloads are kept")
    do_lower_case: bool = _option(False, "expect a lower-casing tokenizer; a cased vocabulary keeps the case")
    force_lower_case: bool = _option(False, "lower-case text even if BERT's vocabulary is cased")
    max_seq_length: int | None = _option(
        None, "shorten samples to so many tokens, special ones included; default: 128, or less if the model takes less"
    )
    pad_to_max_length: bool = _option(False, "pad every batch to --max_seq_length")
    max_tokens: int | None = _option(
        None,
        "put as many rows into a training batch as make so many tokens, padding included; "
        "--per_device_train_batch_size, if given, limits them, too",
    )
    early_stopping_patience: int | None = _option(
        None, "stop after so many evaluations without an improvement of --metric_for_best_model"
    )
    early_stopping_threshold: float = _option(0.0, "the least difference of the metric that is an improvement, >= 0")
    eval_all_checkpoints: bool = _option(False, "evaluate every checkpoint in the end, and keep them all")
    overwrite_output_dir: bool = _option(False, "start from scratch in an output folder that holds checkpoints")
    freeze_backbone: bool = _option(
        False, "train the head alone; the backbone is in evaluation mode, without gradients"
    )
    train_layers: int | None = _option(
        None, "train the head and so many layers from the top; those below are frozen, in evaluation mode"
    )
    layers: list[int] | None = dataclasses.field(
        default=None,
        metadata={"help": "layers that the head reads: one, or several for a mix; 0 the embeddings, -1 the last one"},
    )
    layer_pair: str | None = _option(
        None,
        "the head reads two --layers A B: words of A and the class token of B (words_cls), or MGCrP's X from A, its Y "
        "and the class token from B (x_y)",
    )
    head_lr_scale: float = _option(1.0, "the head's learning rate as a multiple of --learning_rate, > 0")
    strict_head: bool = _option(False, "a saved head of another shape or other labels is an error, not a warning")
    max_train_samples: int | None = _option(None, "use the first so many rows alone")
    max_eval_samples: int | None = _option(None, "use the first so many rows alone")


class Options(NamedTuple):
    """What :func:`parse_arguments` returns.

    Attributes:
        glue: Options of task and model.
        training: transformers' options.
        head: Fields of `HeadConfig` that the command line gives, and no others.
        rows_limited: Whether the command line limits the rows of a batch.
    """

    glue: GlueArguments
    training: TrainingArguments
    head: dict[str, Any]
    rows_limited: bool


def parse_arguments(arguments: Sequence[str]) -> Options:
    """Parse a command line in today's spelling or that of older versions of the script.

    Where it does not say so otherwise, a training is evaluated and saved every epoch, by the task's main metric the
    best checkpoint is loaded in the end, the best and the last one are kept, and batches hold rows of similar length.

    Raises:
        UsageError: for an unknown option, naming the nearest one, a value that is none, or a combination that cannot
            run.
    """
    parser = _parser()
    namespace, unknown = parser.parse_known_args(_modern(arguments))
    if unknown:
        name = unknown[0].partition("=")[0]
        near = difflib.get_close_matches(name, parser._option_string_actions, n=1, cutoff=SIMILAR)
        hint = f"did you mean {near[0]}?" if near else "--help shows all"
        raise UsageError(f"unknown option {name}: the command line; {hint}")
    values = vars(namespace)
    _check_ranges(values)
    rows_limited = values["per_device_train_batch_size"] is not None
    if values["metric_for_best_model"] == "loss":
        values["metric_for_best_model"] = "eval_loss"  # "loss" is what `TrainingArguments` makes of None
    _fill_defaults(values)
    head = head_settings({option.name: values[option.name] for option in HEAD_OPTIONS if option.name in values})
    glue = GlueArguments(**_fields_of(GlueArguments, values))
    try:
        training = TrainingArguments(**_fields_of(TrainingArguments, values))
    except (ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the options do not fit together ({reason}): the command line; change one") from error
    if not 0.0 < glue.head_lr_scale < float("inf"):
        raise UsageError(
            f"not a positive number: --head_lr_scale {glue.head_lr_scale:g}; give 1 for the backbone's rate"
        )
    if not (training.do_train or training.do_eval or training.do_predict):
        raise UsageError("nothing to do: the command line; give --do_train, --do_eval or --do_predict")
    if glue.eval_all_checkpoints and not training.do_eval:
        raise UsageError("no evaluation requested: --eval_all_checkpoints; also give --do_eval")
    _check_combinations(glue, training)
    return Options(glue, training, head, rows_limited)


def _check_combinations(glue: GlueArguments, training: TrainingArguments) -> None:
    if glue.early_stopping_patience is not None and training.eval_strategy == IntervalStrategy.NO:
        raise UsageError(
            "no evaluation during the training: --early_stopping_patience; give --do_train, --do_eval and "
            "--eval_strategy epoch"
        )
    if glue.max_tokens is not None and training.train_sampling_strategy != "group_by_length":
        raise UsageError(
            f"batches are not of similar length: --max_tokens beside --train_sampling_strategy "
            f"{training.train_sampling_strategy}; leave one out"
        )
    if glue.layer_pair is not None and (glue.layer_pair not in LAYER_PAIRS or len(glue.layers or ()) != 2):
        raise UsageError(
            f"not a pair of layers: --layer_pair {glue.layer_pair}; give {' or '.join(LAYER_PAIRS)}, and --layers A B"
        )
    if glue.freeze_backbone and glue.train_layers is not None:
        raise UsageError("--freeze_backbone is --train_layers 0: the command line; leave one out")
    if glue.class_weights is not None:
        parse_class_weights(glue.class_weights)
        if training.label_smoothing_factor:
            raise UsageError("--class-weights beside --label_smoothing_factor: the command line; leave one out")


class _Parser(HfArgumentParser):
    """Report a mistake in one line instead of a page of options."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: the command line; see --help")


def _parser() -> _Parser:
    parser = _Parser(
        (GlueArguments, TrainingArguments),
        prog="python -m sot_hf.run_glue",
        description="Fine-tune, evaluate and predict with a second-order head on a Hugging Face backbone.",
        allow_abbrev=False,
    )
    add_head_options(parser)
    head = {option.name for option in HEAD_OPTIONS}
    for action in parser._actions:
        if action.dest in head:
            action.default = argparse.SUPPRESS  # tells what is given from what is not
        elif action.dest == "output_dir":
            action.required = True
    unset = ("eval_strategy", "save_strategy", "save_steps", "load_best_model_at_end", "train_sampling_strategy")
    unset += ("per_device_train_batch_size",)
    parser.set_defaults(**dict.fromkeys(unset))
    return parser


def _modern(arguments: Sequence[str]) -> list[str]:
    """Translate old spellings, and the head's options with underscores."""
    head = {option.flag.replace("-", "_"): option.flag for option in HEAD_OPTIONS}
    words: list[str] = []
    for word in arguments:
        name, equals, value = word.partition("=")
        plain = name.replace("-", "_") if name.startswith("--") else name
        if plain in head:
            words.append(head[plain] + equals + value)
        elif plain.replace("__", "--", 1) in OLD_SPELLINGS:
            new = OLD_SPELLINGS[plain.replace("__", "--", 1)]
            words += [new[0] + equals + value, *new[1:]] if new else []
        else:
            words.append(word)
    return words


def _check_ranges(values: dict[str, Any]) -> None:
    for name, low in SMALLEST.items():
        value = values[name]
        if value is not None and not low <= value < math.inf:
            raise UsageError(f"--{name} {value:g} is out of range: the command line; give {low} or more")
    if values["max_steps"] <= 0 and not 0 < values["num_train_epochs"] < math.inf:
        raise UsageError(f"no training: --num_train_epochs {values['num_train_epochs']:g}; give a positive number")


def _fill_defaults(values: dict[str, Any]) -> None:
    _fill_schedule(values)
    defaults = {
        "train_sampling_strategy": "group_by_length",
        "ddp_find_unused_parameters": False,  # there are none
        "per_device_train_batch_size": BATCH_SIZE,
    }
    if not values["eval_all_checkpoints"] and values["load_best_model_at_end"]:
        defaults["save_total_limit"] = 2  # the best and the last one; with 1 the last one goes in the end
    for name, value in defaults.items():
        if values[name] is None:
            values[name] = value
    values["output_dir"] = os.path.normpath(values["output_dir"])


def _fill_schedule(values: dict[str, Any]) -> None:
    """When to evaluate and save; by default after every epoch."""
    if values["save_strategy"] is None:
        values["save_strategy"] = "epoch" if values["save_steps"] is None and values["eval_steps"] is None else "steps"
        if values["eval_strategy"] is not None and values["save_steps"] is None:
            values["save_strategy"] = values["eval_strategy"]
    if values["eval_strategy"] is None:
        values["eval_strategy"] = values["save_strategy"] if values["do_eval"] and values["do_train"] else "no"
    if values["save_steps"] is None:
        values["save_steps"] = values["eval_steps"] or 500
    if values["eval_steps"] is None and values["eval_strategy"] == "steps":
        values["eval_steps"] = values["save_steps"]
    if values["load_best_model_at_end"] is None:
        same = values["eval_strategy"] == values["save_strategy"] != "no"
        values["load_best_model_at_end"] = bool(values["do_train"] and values["do_eval"] and same)


def _fields_of(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    return {field.name: values[field.name] for field in dataclasses.fields(kind) if field.init}
