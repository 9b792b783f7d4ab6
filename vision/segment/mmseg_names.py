"""The names of tensors in mmsegmentation's checkpoints of UperNet on LV-ViT, and this package's names for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sot_base.errors import UsageError
from vision.models.weights.fit import square_grid

__all__ = ["MMSEG_CROP", "MMSEG_KWARGS", "MMSEG_WEIGHTS", "from_mmseg", "is_mmseg", "mmseg_recipe"]

MMSEG_CROP = 512  # of every published model, including LV-ViT-L, whose position embedding is for 448
MMSEG_KWARGS = {"lvvit_l": {"skip_lam": 1.0}}  # the configuration of LV-ViT-L has no skip_lam, and its default is 1
_ADDRESS = "https://github.com/zihangJiang/TokenLabeling/releases/download/v1.1-seg/"
MMSEG_WEIGHTS = {f"lvvit_{size}": f"{_ADDRESS}upernet_lvvit_{size}.pth" for size in "sml"}
_LAYER = {"conv": "0", "bn": "1"}
_RULES = (  # mmsegmentation -> here; {layer} is the 0 or 1 that `_LAYER` has for conv or bn
    (r"backbone\.side_layer(?P<n>[1-4])\.", lambda m: f"encoder.neck.layers.{int(m['n']) - 1}."),
    (r"backbone\.patch_embed\.(?!proj\.conv)", lambda m: "encoder.backbone.patch_embed.proj."),
    (r"backbone\.", lambda m: "encoder.backbone."),
    (r"decode_head\.psp_modules\.(?P<n>\d+)\.1\.(?P<layer>conv|bn)\.", "decoder.psp.blocks.{n}.1.{layer}."),
    (r"decode_head\.bottleneck\.(?P<layer>conv|bn)\.", "decoder.psp.out_conv.{layer}."),
    (
        r"decode_head\.lateral_convs\.(?P<n>[0-2])\.(?P<layer>conv|bn)\.",
        "decoder.fpn_lateral_blocks.{back}.conv_norm_relu.{layer}.",
    ),
    (r"decode_head\.fpn_convs\.(?P<n>[0-2])\.(?P<layer>conv|bn)\.", "decoder.fpn_conv_blocks.{back}.{layer}."),
    (r"decode_head\.fpn_bottleneck\.(?P<layer>conv|bn)\.", "decoder.fusion_block.{layer}."),
    (r"decode_head\.conv_seg\.", "segmentation_head.0."),
    (r"auxiliary_head\.convs\.0\.(?P<layer>conv|bn)\.", "aux_head.0.{layer}."),
    (r"auxiliary_head\.conv_seg\.", "aux_head.2.0."),
)


def is_mmseg(state: Mapping[str, Tensor]) -> bool:
    """Whether tensors have mmsegmentation's names."""
    return any(name.startswith("decode_head.") for name in state) and any(
        name.startswith("backbone.") for name in state
    )


def from_mmseg(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors to this package's names; unknown names stay."""
    return {_rename(name): tensor for name, tensor in state.items()}


def _rename(name: str) -> str:
    for pattern, new in _RULES:
        match = re.match(pattern, name)
        if match is None:
            continue
        if not isinstance(new, str):
            return new(match) + name[match.end() :]
        values = match.groupdict()
        if "n" in values:
            values["back"] = 2 - int(values["n"])
        values["layer"] = _LAYER.get(values.get("layer", ""), "")
        return new.format(**values) + name[match.end() :]
    return name


def mmseg_recipe(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the shapes of the published tensors say of the recipe, see `vision.segment.build.complete_recipe`.

    Raises:
        UsageError: for another UperNet than the published one on LV-ViT.
    """
    try:
        patch = 2 * state["backbone.patch_embed.proj.weight"].shape[-1]
        side = square_grid(state["backbone.pos_embed"].shape[1] - 1)[0]
        recipe = {
            "crop_size": side * patch,
            "num_classes": len(state["decode_head.conv_seg.weight"]),
            "last_channels": len(state["backbone.side_layer4.0.weight"]),
            "decoder_channels": len(state["decode_head.fpn_bottleneck.conv.weight"]),
        }
    except KeyError as error:
        raise UsageError(f"not the published UperNet on LV-ViT: it lacks the tensor {error}; train it again") from error
    aux = state.get("auxiliary_head.convs.0.conv.weight", torch.empty(0))
    return {**recipe, "neck": "side", "aux_channels": len(aux), "norm_eps": 1e-6}
