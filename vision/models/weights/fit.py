"""Fitting the tensors of a checkpoint to a model of another image size or number of classes."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from timm.layers import resample_abs_pos_embed
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer import checkpoint_filter_fn as filter_swin
from torch import Tensor, nn

from sot_base.errors import UsageError

__all__ = ["FittedState", "classifier_names", "fit_state_dict", "load_fitted", "resample_positions", "square_grid"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FittedState:
    """Tensors that fit a model.

    Attributes:
        tensors: What the model takes over.
        reset: Tensors of the model's head that keep their initial values.
        unused: Tensors of the checkpoint's head that the model's head lacks.
    """

    tensors: dict[str, Tensor]
    reset: list[str]
    unused: list[str]


def fit_state_dict(
    model: nn.Module,
    state_dict: Mapping[str, Tensor],
    strict: bool = False,
    source_grid: tuple[int, int] | None = None,
) -> FittedState:
    """Select the tensors of a checkpoint that a model can take over; the backbone must fit, the head need not.

    Args:
        model: The model.
        state_dict: Tensors under the model's names.
        strict: Raise an error for tensors of the head that do not fit.
        source_grid: As in `resample_positions`.

    Raises:
        UsageError: naming the tensors that do not fit.
    """
    target, state_dict = model.state_dict(), resample_positions(model, state_dict, source_grid)
    heads = ("head.", *(f"{name}." for name in classifier_names(getattr(model, "pretrained_cfg", None))))
    fits = {name: name in target and target[name].shape == tensor.shape for name, tensor in state_dict.items()}
    missing = [name for name in target if not fits.get(name) and _is_required(name, model)]
    reset = [name for name in missing if name.startswith(heads)]
    unused = [name for name in fits if name.startswith(heads) and name not in target]
    wrong = [f"{name} {tuple(state_dict[name].shape)}" for name in fits if not (fits[name] or name.startswith(heads))]
    wrong += [f"{name} missing" for name in missing if not (name in fits or name.startswith(heads))]
    wrong += [f"{name} does not fit" for name in (*reset, *unused) if strict]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise UsageError(
            f"the checkpoint does not fit {type(model).__name__}: {', '.join(wrong[:5])}{more}; {_advice(model, fits)}"
        )
    return FittedState({name: state_dict[name] for name in fits if fits[name]}, reset, unused)


def classifier_names(pretrained_cfg: Any) -> tuple[str, ...]:
    """The layers that a timm configuration names as the classifier: ``("fc",)``, ``("head", "head_dist")``, ..."""
    if pretrained_cfg is not None and not isinstance(pretrained_cfg, Mapping):
        pretrained_cfg = pretrained_cfg.to_dict()
    names = (pretrained_cfg or {}).get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)


def _is_required(name: str, model: nn.Module) -> bool:
    """Whether a checkpoint must hold a tensor: counters and the fixed sinusoid may be missing."""
    fixed = name == "pos_embed" and getattr(model, "fixed_pos_embed", False)
    return not fixed and not name.endswith("num_batches_tracked")


def _advice(model: nn.Module, names: Mapping[str, Any]) -> str:
    dense_norm = any(".denselayer1.norm1." in name for name in names)
    if dense_norm != any(".denselayer1.norm1." in name for name in model.state_dict()):
        return f"create the model with token_embed={{'dense_norm': {dense_norm}}}"
    if _drops_patches(model, names):
        return "create the model with return_dense=True"
    return "create the model that the checkpoint was made from"


def _drops_patches(model: nn.Module, names: Iterable[str]) -> bool:
    """Whether a checkpoint has a classifier of patches, which the model lacks but could have."""
    return hasattr(model, "return_dense") and "head.dense_fc.weight" in {*names} - model.state_dict().keys()


def load_fitted(model: nn.Module, fitted: FittedState) -> None:
    """Load what fits, with one warning about what keeps its initial values."""
    model.load_state_dict(fitted.tensors, strict=False)
    if fitted.reset or fitted.unused:
        parts = {"re-initialised": fitted.reset, "not used": fitted.unused}
        text = "; ".join(f"{', '.join(names)} are {what}" for what, names in parts.items() if names)
        text += " (return_dense=True makes a model that uses dense_fc)" * _drops_patches(model, fitted.unused)
        _logger.warning(f"the checkpoint's head does not fit {type(model).__name__}: {text}")


def resample_positions(
    model: nn.Module, state_dict: Mapping[str, Tensor], source_grid: tuple[int, int] | None = None
) -> dict[str, Tensor]:
    """Interpolate a position embedding, Swin's relative ones and HVT's pooled ones to the model's image size.

    Prefix tokens stay as they are, and so does everything at the same size.

    Args:
        model: The model.
        state_dict: Tensors under the model's names; it is not changed.
        source_grid: Height and width of their token grid; None: the model's own where the number of tokens is the
            same, otherwise square.

    Raises:
        UsageError: if the positions do not form such a grid, or one of the two lacks the other's class token.
    """
    state_dict = dict(state_dict)
    if isinstance(model, SwinTransformer):
        return filter_swin(state_dict, model)
    position, own = state_dict.get("pos_embed"), getattr(model, "pos_embed", None)
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if position is None or own is None or grid is None or position.dim() != 3:
        return state_dict
    num_prefix = own.shape[1] - grid[0] * grid[1]  # class tokens need not have positions
    num_positions = position.shape[1] - num_prefix
    source = source_grid or (tuple(grid) if position.shape == own.shape else square_grid(num_positions))
    if source[0] * source[1] != num_positions:
        _check_class_token(model, state_dict)
        raise UsageError(
            f"the checkpoint's {num_positions} positions do not form a grid of {source[0]}x{source[1]}: pos_embed; "
            "give its height and width as source_grid"
        )
    state_dict["pos_embed"] = resample_abs_pos_embed(
        position, list(grid), old_size=list(source), num_prefix_tokens=num_prefix
    )
    return model.resample_pooled(state_dict, source) if hasattr(model, "resample_pooled") else state_dict


def _check_class_token(model: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    found = "cls_token" in state_dict
    if found != (getattr(model, "cls_token", None) is not None):
        raise UsageError(
            f"the checkpoint has {'a' if found else 'no'} class token, {type(model).__name__} has "
            f"{'none' if found else 'one'}: cls_token; create the model with class_token={found}"
        )


def square_grid(num_positions: int) -> tuple[int, int]:
    """Height and width of the largest square grid of at most ``num_positions``."""
    side = math.isqrt(max(num_positions, 0))
    return side, side
