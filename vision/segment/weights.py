"""Weights to start UperNet from: a classifier's for its backbone, or those of another UperNet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import timm
from torch import Tensor

from sot_base.errors import UsageError
from vision.models.build import build_model
from vision.models.weights.fit import classifier_names, fit_state_dict, square_grid
from vision.models.weights.load import read_state_dict
from vision.models.weights.published_names import convert_published, is_published
from vision.models.weights.wrappers import unwrap_names
from vision.segment.mmseg_names import from_mmseg, is_mmseg
from vision.segment.model import UperNet

__all__ = ["LoadReport", "load_backbone", "load_fitting", "load_initial", "load_mmseg", "load_pretrained"]


@dataclass(frozen=True)
class LoadReport:
    """What was loaded into a model.

    Attributes:
        loaded: The model's tensors that come from the checkpoint.
        fresh: The model's other tensors.
        unused: The checkpoint's tensors whose name and shape no tensor of the model has.
    """

    loaded: list[str]
    fresh: list[str]
    unused: list[str]

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        for names, what in ((self.fresh, "re-initialised"), (self.unused, "of the checkpoint ignored")):
            if names:
                more = ", ..." if len(names) > 4 else ""
                parts.append(f"{len(names)} {what}: {', '.join(names[:4])}{more}")
        return "; ".join(parts)


def load_backbone(model: UperNet, path: str) -> list[str]:
    """Load the weights of a classifier into the backbone: vision/train.py's, timm's or the published code's.

    Its position embedding is interpolated; classifier, final norm and blocks that segmentation does not use are
    ignored; all else must fit.

    Returns:
        The names of the tensors that were ignored.

    Raises:
        UsageError: naming the file and the tensors that do not fit.
    """
    return _load_backbone(model, read_state_dict(path), f"--backbone-checkpoint {path}")


def load_pretrained(model: UperNet, recipe: Mapping[str, Any]) -> list[str]:
    """Load the released weights of the classifier into the backbone, as `load_backbone`.

    Args:
        model: The model of the recipe.
        recipe: As returned by `vision.segment.build.complete_recipe`.

    Raises:
        UsageError: if they cannot be had, or do not fit.
    """
    name = recipe["model"]
    classes = timm.get_pretrained_cfg(name).num_classes
    whole = {"name": name, "num_classes": classes, "head": {}, "kwargs": recipe["kwargs"]}
    return _load_backbone(model, build_model(whole, pretrained=True).state_dict(), f"--pretrained {name}")


def _load_backbone(model: UperNet, state: dict[str, Tensor], where: str) -> list[str]:
    backbone = model.encoder.backbone
    family = getattr(backbone, "published_family", None)
    grid = None
    if family is not None and is_published(state, family):
        state = convert_published(state, family)
        grid = square_grid(state["pos_embed"].shape[1] - ("cls_token" in state)) if "pos_embed" in state else None
    elif not _is_whole(state):
        state = unwrap_names(state, backbone.state_dict().keys())
    unused = ("head.", "norm.", "fc_norm.", "attn_pool.", "head_dist.")
    unused += tuple(f"{name}." for name in classifier_names(backbone.pretrained_cfg))
    depth = len(backbone.blocks)

    def is_unused(name: str) -> bool:
        number = name.split(".")[1] if name.startswith("blocks.") else ""
        return name.startswith(unused) or (number.isdigit() and depth <= int(number) < model.encoder.full_depth)

    kept = {name: tensor for name, tensor in state.items() if not is_unused(name)}
    try:
        fitted = fit_state_dict(backbone, kept, source_grid=grid)
    except UsageError as error:
        hint = " (it holds a whole UperNet: --initial-checkpoint takes it)" if _is_whole(state) else ""
        raise UsageError(f"{where}{hint}: {error}") from error
    backbone.load_state_dict(fitted.tensors, strict=False)
    return [name for name in state if name not in kept]


def _is_whole(state: Mapping[str, Tensor]) -> bool:
    return is_mmseg(state) or any(name.startswith("encoder.backbone.") for name in state)


def load_initial(model: UperNet, path: str) -> LoadReport:
    """Start from the weights of another UperNet, of this package or of mmsegmentation.

    The backbone must fit, but for the image size; other tensors are loaded where they fit.

    Raises:
        UsageError: naming the file, if it is missing or its backbone does not fit.
    """
    state = read_state_dict(path, use_ema=False)
    try:
        if is_mmseg(state):
            return load_mmseg(model, state)
        return load_fitting(model, unwrap_names(state, model.state_dict().keys()))
    except UsageError as error:
        raise UsageError(f"--initial-checkpoint {path}: {error}") from error


def load_mmseg(model: UperNet, state: Mapping[str, Tensor], strict: bool = False) -> LoadReport:
    """Load the tensors of an mmsegmentation checkpoint: the backbone's, which must fit, and others where they fit.

    The position embedding is interpolated.

    Args:
        model: The model.
        state: Tensors by mmsegmentation's names.
        strict: Raise an error for tensors that do not fit.

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
