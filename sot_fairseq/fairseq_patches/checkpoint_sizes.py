"""The sizes in a checkpoint's configuration fit its tensors: a wrong number cannot ask for memory or time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from sot_base.errors import UsageError

__all__ = ["check_sizes"]

ENCODER = r"(?:en|de)coder\.sentence_encoder\."
MAX_ITERATIONS = 10_000


def check_sizes(state: Mapping[str, Any], where: str) -> None:
    """Compare the sizes that a model is built with to the tensors that fill it.

    Args:
        state: A checkpoint whose configuration has been checked.
        where: The file, for messages.

    Raises:
        UsageError: With the first size that is larger than the tensors allow.
    """
    tensors = {name: value for name, value in state["model"].items() if isinstance(value, Tensor)}
    if state.get("args") is not None:
        model = task = vars(state["args"])
    else:
        model, task = (_options((state.get("cfg") or {}).get(section)) for section in ("model", "task"))
    for name, value, limit in (*_encoder_limits(model, task, tensors), *_head_limits(task, tensors)):
        if value is not None and float(value) > limit:
            raise UsageError(
                f"option {name} of the checkpoint is {value}, its tensors allow {limit}: {where}; the file is damaged "
                "or was made to harm: get it again from its source"
            )


def _options(section: Any) -> Mapping[str, Any]:
    return section if isinstance(section, Mapping) else vars(section) if hasattr(section, "__dict__") else {}


def _encoder_limits(
    model: Mapping[str, Any], task: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Any, int]]:
    layers = {match[1] for match in (re.match(ENCODER + r"layers\.(\d+)\.", name) for name in tensors) if match}
    width = _size(tensors, r"embed_tokens\.weight", 1)
    inner = _size(tensors, r"layers\.0\.fc1\.weight", 0)
    positions = _size(tensors, r"embed_positions\.weight", 0)
    yield "model.encoder_layers", model.get("encoder_layers"), len(layers)
    yield "model.encoder_embed_dim", model.get("encoder_embed_dim"), width
    yield "model.encoder_ffn_embed_dim", model.get("encoder_ffn_embed_dim"), inner
    yield "model.encoder_attention_heads", model.get("encoder_attention_heads"), width
    yield "model.max_positions", model.get("max_positions"), positions
    yield "task.max_positions", task.get("max_positions"), positions
    yield "model.token_types", model.get("token_types"), max(_size(tensors, r"embed_token_types\.weight", 0), 2)


def _head_limits(task: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Any, int]]:
    largest = max((value.numel() for name, value in tensors.items() if "classification_heads." in name), default=0)
    for name in ("num_classes", "mgcrp_heads", "mgcrp_q", "mgcrp_k", "svpn_values"):
        yield f"task.{name}", task.get(name), largest
    if all(isinstance(task.get(name), int) for name in ("mgcrp_heads", "mgcrp_q")) and task.get("head_fusion") != "cls":
        heads, q = task["mgcrp_heads"], task["mgcrp_q"]
        if task.get("head_pooling") == "mgcrp":
            yield "task.mgcrp_heads * mgcrp_q * mgcrp_k", heads * q * (task.get("mgcrp_k") or q), largest
        elif task.get("head_pooling") == "moment":
            yield "task.(mgcrp_heads - 1) * mgcrp_q^2", (heads - 1) * q * q, largest
        elif task.get("head_pooling") in ("gcp", "dropcov"):
            yield "task.mgcrp_q * (mgcrp_q + 1) / 2", q * (q + 1) // 2, largest
    for name in ("svpn_iters", "gcp_iters"):
        yield f"task.{name}", task.get(name), MAX_ITERATIONS


def _size(tensors: Mapping[str, Tensor], name: str, dimension: int) -> int:
    """A dimension of one of the encoder's tensors, 0 where it is absent."""
    found = next((value for key, value in tensors.items() if re.fullmatch(ENCODER + name, key)), None)
    return 0 if found is None or found.dim() <= dimension else found.shape[dimension]
