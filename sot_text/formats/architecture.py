"""Sizes of a BERT encoder, as read from a Hugging Face ``config.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from sot_base.errors import UsageError
from sot_base.schema import of_type

__all__ = ["BertArchitecture"]

# Hugging Face's name of an activation -> fairseq's name of the same function
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_accurate", "gelu_pytorch_tanh": "gelu_accurate", "relu": "relu"}


Size = Annotated[int, msgspec.Meta(gt=0, le=2**24)]


class _BertConfig(msgspec.Struct):
    """What is read of a ``config.json``. SpanBERT's has no ``model_type``: that is read as BERT."""

    num_hidden_layers: Annotated[int, msgspec.Meta(gt=0, le=1000)]
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    max_position_embeddings: Size = 512
    type_vocab_size: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    model_type: str = "bert"
    position_embedding_type: str = "absolute"


@dataclasses.dataclass(frozen=True)
class BertArchitecture:
    """Everything that has to be known to build a BERT encoder, except its vocabulary.

    Args:
        layers: Number of transformer layers.
        embed_dim: Token width.
        ffn_dim: Width of the feed-forward layers.
        heads: Attention heads a layer; divides `embed_dim`.
        max_positions: Longest input in tokens, special tokens included.
        token_types: Rows of the token type (segment) table; 0 if there is none.
        activation: fairseq's name of the feed-forward activation.
        layer_norm_eps: Constant inside every layer norm.

    Example:
        >>> BertArchitecture(layers=6, embed_dim=384, ffn_dim=1536, heads=12).max_positions
        512
    """

    layers: int
    embed_dim: int
    ffn_dim: int
    heads: int
    max_positions: int = 512
    token_types: int = 2
    activation: str = "gelu"
    layer_norm_eps: float = 1e-12

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], where: str = "config.json") -> BertArchitecture:
        """Read the dictionary of a ``config.json``.

        Args:
            config: Its content.
            where: The file, for messages.

        Raises:
            UsageError: If it describes something else than a BERT encoder, or lacks a size or has another type there.
        """
        sizes = of_type(dict(config), _BertConfig, where, "it must be the config.json of a BERT", strict=False)
        if sizes.model_type != "bert":
            raise UsageError(
                f"a {sizes.model_type!r} model where a BERT or SpanBERT is expected: {where}; give a BERT folder"
            )
        positions = sizes.position_embedding_type
        if positions != "absolute":
            raise UsageError(f"position_embedding_type {positions!r} is not supported: {where}; it must be 'absolute'")
        if sizes.hidden_act not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise UsageError(f"hidden_act {sizes.hidden_act!r} is not supported: {where}; it must be one of {known}")
        architecture = cls(
            layers=sizes.num_hidden_layers,
            embed_dim=sizes.hidden_size,
            ffn_dim=sizes.intermediate_size,
            heads=sizes.num_attention_heads,
            max_positions=sizes.max_position_embeddings,
            token_types=sizes.type_vocab_size,
            activation=ACTIVATIONS[sizes.hidden_act],
            layer_norm_eps=sizes.layer_norm_eps,
        )
        if architecture.embed_dim % architecture.heads:
            raise UsageError(
                f"{architecture.heads} attention heads do not divide hidden_size {architecture.embed_dim}: {where}; "
                "correct the file"
            )
        return architecture
