"""A classifier of the fairseq task ``sentence_prediction_mgcrp`` as plain values, read from a checkpoint and written.

Works on the file alone: fairseq need not be installed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import torch
from msgspec import UNSET
from torch import Tensor

from sot_base.errors import UsageError
from sot_base.schema import of_type
from sot_core.options import HEAD_OPTIONS, head_settings
from sot_text.formats.architecture import BertArchitecture
from sot_text.formats.bert_weights import ENCODER, POSITION_OFFSET
from sot_text.formats.checkpoint_file import read_fairseq_checkpoint
from sot_text.formats.checkpoint_layout import fairseq_checkpoint
from sot_text.formats.class_names import check_labels
from sot_text.formats.dictionary import BOS, EOS

__all__ = ["FairseqClassifier", "read_classifier"]

CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")
TASK = "sentence_prediction_mgcrp"
T = TypeVar("T")
HEADS = "classification_heads."
HEAD_NAME = "sentence_classification_head"
STOCK_SHAPES = ("dense.weight", "out_proj.weight")  # empty in a head without such a layer: stock code looks for them
BERT_ARCHS = ("sot_bert", "spanbert")


@dataclass(frozen=True)
class FairseqClassifier:
    """What a checkpoint says of its model.

    Attributes:
        kind: ``bert`` or ``roberta``.
        architecture: Sizes of the encoder.
        encoder: fairseq's tensors of the encoder.
        head: Tensors of the head, under the names of `ClassificationHead`.
        head_settings: Fields of `HeadConfig`, but width and number of classes.
        labels: Names of the classes in order; empty for regression.
        dropout: The encoder's dropout, fraction in [0, 1).
        attention_dropout: That of the attention weights.
        data: The folder with ``tokenizer`` and ``input0/dict.txt``, if there is one.
        multi_label: Whether a row may have several labels, or none.
    """

    kind: str
    architecture: BertArchitecture
    encoder: dict[str, Tensor]
    head: dict[str, Tensor]
    head_settings: dict[str, Any]
    labels: tuple[str, ...]
    dropout: float = 0.1
    attention_dropout: float = 0.1
    data: Path | None = None
    multi_label: bool = False

    @property
    def num_classes(self) -> int:
        """Width of the logits: 1 for regression."""
        return max(len(self.labels), 1)

    def checkpoint(self) -> dict[str, Any]:
        """Lay out a fairseq checkpoint of plain values.

        Raises:
            UsageError: If fairseq's model cannot hold the head.
        """
        sizes, settings = self.architecture, self.head_settings
        if settings["cls_pooler_dim"] != sizes.embed_dim:
            raise UsageError(
                f"the class token's dense layer is {settings['cls_pooler_dim']} wide, the encoder {sizes.embed_dim}: "
                "the model; fairseq's head has the encoder's width"
            )
        large = sizes.embed_dim >= 1024
        arch = f"{'sot_bert' if self.kind == 'bert' else 'roberta'}_{'large' if large else 'base'}"
        model: dict[str, Any] = {
            "_name": arch,
            "encoder_layers": sizes.layers,
            "encoder_embed_dim": sizes.embed_dim,
            "encoder_ffn_embed_dim": sizes.ffn_dim,
            "encoder_attention_heads": sizes.heads,
            "max_positions": sizes.max_positions,
            "activation_fn": sizes.activation,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "pooler_dropout": settings["cls_pooler_drop_rate"],
            "pooler_activation_fn": _rename(settings["cls_pooler_activation"], "none", "linear"),
            "load_checkpoint_heads": False,
        }
        if self.kind == "bert":
            model |= {"token_types": sizes.token_types, "layer_norm_eps": sizes.layer_norm_eps}
        options = {option.name: _typed(settings[option.field], option.none) for option in HEAD_OPTIONS}
        specials = {"init_token": BOS, "separator_token": EOS if self.kind == "roberta" else None}
        task = {
            "_name": TASK,
            "data": ".",
            "num_classes": self.num_classes,
            "regression_target": not self.labels,
            "multi_label": self.multi_label,
            "classification_head_name": HEAD_NAME,
            "max_positions": sizes.max_positions,
            **specials,
            **options,
        }
        tensors = {
            **self.encoder,
            **{f"{HEADS}{HEAD_NAME}.{name}": value for name, value in self._stock_head().items()},
        }
        return {
            **fairseq_checkpoint(task, model, tensors),
            "task_state": {"label_names": list(self.labels), **specials},
        }

    def _stock_head(self) -> dict[str, Tensor]:
        heights = {"dense.weight": self.architecture.embed_dim, "out_proj.weight": self.num_classes}
        head = {name: value.float() for name, value in self.head.items()}
        return {**{name: torch.empty(height, 0) for name, height in heights.items()}, **head}


class _Task(msgspec.Struct):
    """What is read of the task's options, besides the head's."""

    classification_head_name: str
    data: str | None = None
    regression_target: bool = False
    multi_label: bool = False


class _TaskState(msgspec.Struct):
    """What is read of the task's state."""

    label_names: list[str] = []


class _Model(msgspec.Struct, rename={"name": "_name"}):
    """What is read of the model's options."""

    encoder_attention_heads: int
    name: str | None = None
    arch: str | None = None
    activation_fn: str = "gelu"
    layer_norm_eps: float = 1e-12
    pooler_activation_fn: str = "tanh"
    pooler_dropout: float = 0.0
    dropout: float = 0.1
    attention_dropout: float = 0.1


_HeadOptions = msgspec.defstruct(
    "_HeadOptions",
    [
        (option.name, (Literal[option.choices] if option.choices else option.type) | None | msgspec.UnsetType, UNSET)
        for option in HEAD_OPTIONS
    ],
)


def read_classifier(
    path: str | os.PathLike[str], head: str | None = None, data: str | os.PathLike[str] | None = None
) -> FairseqClassifier:
    """Read a fine-tuned checkpoint.

    Args:
        path: A ``--save-dir``, or a checkpoint in it.
        head: Name of the head; default: the one it was trained with.
        data: The folder of the preprocessed data; default: the checkpoint's own folder, else the training data.

    Raises:
        UsageError: If it is not a classifier of the toolkit's fairseq side, or has no such head.
    """
    file = _find(Path(path))
    state = read_fairseq_checkpoint(file)
    where = str(file.absolute())
    config = _of_type(state.get("cfg"), dict[str, Any], where)
    if _of_type(config.get("task"), dict[str, Any], where).get("_name") != TASK:
        raise UsageError(f"no classifier of this toolkit: {where}; give one trained with --task {TASK}")
    task = _of_type(config["task"], _Task, where)
    model = config.get("model")
    args = _of_type(dict(vars(model)) if isinstance(model, argparse.Namespace) else model, _Model, where)
    options = msgspec.structs.asdict(_of_type(config["task"], _HeadOptions, where))
    prefix = f"{HEADS}{head or task.classification_head_name}."
    tensors = {key.removeprefix(prefix): value for key, value in state["model"].items() if key.startswith(prefix)}
    if not tensors:
        known = sorted({key.split(".")[1] for key in state["model"] if key.startswith(HEADS)})
        raise UsageError(f"no classification head {prefix.split('.')[1]!r}: {where} has {', '.join(known) or 'none'}")
    tensors = {key: value for key, value in tensors.items() if value.numel() or key not in STOCK_SHAPES}
    if any(value.dim() < 1 for key, value in tensors.items() if key.endswith((".weight", ".bias"))):
        raise UsageError(f"a single number in place of a tensor of the head: {where}; get it again")
    kind = "bert" if (args.name or args.arch or "").startswith(BERT_ARCHS) else "roberta"
    sizes = encoder_sizes(state["model"], args, kind)
    settings = head_settings({name: value for name, value in options.items() if value is not UNSET})
    settings |= {
        "cls_pooler_dim": len(tensors["dense.weight"]) if "dense.weight" in tensors else sizes.embed_dim,
        "cls_pooler_activation": _rename(args.pooler_activation_fn, "linear", "none"),
        "cls_pooler_drop_rate": args.pooler_dropout,
    }
    folder = _data_folder(file, data, task.data)
    return FairseqClassifier(
        kind,
        sizes,
        {key: value for key, value in state["model"].items() if key.startswith("encoder.")},
        tensors,
        settings,
        () if task.regression_target else _labels(state, folder, file),
        args.dropout,
        args.attention_dropout,
        folder,
        task.multi_label,
    )


def encoder_sizes(tensors: Mapping[str, Tensor], args: _Model, kind: str) -> BertArchitecture:
    """Read a fairseq encoder's sizes from its tensors, and from its arguments what no tensor shows.

    Raises:
        UsageError: If a tensor that tells them is missing.
    """
    for name in ("embed_tokens.weight", "embed_positions.weight", "layers.0.fc1.weight"):
        if ENCODER + name not in tensors or tensors[ENCODER + name].dim() != 2:
            raise UsageError(f"an incomplete encoder: the checkpoint lacks the matrix {ENCODER}{name}; get it again")
    layers = {name.removeprefix(ENCODER).split(".")[1] for name in tensors if name.startswith(ENCODER + "layers.")}
    types = tensors.get(ENCODER + "embed_token_types.weight")
    return BertArchitecture(
        layers=len(layers),
        embed_dim=tensors[ENCODER + "embed_tokens.weight"].shape[1],
        ffn_dim=tensors[ENCODER + "layers.0.fc1.weight"].shape[0],
        heads=args.encoder_attention_heads,
        max_positions=tensors[ENCODER + "embed_positions.weight"].shape[0] - POSITION_OFFSET,
        token_types=0 if types is None else types.shape[0],
        activation=args.activation_fn,
        layer_norm_eps=args.layer_norm_eps if kind == "bert" else 1e-5,
    )


def _of_type(value: Any, kind: type[T], where: str) -> T:
    return of_type(value, kind, where, "the checkpoint is damaged or not of this toolkit", strict=False)


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    found = [path / name for name in CHECKPOINTS if (path / name).is_file()]
    if not found:
        raise UsageError(f"no {' or '.join(CHECKPOINTS)}: {path.absolute()}; give the --save-dir of a training")
    return found[0]


def _data_folder(file: Path, data: str | os.PathLike[str] | None, trained_on: Any) -> Path | None:
    folders = [Path(data)] if data is not None else [file.parent, Path(str(trained_on))]
    return next((folder for folder in folders if (folder / "tokenizer").is_dir()), None)


def _labels(state: Mapping[str, Any], folder: Path | None, file: Path) -> tuple[str, ...]:
    names = _of_type(state.get("task_state") or {}, _TaskState, str(file.absolute())).label_names
    if not names:
        raise UsageError(f"no label names in the checkpoint: {file.absolute()}; train it with this toolkit's task")
    return check_labels(names, os.fspath(file))


def _rename(value: Any, old: str, new: str) -> str:
    return new if value == old else str(value)


def _typed(value: Any, none: Any) -> Any:
    """A head's field as the command line has it."""
    return none if value is None and none is not None else value
