"""The dictionaries of the published README files, read into fields of `sot_core.config.HeadConfig`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Real
from typing import Any

__all__ = ["PUBLISHED_NORMALIZATIONS", "read_published", "unknown_key"]

PUBLISHED_POOLINGS = {"MGCrP": "mgcrp", "GCP": "gcp", "GAP": "gap"}
PUBLISHED_NORMALIZATIONS = {
    "svPN": "svpn",
    "ePN": "epn",
    "LN": "layer_norm",
    "sqrt_d": "scale",
    "sqrt_t": "learnable_scale",
    None: "none",
}
REMOVED = ("recompute",)  # a field of version 0.1.0 that changed no result; saved models name it


def read_published(values: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Translate a head dictionary, published form or field names, to fields of `HeadConfig`."""
    if not isinstance(values, Mapping):
        raise ValueError(f"a head's dictionary is expected, got {values!r}")
    settings: dict[str, Any] = {}
    for key in sorted(values, key=lambda key: _PRIORITY.get(key, 1)):
        value = values[key]
        if key in fields:
            settings[key] = value
        elif key in _TOP:
            settings.update(_TOP[key](value))
        elif key not in REMOVED:
            raise unknown_key(key, "the head's dictionary", [*fields, *_TOP])
    return settings


def _read(values: Any, table: Mapping[str, Callable[[Any], dict[str, Any]]], where: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} must be a dictionary, got {values!r}")
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if key not in table:
            raise unknown_key(key, where, table)
        settings.update(table[key](value))
    return settings


def _type(value: Any) -> dict[str, Any]:
    if value is None:
        return {"fusion": "cls"}
    if value == "fc":  # a linear layer to 1280 before the classifier of the class token
        return {"fusion": "cls", "cls_pooler_dim": 1280, "cls_pooler_activation": "none"}
    if value not in [*PUBLISHED_POOLINGS]:  # a list takes values that have no hash
        raise ValueError(f"Unknown type {value!r}, expected one of {[*PUBLISHED_POOLINGS, 'fc', None]}")
    return {"pooling": PUBLISHED_POOLINGS[value]}


def _normalization_type(value: Any) -> dict[str, Any]:
    if value not in [*PUBLISHED_NORMALIZATIONS]:
        raise ValueError(f"Unknown normalization type {value!r}, expected one of {list(PUBLISHED_NORMALIZATIONS)}")
    return {"normalization": PUBLISHED_NORMALIZATIONS[value]}


def _regular(value: Any) -> dict[str, Any]:
    from torch import nn  # here: a command line has the options without torch

    if value is None:
        return {}
    rate = value.p if isinstance(value, nn.Dropout) else value
    if not isinstance(rate, Real):
        raise ValueError(f"regular must be a dropout or its rate, got {value!r}")
    return {"drop_rate": rate}


def _args(value: Any) -> dict[str, Any]:
    settings = _read({} if value is None else value, _ARGS, "args")
    if settings.get("k_dim", settings.get("q_dim")) != settings.get("q_dim"):
        raise ValueError(f"input_dim must equal wr_dim, got {settings['k_dim']} and {settings.get('q_dim')}")
    return settings


def _normalization(value: Any) -> dict[str, Any]:
    if value is None:
        return {"normalization": "none"}
    return _read(value, _NORMALIZATION, "normalization")


_NORMALIZATION: dict[str, Callable[[Any], dict[str, Any]]] = {
    "type": _normalization_type,
    "alpha": lambda value: {"alpha": value},
    "iterNum": lambda value: {"num_iters": value},
    "svNum": lambda value: {"num_singular_values": value},
    "regular": _regular,
    "input_dim": lambda value: {"k_dim": value},
}
_ARGS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "dim": lambda value: {"embed_dim": value},
    "num_heads": lambda value: {"num_heads": value},
    "wr_dim": lambda value: {"q_dim": value},
    "qkv_bias": lambda value: {"proj_bias": value},
    "normalization": _normalization,
}
_TOP: dict[str, Callable[[Any], dict[str, Any]]] = {
    "type": _type,
    "fusion_type": lambda value: {"fusion": value},
    "args": _args,
    "MGCrP_q": lambda value: {"num_heads": 1, "q_dim": value},
    "MGCrP_k": lambda value: {"num_heads": 1, "k_dim": value},
    "MGCrP_dp": lambda value: {"drop_rate": value},
}
_PRIORITY = {"MGCrP_q": 0, "MGCrP_k": 0, "type": 2}  # later ones overrule: num_heads; None and "fc" the fusion_type


def unknown_key(key: Any, where: str, valid: Iterable[str]) -> ValueError:
    """The error for a key nobody knows, with the nearest valid one."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {names}"
    return ValueError(f"Unknown key {key!r} in {where}; {hint}")
