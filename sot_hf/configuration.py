"""Configuration of a Hugging Face backbone with a second-order classification head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from sot_core import HeadConfig
from sot_core.names import LAYER_PAIRS

__all__ = ["CLS_POSITIONS", "CONFIG_ARGUMENTS", "SoTConfig"]

CLS_POSITIONS = ("first", "last")
# what backbones call the dropout before a classifier; the first one that a configuration has counts
DROPOUT_NAMES = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob", "resid_pdrop", "hidden_dropout")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
# keyword arguments of from_pretrained that replace what a configuration says
CONFIG_ARGUMENTS = (
    *("num_labels", "id2label", "label2id", "problem_type"),
    *("head", "cls_position", "freeze_backbone", "train_layers", "layers", "layer_pair"),
)
OWN_FIELDS = ("embed_dim", "num_classes", "has_cls_token", "two_layers")  # the model's, not the user's


class SoTConfig(PretrainedConfig):
    """The configurations of a backbone and its head.

    Args:
        backbone: The backbone's configuration, or its dictionary with ``model_type``; None: a BERT-base.
        head: Fields of :class:`sot_core.HeadConfig`, or a published dictionary that
            :meth:`sot_core.HeadConfig.from_dict` reads. Width and number of classes are the model's. What it does not
            say of the class token's pooler is as in the backbone's own classifiers: a dense layer of the backbone's
            width, tanh, and the backbone's dropout.
        cls_position: Where the token is that stands for the sequence: ``first`` ([CLS], ``<s>``) or ``last`` (the last
            valid one, as in decoders); None: as the backbone's kind has it.
        freeze_backbone: Whether only the head learns; the backbone is in evaluation mode, without gradients.
        train_layers: Number of layers of the backbone, from the top, that learn with the head; what is below them is
            frozen, in evaluation mode, without gradients. None: all of the backbone learns; 0: as ``freeze_backbone``.
        layers: Numbers of the layers whose states the head reads: one, or several, of which it reads a learned mix
            (`sot_core.layer_mix.LayerMix`); 0 the embeddings, None: the last layer.
        layer_pair: How the head reads two ``layers`` instead: ``words_cls`` the words of the first and the class token
            of the second, ``x_y`` MGCrP's X from the first, its Y and the class token from the second.
        **kwargs: transformers' own: ``num_labels``, ``id2label``, ``problem_type``...

    Raises:
        ValueError: for a head that cannot be built, another ``cls_position`` or ``problem_type``, labels that are not
            numbered from 0 on, layers that the backbone does not have, or an encoder-decoder.

    Example:
        >>> from transformers import BertConfig
        >>> config = SoTConfig(BertConfig(), head={"num_heads": 1, "q_dim": 56, "k_dim": 32}, num_labels=2)
        >>> config.head_config().q_dim
        56
    """

    model_type = "sot"
    sub_configs: ClassVar[dict[str, Any]] = {"backbone": AutoConfig}
    has_no_defaults_at_init = True
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["hidden_states", "attentions"]  # an evaluation keeps the logits

    def __init__(
        self,
        backbone: PretrainedConfig | Mapping[str, Any] | None = None,
        head: Mapping[str, Any] | None = None,
        cls_position: str | None = None,
        freeze_backbone: bool = False,
        layers: Sequence[int] | None = None,
        train_layers: int | None = None,
        layer_pair: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.backbone = _backbone_config(backbone)
        self.head: dict[str, Any] = {}
        self.cls_position = default_cls_position(self.backbone) if cls_position is None else cls_position
        self.freeze_backbone, self.train_layers = freeze_backbone, train_layers
        self.layers, self.layer_pair = self._check_layers(layers), layer_pair
        if kwargs.get("label2id") and not kwargs.get("id2label"):
            kwargs["id2label"] = {number: name for name, number in kwargs["label2id"].items()}
        if kwargs.get("id2label") and kwargs.get("num_labels", len(kwargs["id2label"])) != len(kwargs["id2label"]):
            raise ValueError(f"num_labels={kwargs['num_labels']} beside {len(kwargs['id2label'])} names of labels")
        super().__init__(**kwargs)
        if sorted(self.id2label) != list(range(self.num_labels)):
            raise ValueError(f"id2label must number the labels 0, 1, 2..., got {self.id2label}")
        self.label2id = {name: number for number, name in self.id2label.items()}
        choices = (
            ("cls_position", CLS_POSITIONS),
            ("problem_type", (*PROBLEM_TYPES, None)),
            ("layer_pair", (*LAYER_PAIRS, None)),
        )
        for name, valid in choices:
            if getattr(self, name) not in valid:
                raise ValueError(f"Unknown {name} {getattr(self, name)!r}, expected one of {list(valid)}")
        if layer_pair is not None and len(self.layers or ()) != 2:
            raise ValueError(f"layer_pair={layer_pair!r} needs two layers, got {layers!r}")
        if not isinstance(freeze_backbone, bool):
            raise ValueError(f"freeze_backbone must be True or False, got {freeze_backbone!r}")
        if train_layers is not None and (type(train_layers) is not int or train_layers < 0):
            raise ValueError(f"train_layers must be a whole number of layers or None, got {train_layers!r}")
        self.set_head(head or {})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As `PretrainedConfig.from_dict`; arguments in place of what the dictionary says are checked like it."""
        own = {name: kwargs.pop(name) for name in CONFIG_ARGUMENTS if name in kwargs}
        names = config_dict.get("id2label") or ()
        if {"id2label", "label2id"} & own.keys() or own.get("num_labels", len(names)) != len(names):
            config_dict = {key: value for key, value in config_dict.items() if key not in ("id2label", "label2id")}
        return super().from_dict({**config_dict, **own}, **kwargs)

    @classmethod
    def from_backbone(cls, backbone: PretrainedConfig, **kwargs: Any) -> Self:
        """Wrap a backbone's configuration; its label names and problem type are kept unless ``kwargs`` say others."""
        names = {"num_labels", "id2label", "label2id"}
        if not names & kwargs.keys() and backbone.id2label:
            kwargs = {"id2label": backbone.id2label, "label2id": backbone.label2id, **kwargs}
        kwargs.setdefault("problem_type", getattr(backbone, "problem_type", None))
        return cls(backbone, **kwargs)

    def _check_layers(self, layers: Sequence[int] | None) -> list[int] | None:
        if layers is None:
            return None
        count = self.backbone.get_text_config().num_hidden_layers
        found = list(layers) if isinstance(layers, list | tuple) else []
        valid = found and all(type(layer) is int and 0 <= layer <= count for layer in found)
        if not valid or len(set(found)) < len(found):
            raise ValueError(f"layers must be different numbers from 0 to {count}, got {layers!r}")
        return None if found == [count] else found

    @property
    def hidden_size(self) -> int:
        """Token width D of the backbone."""
        return int(self.get_text_config().hidden_size)

    def get_text_config(self, *args: Any, **kwargs: Any) -> PretrainedConfig:
        """The backbone's configuration: transformers looks up vocabulary and special tokens there."""
        return self.backbone.get_text_config(*args, **kwargs)

    def set_head(self, values: Mapping[str, Any]) -> None:
        """Replace the head's description.

        Args:
            values: As the argument ``head``.

        Raises:
            ValueError: for an unknown key or a value out of range.
        """
        pooler = {
            "cls_pooler_dim": self.hidden_size,
            "cls_pooler_activation": "tanh",
            "cls_pooler_drop_rate": _dropout(self.backbone),
        }
        if not isinstance(values, Mapping):
            raise ValueError(f"head must be a dictionary, got {values!r}")
        given = {key: value for key, value in values.items() if key not in OWN_FIELDS}
        own = {"embed_dim": self.hidden_size, "two_layers": self.layer_pair == "x_y"}
        config = HeadConfig.from_dict(given, num_classes=max(self.num_labels, 1), **own, **pooler)
        self.head = {key: value for key, value in config.to_dict().items() if key not in OWN_FIELDS}

    def head_config(self) -> HeadConfig:
        """The head as :mod:`sot_core` builds it, for the present number of labels."""
        two_layers = self.layer_pair == "x_y"
        own = {"embed_dim": self.hidden_size, "num_classes": self.num_labels, "two_layers": two_layers}
        return HeadConfig.from_dict(self.head, **own)


def default_cls_position(backbone: PretrainedConfig) -> str:
    """``last`` for models that are language models from left to right and nothing else, else ``first``."""
    causal = backbone.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = backbone.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return "last" if (causal and not masked) or getattr(backbone, "is_decoder", False) else "first"


def _backbone_config(backbone: PretrainedConfig | Mapping[str, Any] | None) -> PretrainedConfig:
    if backbone is None:
        backbone = {"model_type": "bert"}
    if isinstance(backbone, Mapping):
        values = dict(backbone)
        model_type = values.pop("model_type", None)
        if model_type not in CONFIG_MAPPING:
            raise ValueError(f"Unknown model_type {model_type!r} in the backbone's configuration")
        backbone = CONFIG_MAPPING[model_type](**values)
    if not isinstance(backbone, PretrainedConfig):
        raise ValueError(f"backbone must be a configuration or its dictionary, got {backbone!r}")
    if getattr(backbone, "is_encoder_decoder", False):
        raise ValueError(f"a backbone must be an encoder or a decoder, {backbone.model_type!r} is both")
    return backbone


def _dropout(backbone: PretrainedConfig) -> float:
    rates = [getattr(backbone, name, None) for name in DROPOUT_NAMES]
    return float(next((rate for rate in rates if rate is not None), 0.0))
