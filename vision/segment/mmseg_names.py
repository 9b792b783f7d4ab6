"""Checkpoints of mmsegmentation's UperNet on LV-ViT under this package's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sot_base.errors import UsageError
from vision.models.weights.fit import fit_state_dict, square_grid
from vision.segment.model import UperNet

__all__ = [
    "MMSEG_CROP",
    "MMSEG_KWARGS",
    "LoadReport",
    "from_mmseg",
    "is_mmseg",
    "load_fitting",
    "load_mmseg",
    "mmseg_recipe",
]

MMSEG_CROP = 512  # of every published model, also of LV-ViT-L, whose position embedding is of 448
MMSEG_KWARGS = {"lvvit_l": {"skip_lam": 1.0}}  # the configuration of LV-ViT-L has no skip_lam, and its default is 1
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


@dataclass(frozen=True)
class LoadReport:
    """What a model took over.

    Attributes:
        loaded: Its tensors that come from the checkpoint.
        fresh: Its tensors that do not.
        unused: The checkpoint's tensors that no tensor of the model has the name and shape of.
    """

    loaded: list[str]
    fresh: list[str]
    unused: list[str]

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        for names, what in ((self.fresh, "start afresh"), (self.unused, "of the checkpoint are not used")):
            if names:
                more = ", ..." if len(names) > 4 else ""
                parts.append(f"{len(names)} {what}: {', '.join(names[:4])}{more}")
        return "; ".join(parts)


def is_mmseg(state: Mapping[str, Tensor]) -> bool:
    """Whether tensors have mmsegmentation's names."""
    return any(name.startswith("decode_head.") for name in state) and any(
        name.startswith("backbone.") for name in state
    )


def from_mmseg(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under this package's names; those of unknown name keep it."""
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
    """What of a recipe the shapes of the published tensors say, see `vision.segment.build.complete_recipe`.

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
        raise UsageError(f"not the published UperNet on LV-ViT: it lacks the tensor {error}; train anew") from error
    aux = state.get("auxiliary_head.convs.0.conv.weight", torch.empty(0))
    return {**recipe, "neck": "side", "aux_channels": len(aux), "norm_eps": 1e-6}


def load_mmseg(model: UperNet, state: Mapping[str, Tensor], strict: bool = False) -> LoadReport:
    """Give a model the tensors of an mmsegmentation checkpoint: the backbone's, which must fit, and others that do.

    The position embedding is interpolated.

    Args:
        model: The model.
        state: Tensors by mmsegmentation's names.
        strict: Let tensors that do not fit be an error.

    Raises:
        UsageError: naming the tensors that do not fit; the model is then unchanged.
    """
    return load_fitting(model, from_mmseg(state), strict)


def load_fitting(model: UperNet, state: Mapping[str, Tensor], strict: bool = False) -> LoadReport:
    """As `load_mmseg`, from tensors by this package's names."""
    lead = "encoder.backbone."
    backbone = {name.removeprefix(lead): tensor for name, tensor in state.items() if name.startswith(lead)}
    backbone = {name: tensor for name, tensor in backbone.items() if not name.startswith(("norm.", "head."))}
    fitted = fit_state_dict(model.encoder.backbone, backbone)
    own = model.state_dict()
    tensors = {lead + name: tensor for name, tensor in fitted.tensors.items()}
    tensors |= {
        name: tensor
        for name, tensor in state.items()
        if not name.startswith(lead) and name in own and own[name].shape == tensor.shape
    }
    fresh = [name for name in own if name not in tensors and not name.endswith("num_batches_tracked")]
    unused = [name for name in state if name not in tensors]
    report = LoadReport([name for name in own if name in tensors], fresh, unused)
    if strict and (fresh or unused):
        raise UsageError(f"the checkpoint does not fit the model: {report}; give the --model that it was made from")
    model.load_state_dict(tensors, strict=False)
    return report
