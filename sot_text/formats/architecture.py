"""Sizes of a BERT encoder, as read from a Hugging Face ``config.json``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sot_base.errors import UsageError

__all__ = ["BertArchitecture", "read_json"]

# Hugging Face's name of an activation -> fairseq's name of the same function
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_accurate", "gelu_pytorch_tanh": "gelu_accurate", "relu": "relu"}


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
            config: Its content. SpanBERT's has no ``model_type``: that is read as BERT.
            where: The file, for messages.

        Raises:
            UsageError: If it describes something else than a BERT encoder, or lacks a size.
        """
        kind = config.get("model_type", "bert")
        if kind != "bert":
            raise UsageError(f"a {kind!r} model where a BERT or SpanBERT is expected: {where}; give a BERT folder")
        positions = config.get("position_embedding_type", "absolute")
        if positions != "absolute":
            raise UsageError(f"position_embedding_type {positions!r} is not supported: {where}; it must be 'absolute'")
        activation = config.get("hidden_act", "gelu")
        if activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise UsageError(f"hidden_act {activation!r} is not supported: {where}; it must be one of {known}")
        try:
            architecture = cls(
                layers=int(config["num_hidden_layers"]),
                embed_dim=int(config["hidden_size"]),
                ffn_dim=int(config["intermediate_size"]),
                heads=int(config["num_attention_heads"]),
                max_positions=int(config.get("max_position_embeddings", 512)),
                token_types=int(config.get("type_vocab_size", 2)),
                activation=ACTIVATIONS[activation],
                layer_norm_eps=float(config.get("layer_norm_eps", 1e-12)),
            )
        except KeyError as error:
            raise UsageError(f"{error.args[0]} is missing: {where}; it must be the config.json of a BERT") from None
        if architecture.embed_dim % architecture.heads:
            raise UsageError(
                f"{architecture.heads} attention heads do not divide hidden_size {architecture.embed_dim}: {where}; "
                "correct the file"
            )
        return architecture


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        UsageError: If the file is missing, is no JSON, or holds something else than an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path.name} is missing: {path.resolve()}; put it beside the weights") from None
    except ValueError as error:
        raise UsageError(f"not a JSON file: {path.resolve()} ({error}); get it again") from None
    if not isinstance(content, dict):
        raise UsageError(f"not a JSON object: {path.resolve()}; get it again")
    return content
