"""Backbones as transformers loads them: their configuration, whole weights, no idle pooler, the states of layers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from sot_base.errors import UsageError
from sot_hf.error_text import model_location

__all__ = [
    "check_loaded",
    "drop_pooler",
    "read_backbone_config",
    "read_config_values",
    "states_of_layers",
    "without_pooler",
]

POOLER = "pooler"


def states_of_layers(outputs: Any, layers: Sequence[int]) -> list[Tensor]:
    """The states (B, T, D) of some layers, from a backbone's output with ``output_hidden_states=True``.

    The last one is the backbone's own result, which some backbones normalise once more.
    """
    last = len(outputs.hidden_states) - 1
    return [outputs.last_hidden_state if layer == last else outputs.hidden_states[layer] for layer in layers]


def without_pooler(config: PretrainedConfig) -> dict[str, bool]:
    """The argument that keeps a backbone from building a pooler nobody uses, where its class has one."""
    model_class = MODEL_MAPPING.get(type(config), None)
    if model_class is None or isinstance(model_class, (list, tuple)):
        return {}
    parameters = inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in parameters else {}


def drop_pooler(backbone: PreTrainedModel) -> None:
    """Leave no parameter without a gradient: remove an optional pooler, freeze a required one."""
    if getattr(backbone, "mask_emb", None) is not None:  # XLNet's, of its language model
        backbone.mask_emb.requires_grad_(False)
    if getattr(backbone, POOLER, None) is None:
        return
    if "add_pooling_layer" in inspect.signature(type(backbone).__init__).parameters:
        backbone.pooler = None
    else:
        getattr(backbone, POOLER).requires_grad_(False)


def check_loaded(info: Mapping[str, Any], path: Any, ignore_mismatched_sizes: bool) -> None:
    """Refuse incomplete weights; ``info`` is the report of transformers' ``from_pretrained``.

    Raises:
        UsageError: if tensors are missing, or have other shapes and ``ignore_mismatched_sizes`` is not set.
    """
    remedy = f"{model_location(path)}; give the config.json that belongs to the weights"
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(f"{POOLER}."))
    if missing:
        raise UsageError(f"the files lack {len(missing)} of its tensors ({', '.join(missing[:5])}): {remedy}")
    other = sorted(f"{name} {[*found]} -> {[*wanted]}" for name, found, wanted in info["mismatched_keys"])
    if other and not ignore_mismatched_sizes:
        raise UsageError(
            f"{len(other)} tensors have other shapes than config.json says ({', '.join(other[:5])}): {remedy}, or "
            "ignore_mismatched_sizes=True for new ones"
        )


def read_config_values(path: Any, config: PretrainedConfig | None, hub: dict[str, Any]) -> dict[str, Any]:
    """Read ``config.json``; it may be absent beside a given `config`."""
    try:
        values, _ = PretrainedConfig.get_config_dict(path, **hub)
    except OSError:
        if config is None:
            raise
        return {}
    return dict(values)


def read_backbone_config(path: Any, values: dict[str, Any], hub: dict[str, Any], kwargs: dict[str, Any]) -> Any:
    """Build the configuration of a backbone; code that comes with a model needs ``trust_remote_code``."""
    if values.get("model_type") in CONFIG_MAPPING and "auto_map" not in values:
        return CONFIG_MAPPING[values["model_type"]].from_dict(values)
    trust = {name: kwargs[name] for name in ("trust_remote_code",) if name in kwargs}
    return AutoConfig.from_pretrained(path, **hub, **trust)
