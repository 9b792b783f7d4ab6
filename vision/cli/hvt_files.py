"""HVT's published JSON configuration files, which describe a model under the published names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["HVT_RECIPE", "HVT_SIZES", "is_hvt_config", "translate_hvt_config"]

HVT_RECIPE = "hvt"  # in vision/configs: the defaults of the published training program
HVT_SIZES = (  # keys of the files, which are arguments of `vision.models.hvt.HVT`
    "patch_size",
    "num_heads",
    "head_dim",
    "num_blocks",
    "pool_kernel_size",
    "pool_stride",
    "pool_block_width",
)


def is_hvt_config(values: Mapping[str, Any]) -> bool:
    """Whether the keys of a configuration file are those of a published HVT file."""
    return any(name in values for name in HVT_SIZES)


def translate_hvt_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a published HVT file into options; other keys are kept.

    ``input_size`` (one number) becomes ``img_size``, the other sizes become arguments of the model ``hvt``.

    Args:
        values: The file's keys and values; they are not changed.
    """
    rest = {name: value for name, value in values.items() if name not in HVT_SIZES}
    if isinstance(rest.get("input_size"), int):
        rest["img_size"] = rest.pop("input_size")
    sizes = {name: values[name] for name in HVT_SIZES if name in values}
    return {"model": "hvt", **rest, "model_kwargs": {**sizes, **rest.get("model_kwargs", {})}}
