"""HVT's published JSON configuration files, which describe a model under the published names."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

__all__ = ["HVT_SIZES", "is_hvt_config", "translate_hvt_config"]

HVT_SIZES = (  # keys of the files, which are arguments of `vision.models.hvt.HVT`
    "patch_size",
    "num_heads",
    "head_dim",
    "num_blocks",
    "pool_kernel_size",
    "pool_stride",
    "pool_block_width",
)
_NAMES = {"exp_name": "experiment", "num_workers": "workers"}
_OF_TRAINING = ("experiment", "weight_decay")


def is_hvt_config(values: Mapping[str, Any]) -> bool:
    """Whether the keys of a configuration file are those of a published HVT file."""
    return any(name in values for name in HVT_SIZES)


def translate_hvt_config(values: Mapping[str, Any], known: Container[str]) -> dict[str, Any]:
    """Translate a published HVT file into options; other keys are kept.

    ``input_size`` (one number) becomes ``img_size``, the other sizes become arguments of the model ``hvt``, and
    ``exp_name`` and ``num_workers`` get the names that they have here.

    Args:
        values: The file's keys and values; they are not changed.
        known: Options of the command; a key about training is left out where the command does not train.
    """
    rest = {_NAMES.get(name, name): value for name, value in values.items() if name not in HVT_SIZES}
    rest = {name: value for name, value in rest.items() if name not in _OF_TRAINING or name in known}
    if rest.get("model") == "hvt_model":
        rest["model"] = "hvt"
    if isinstance(rest.get("input_size"), int):
        rest["img_size"] = rest.pop("input_size")
    sizes = {name: values[name] for name in HVT_SIZES if name in values}
    return {"model": "hvt", **rest, "model_kwargs": {**sizes, **rest.get("model_kwargs", {})}}
