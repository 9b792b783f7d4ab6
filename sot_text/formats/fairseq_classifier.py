"""A classifier of the fairseq task ``sentence_prediction_mgcrp`` as plain values, read from a checkpoint and written.

Works on the file alone: fairseq need not be installed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sot_base.errors import UsageError
from sot_core.options import HEAD_OPTIONS, head_settings
from sot_text.formats.architecture import BertArchitecture
from sot_text.formats.bert_weights import ENCODER, POSITION_OFFSET
from sot_text.formats.checkpoint_file import read_fairseq_checkpoint
from sot_text.formats.checkpoint_layout import fairseq_checkpoint
from sot_text.formats.dictionary import BOS, EOS
from sot_text.labels import check_labels

__all__ = ["FairseqClassifier", "read_classifier"]

CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")
TASK = "sentence_prediction_mgcrp"
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


def read_classifier(
    path: str | os.PathLike[str], head: str | None = None, data: str | os.PathLike[str] | None = None
) -> FairseqClassifier:
    """Read a fine-tuned checkpoint.

    Args:
        path: A ``--save-dir``, or a checkpoint in it.
        head: Name of the head; default: the one it was trained with.
        data: The folder of the preprocessed data; default: the checkpoint's own folder, else the training data.

    Raises:
        UsageError: If it is no classifier of the toolkit's fairseq side, or has no such head.
    """
    file = _find(Path(path))
    allowed = torch.serialization.get_safe_globals()  # the context forgets those it is given, known before or not
    with torch.serialization.safe_globals([kind for kind in _classes() if kind not in allowed]):
        state = read_fairseq_checkpoint(file)
    task = (state.get("cfg") or {}).get("task") or {}
    if task.get("_name") != TASK:
        raise UsageError(f"no classifier of this toolkit: {file.absolute()}; give one trained with --task {TASK}")
    name = head or task["classification_head_name"]
    prefix = f"{HEADS}{name}."
    tensors = {key.removeprefix(prefix): value for key, value in state["model"].items() if key.startswith(prefix)}
    if not tensors:
        known = sorted({key.split(".")[1] for key in state["model"] if key.startswith(HEADS)})
        raise UsageError(f"no classification head {name!r}: {file.absolute()} has {', '.join(known) or 'none'}")
    tensors = {key: value for key, value in tensors.items() if value.numel() or key not in STOCK_SHAPES}
    model = state["cfg"]["model"]
    model = dict(model) if isinstance(model, Mapping) else vars(model)
    kind = "bert" if str(model.get("_name") or model.get("arch")).startswith(BERT_ARCHS) else "roberta"
    sizes = encoder_sizes(state["model"], model, kind)
    settings = head_settings({option.name: task[option.name] for option in HEAD_OPTIONS if option.name in task})
    settings |= {
        "cls_pooler_dim": tensors["dense.weight"].shape[0] if "dense.weight" in tensors else sizes.embed_dim,
        "cls_pooler_activation": _rename(model.get("pooler_activation_fn", "tanh"), "linear", "none"),
        "cls_pooler_drop_rate": float(model.get("pooler_dropout", 0.0)),
    }
    folder = _data_folder(file, data, task.get("data"))
    return FairseqClassifier(
        kind,
        sizes,
        {key: value for key, value in state["model"].items() if key.startswith("encoder.")},
        tensors,
        settings,
        () if task.get("regression_target") else _labels(state, folder, file),
        float(model.get("dropout", 0.1)),
        float(model.get("attention_dropout", 0.1)),
        folder,
    )


def encoder_sizes(tensors: Mapping[str, Tensor], args: Mapping[str, Any], kind: str) -> BertArchitecture:
    """Read a fairseq encoder's sizes from its tensors, and from its arguments what no tensor shows.

    Raises:
        UsageError: If a tensor that tells them is missing.
    """
    for name in ("embed_tokens.weight", "embed_positions.weight", "layers.0.fc1.weight"):
        if ENCODER + name not in tensors:
            raise UsageError(f"no whole encoder: the checkpoint lacks {ENCODER}{name}; get it anew")
    layers = {name.removeprefix(ENCODER).split(".")[1] for name in tensors if name.startswith(ENCODER + "layers.")}
    types = tensors.get(ENCODER + "embed_token_types.weight")
    return BertArchitecture(
        layers=len(layers),
        embed_dim=tensors[ENCODER + "embed_tokens.weight"].shape[1],
        ffn_dim=tensors[ENCODER + "layers.0.fc1.weight"].shape[0],
        heads=int(args["encoder_attention_heads"]),
        max_positions=tensors[ENCODER + "embed_positions.weight"].shape[0] - POSITION_OFFSET,
        token_types=0 if types is None else types.shape[0],
        activation=str(args.get("activation_fn", "gelu")),
        layer_norm_eps=float(args.get("layer_norm_eps", 1e-12)) if kind == "bert" else 1e-5,
    )


def _classes() -> list[Any]:
    """What fairseq's checkpoints hold besides tensors: options, and a best metric that is a numpy number."""
    from numpy._core.multiarray import scalar

    return [argparse.Namespace, np.dtype, scalar, *(type(np.dtype(name)) for name in ("float64", "float32", "int64"))]


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
    names = (state.get("task_state") or {}).get("label_names")
    if not names:
        raise UsageError(f"no label names in the checkpoint: {file.absolute()}; train it with this toolkit's task")
    return check_labels(names, os.fspath(file))


def _rename(value: Any, old: str, new: str) -> str:
    return new if value == old else str(value)


def _typed(value: Any, none: Any) -> Any:
    """A head's field as the command line has it."""
    return none if value is None and none is not None else value
