"""Published checkpoints of SoT, So-ViT, HVT and LV-ViT under this package's names, and what heads must know.

Every rule about published names is in this file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sot_base.errors import UsageError
from vision.models.head_mixin import HeadMixin
from vision.models.weights.fit import fit_state_dict, load_fitted, read_state_dict, resample_positions, square_grid

__all__ = ["checkpoint_filter_fn", "convert_published", "is_published", "load_published_checkpoint"]

_logger = logging.getLogger(__name__)

_BACKBONE = tuple((name, name) for name in ("blocks.", "norm.", "cls_token", "pos_embed", "patch_embed."))
_PREFIXES = {  # of each family, published -> here; the first that fits
    "sot": (
        ("visual_tokens.tokens.proj.", "patch_embed.proj."),  # Naive_linear
        ("visual_tokens.tokens.", "patch_embed.proj."),
        ("classifier.representation.wr.", "head.pool.proj."),
        ("classifier.representation.norm.", "head.pool.norm."),
        ("classifier.visual_fc.", "head.word_fc."),
        ("classifier.cls_fc.", "head.cls_fc."),
        *_BACKBONE[:-1],
    ),
    "hvt": (("head.", "head.word_fc."), *_BACKBONE),
    "lvvit": (
        ("aux_head.", "head.dense_fc."),
        ("head.", "head.cls_fc."),
        ("patch_embed.", "patch_embed.proj."),
        *_BACKBONE[:-1],
    ),
}
_TITLES = {"sot": "SoT or So-ViT", "hvt": "HVT", "lvvit": "LV-ViT"}
_PUBLISHED_ALONE = {
    "sot": (*(old for old, new in _PREFIXES["sot"] if old != new), "classifier.normalization."),
    "hvt": ("head.weight",),
    "lvvit": ("head.weight", "aux_head.weight"),
}
_SO_VIT_BLOCK = "classifier.representation.conv_dr_block."
_SO_VIT_START = "classifier.normalization.weight"


def is_published(state_dict: Mapping[str, Tensor], family: str = "sot") -> bool:
    """Whether tensors have the names of a published checkpoint of a family, which its models do not use here."""
    return any(name.startswith(_PUBLISHED_ALONE[family]) for name in state_dict)


def convert_published(state_dict: Mapping[str, Tensor], family: str = "sot") -> dict[str, Tensor]:
    """Give the tensors of a published checkpoint this package's names; the mapping is not changed.

    The So-ViT head applies svPN to the transposed matrix: its two projections change places here, and the columns of
    ``word_fc`` with them.

    Args:
        state_dict: Tensors by published name, without a ``module.`` prefix.
        family: ``sot`` (So-ViT too), ``hvt`` or ``lvvit``.

    Raises:
        UsageError: for a tensor that no rule knows.
    """
    rest = dict(state_dict)
    converted = _convert_so_vit_head(rest) if _SO_VIT_START in rest else {}
    for name, tensor in rest.items():
        prefix, ours = next(((old, new) for old, new in _PREFIXES[family] if name.startswith(old)), (None, ""))
        if prefix is None:
            raise UsageError(f"not a published {_TITLES[family]} checkpoint: unknown tensor {name!r}; check the file")
        converted[ours + name[len(prefix) :]] = tensor
    start = converted.get("head.pool.norm.weight")
    if start is not None and start.dim() == 1 and "head.pool.norm.bias" not in converted:  # svPN, not LayerNorm
        converted["head.pool.norm.start_vector"] = converted.pop("head.pool.norm.weight")
    return converted


def _convert_so_vit_head(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take the pooling and ``visual_fc`` of a So-ViT head out of ``rest``."""

    def take(layer: str) -> list[Tensor]:  # this package's q-part is the published second block
        return [rest.pop(f"{_SO_VIT_BLOCK}{block}.{layer}") for block in (1, 0)]

    q_weight, k_weight = (weight.flatten(1) for weight in take("0.weight"))
    converted = {"head.pool.proj.linear.weight": torch.cat([q_weight, k_weight])}
    for name in ("weight", "bias", "running_mean", "running_var"):
        converted[f"head.pool.proj.bn.{name}"] = torch.cat(take(f"1.{name}"))
    if f"{_SO_VIT_BLOCK}0.1.num_batches_tracked" in rest:
        converted["head.pool.proj.bn.num_batches_tracked"] = take("1.num_batches_tracked")[0]
    converted["head.pool.norm.start_vector"] = rest.pop(_SO_VIT_START)
    columns = rest.pop("classifier.visual_fc.weight").unflatten(1, (len(k_weight), len(q_weight)))
    converted["head.word_fc.weight"] = columns.transpose(1, 2).flatten(1)
    return converted


def load_published_checkpoint(
    model: HeadMixin,
    path_or_state_dict: str | os.PathLike[str] | Mapping[str, object],
    *,
    use_ema: bool = True,
    strict: bool = False,
    source_grid: tuple[int, int] | None = None,
) -> HeadMixin:
    """Load a checkpoint of the published SoT, So-ViT, HVT or LV-ViT code into the model of that name.

    The head of SoT and So-ViT then computes the published form: ``residual_eps=1e-5``, and for SoT
    ``center="sample"``, one scalar per head; this is logged and is in ``model.head.config``. Tensors of the head that
    do not fit, because the number of classes or the head's dimensions differ, keep their fresh values, and one warning
    names them. For another image size the position embedding's grid is interpolated; at the same size it is taken as
    it is.

    Args:
        model: A ``sot_*``, ``so_vit_*``, ``hvt_*`` or ``lvvit_*`` model.
        path_or_state_dict: A checkpoint file, what it holds, or the tensors alone.
        use_ema: Take the averaged weights where the checkpoint has them.
        strict: Let tensors of the head that do not fit be an error.
        source_grid: Height and width of the checkpoint's token grid; None: square.

    Returns:
        ``model``.

    Raises:
        UsageError: if the file is missing or unreadable, is no published checkpoint, or does not fit the model; the
            model is then unchanged.

    Example:
        >>> model = vision.load_published_checkpoint(timm.create_model("sot_tiny"), "SoT_Tiny.pth.tar")
    """
    state_dict, family = read_state_dict(path_or_state_dict, use_ema), model.published_family
    if not is_published(state_dict, family):
        raise UsageError(
            f"not a published {_TITLES[family]} checkpoint: its tensors have other names; "
            "vision.load_checkpoint reads the checkpoints of this package"
        )
    converted = convert_published(state_dict, family)
    if source_grid is None and "pos_embed" in converted:  # published models are square
        source_grid = square_grid(converted["pos_embed"].shape[1] - ("cls_token" in converted))
    fitted = fit_state_dict(model, converted, strict=strict, source_grid=source_grid)
    if family == "sot":
        _use_published_form(model, state_dict)
    load_fitted(model, fitted)
    return model


def checkpoint_filter_fn(state_dict: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """What timm applies to the weights of ``create_model(..., pretrained=True)``: names and position grid."""
    family = model.published_family
    if is_published(state_dict, family):
        if family == "sot":
            _use_published_form(model, state_dict)
        state_dict = convert_published(state_dict, family)
    fresh = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("head.dense_fc.")}
    if fresh.keys() - state_dict.keys():
        _logger.warning(f"the checkpoint has no classifier of patches: {', '.join(fresh)} start afresh")
    return resample_positions(model, {**fresh, **state_dict})


def _use_published_form(model: HeadMixin, state_dict: Mapping[str, Tensor]) -> None:
    """Rebuild the head with the published centring and residual term; its parameters stay."""
    center = model.head.config.center if _SO_VIT_START in state_dict else "sample"
    head = model.head_class(model.head.config.replace(center=center, residual_eps=1e-5))
    head.load_state_dict(model.head.state_dict())
    model.set_head(head)
    _logger.info(f"published checkpoint: the head uses center={center!r} and residual_eps=1e-5")
