"""A Hugging Face backbone as a frozen encoder, which can be saved with a trained head."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import BatchEncoding, PretrainedConfig, PreTrainedTokenizerBase

from sot_base.errors import UsageError
from sot_core import ClassificationHead
from sot_hf.backbone import states_of_layers
from sot_hf.batching import padded_length
from sot_hf.configuration import SoTConfig
from sot_hf.encoders import find_model
from sot_hf.error_text import first_sentence
from sot_hf.load_config import load_config
from sot_hf.load_model import load_backbone, load_weights
from sot_hf.load_tokenizer import load_tokenizer, usable_length
from sot_hf.modeling import SoTForSequenceClassification
from sot_hf.top_layers import TopLayers, load_top_layers
from sot_probe.fingerprint import weights_digest
from sot_probe.layer_head import LayerHead
from sot_probe.options import resolve_layers

__all__ = ["TextEncoder", "head_of", "rows_digest", "saved_layers"]

MAX_TOKENS = 4096  # in a batch, padding included
SAME = 1e-3  # difference of states up to which top layers are those of the backbone
CAPTURING = "transformers.utils.output_capturing"  # whose hooks give the states of layers
NOT_THE_ENCODER = ("id2label", "label2id", "problem_type", "_name_or_path", "transformers_version", "architectures")


class TextEncoder:
    """A frozen backbone with its tokenizer.

    Args:
        encoder: ``minilm``, ``gpt``, or a folder or name on the Hub of a backbone or of a model saved with its head.
        layers: Layers to read: 0 the embeddings, -1 the last one.
        max_length: Maximum number of tokens of a sample; None: 128, or less if the backbone takes less.
        pairs: Whether samples are pairs of texts.
        device: Device of the backbone.
        lower_case: Lower-case the text although the vocabulary is cased.
        train_layers: Number of layers from the top that are trained with heads; the layer below them is read.

    Attributes:
        model: The model; its own head is not used.
        tokenizer: Its tokenizer.
        layers: Numbers of the layers.
        max_length: Maximum number of tokens of a sample.
        start: Initial weights of heads: the pretrained pooler of BERT, or none.

    Raises:
        UsageError: if the encoder cannot be loaded, or has no such layer.
    """

    def __init__(
        self,
        encoder: str,
        layers: Sequence[int] = (-1,),
        max_length: int | None = None,
        pairs: bool = False,
        device: torch.device | str = "cpu",
        lower_case: bool = False,
        train_layers: int = 0,
    ) -> None:
        path = find_model(encoder)
        config = load_config(path)
        self.model = _load(path, config)
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(path, self.model, None, lower_case, None, lower_case)
        self.max_length = usable_length(self.model, self.tokenizer, max_length, pairs, "--max-length")
        self.layers = resolve_layers(layers, self.num_layers, train_layers)
        dense = getattr(self.model.classifier, "dense", None)
        fresh = dense is not None and not isinstance(config, SoTConfig) and config.model_type == "bert"
        self.start = {f"dense.{name}": value.detach() for name, value in dense.named_parameters()} if fresh else {}
        self.model.eval().requires_grad_(False).to(device)

    @property
    def num_layers(self) -> int:
        """Number of layers of the backbone, without the embeddings."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def embed_dim(self) -> int:
        """Width D of the states."""
        return self.model.config.hidden_size

    def __getstate__(self) -> dict[str, Any]:
        """For pickle, which takes no hook of transformers: a model without them gets them when it runs."""
        model = copy.deepcopy(self.model)
        for module in model.modules():
            for number, hook in list(module._forward_hooks.items()):
                if getattr(hook, "__module__", None) == CAPTURING:
                    del module._forward_hooks[number]
            vars(module).pop("_output_capturing_hooks_installed", None)
        return {**vars(self), "model": model}

    def describe(self) -> dict[str, Any]:
        """Everything that the states depend on, except the texts."""
        backbone = self.model.config.backbone.to_dict()
        kept = {name: value for name, value in backbone.items() if name not in NOT_THE_ENCODER}
        text = json.dumps(kept, sort_keys=True, default=str)
        return {
            "weights": weights_digest(self.model.backbone.state_dict()),
            "config": hashlib.sha256(text.encode()).hexdigest(),
            "cls_position": self.model.config.cls_position,
        }

    def tokenize(self, texts: Sequence[Any]) -> list[dict[str, list[int]]]:
        """Tokenize texts, or pairs of texts, and truncate them to ``max_length``.

        Raises:
            UsageError: for any other sample.
        """
        if not texts:
            return []
        pairs = isinstance(texts[0], list | tuple)
        columns = list(zip(*texts, strict=False)) if pairs else [tuple(texts)]
        whole = all(isinstance(text, list | tuple) and len(text) == 2 for text in texts) if pairs else True
        if not whole or not all(isinstance(text, str) for column in columns for text in column):
            raise UsageError("a sample is not a text: texts; give strings, or pairs of strings, and nothing else")
        batch = self.tokenizer(
            *(list(column) for column in columns), truncation="longest_first", max_length=self.max_length, verbose=False
        )
        names = list(batch)
        return [dict(zip(names, cells, strict=True)) for cells in zip(*(batch[name] for name in names), strict=True)]

    @torch.no_grad()
    def encode(self, encodings: Sequence[Mapping[str, list[int]]], layers: Sequence[int] | None = None) -> list[Tensor]:
        """Encode tokenized samples: (B, T, D) for each layer, class token first, padded on the right.

        Args:
            encodings: The samples.
            layers: Numbers of the layers; None: those of the encoder.
        """
        width = padded_length(max(len(row["input_ids"]) for row in encodings), self.max_length)
        batch: BatchEncoding = self.tokenizer.pad(
            list(map(dict, encodings)), padding="max_length", max_length=width, return_tensors="pt"
        )
        inputs = dict(batch.to(self.model.device))
        inputs.setdefault("attention_mask", None)
        _, outputs = self.model.encode(**inputs, output_hidden_states=True)
        found = []
        for states in states_of_layers(outputs, self.layers if layers is None else layers):
            tokens, padding = self.model.class_token_first(states.float(), inputs["attention_mask"])
            rows = list(tokens) if padding is None else [row[~mask] for row, mask in zip(tokens, padding, strict=True)]
            found.append(pad_sequence(rows, batch_first=True).cpu())
        return found

    def create_head(self, settings: Mapping[str, Any], num_classes: int, start: Mapping[str, Tensor]) -> nn.Module:
        """Create a head from fields of `HeadConfig` and its initial weights.

        Raises:
            UsageError: for a setting out of range.
        """
        config = self._config(settings, num_labels=num_classes).head_config()
        head = ClassificationHead(config.replace(two_layers=settings.get("two_layers", False)))
        own = head.state_dict()
        fitting = {name: value for name, value in start.items() if name in own and own[name].shape == value.shape}
        head.load_state_dict(fitting, strict=False)
        return head

    def create_top_layers(self, count: int, samples: Sequence[Mapping[str, list[int]]]) -> TopLayers:
        """Copy the top layers, to be trained on the states of the layer below them.

        Args:
            count: Number of layers (> 0).
            samples: Tokenized samples, on which the copy is compared with the backbone.

        Raises:
            UsageError: for a backbone whose top layers do not run by themselves.
        """
        kind = self.model.config.backbone.model_type
        refused = f"the top layers of a {kind} do not run by themselves: --train-layers; fine-tune with sot_hf.run_glue"
        lengths = torch.tensor([len(sample["input_ids"]) for sample in samples])
        stored, expected = self.encode(samples, [self.num_layers - count, self.num_layers])
        padding = torch.arange(stored.shape[1]) >= lengths.unsqueeze(1)
        device = self.model.device
        try:
            top = TopLayers(self.model, count)
            with torch.no_grad():
                found, found_padding = top.eval()(stored.to(device), padding.to(device))
        except UsageError:
            raise
        except Exception as error:  # whatever the backbone's own code trips over
            raise UsageError(f"{refused} ({first_sentence(error)})") from error
        if not torch.allclose(found[~found_padding].cpu(), expected[~padding], atol=SAME, rtol=SAME):
            raise UsageError(refused)
        return top

    def _config(self, settings: Mapping[str, Any], **kwargs: Any) -> SoTConfig:
        try:
            position = self.model.config.cls_position
            backbone = copy.deepcopy(
                self.model.config.backbone
            )  # a new configuration resets the attention implementation
            return SoTConfig(backbone, head=settings, cls_position=position, **kwargs)
        except ValueError as error:
            raise UsageError(f"the head cannot be built: {error}; see docs/heads.md") from error

    def model_with(
        self, head: LayerHead, settings: Mapping[str, Any], id2label: Mapping[int, str], problem_type: str
    ) -> SoTForSequenceClassification:
        """Build a model from the backbone, whose weights are shared unless some were trained, and a trained head.

        Args:
            head: The head, with the layers of the backbone that were trained with it.
            settings: Its fields of `HeadConfig`.
            id2label: Names of the classes.
            problem_type: The problem type, as in transformers.
        """
        is_one = head.layer_mix is None and head.pair is None
        layers = [self.layers[head.layer]] if is_one else self.layers
        backbone = self.model.backbone
        if head.top_layers is not None:
            layers, backbone = [self.num_layers], copy.deepcopy(backbone)
            load_top_layers(backbone, head.top_layers.model.backbone, self.num_layers - self.layers[0])
        own = {"layers": layers, "layer_pair": head.pair}
        config = self._config(settings, id2label=dict(id2label), problem_type=problem_type, **own)
        model = SoTForSequenceClassification(config, backbone=backbone)
        model.classifier.load_state_dict(head.head.state_dict())
        if head.layer_mix is not None:
            model.layer_mix.load_state_dict(head.layer_mix.state_dict())
        config.architectures = [type(model).__name__]
        model.name_or_path = config._name_or_path = self.model.name_or_path
        return model.eval()

    def save(self, model: SoTForSequenceClassification, folder: str | os.PathLike[str]) -> None:
        """Write a model and the tokenizer into a folder."""
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def rows_digest(encodings: Sequence[Mapping[str, list[int]]]) -> list[str]:
    """A digest of each tokenized sample."""
    return [
        hashlib.sha256(b"|".join(np.asarray(row[name], np.int64).tobytes() for name in sorted(row))).hexdigest()
        for row in encodings
    ]


def _load(path: str, config: PretrainedConfig) -> SoTForSequenceClassification:
    if isinstance(config, SoTConfig):
        return load_weights(path, config, dtype=torch.float32)
    return load_backbone(path, config)


def head_of(model: SoTForSequenceClassification) -> LayerHead:
    """The head of a saved model, as a module of stored states."""
    mix = model.layer_mix
    mixed = 0 if mix is None else len(model.config.layers)
    head = LayerHead(model.classifier, 0, mixed, pair=model.config.layer_pair)
    if mix is not None:
        head.layer_mix = mix
    return head.eval()


def saved_layers(config: SoTConfig) -> list[int]:
    """Numbers of the layers that a saved model reads."""
    return list(config.layers) if config.layers is not None else [-1]
