"""Reading checkpoints and fitting them to a model: other image size, other number of classes."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from timm.layers import resample_abs_pos_embed
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer import checkpoint_filter_fn as filter_swin
from torch import Tensor, nn

from sot_base.errors import UsageError
from vision.models.head_mixin import HeadMixin
from vision.models.weights.read import choose_weights, read_checkpoint

__all__ = ["fit_state_dict", "load_checkpoint", "load_fitted", "read_state_dict", "resample_positions", "square_grid"]

_logger = logging.getLogger(__name__)


def read_state_dict(
    path_or_state_dict: str | os.PathLike[str] | Mapping[str, Any], use_ema: bool = True
) -> dict[str, Tensor]:
    """The tensors of a checkpoint, without the prefixes of wrappers; the file is never unpickled unsafely.

    Args:
        path_or_state_dict: A ``.pth`` or ``.safetensors`` file, what it holds, or the tensors alone.
        use_ema: Take the averaged weights where there are some.

    Raises:
        UsageError: if the file is missing or is no checkpoint.
    """
    if not isinstance(path_or_state_dict, Mapping):
        where, checkpoint = str(path_or_state_dict), read_checkpoint(path_or_state_dict)
    else:
        where, checkpoint = "the dictionary given", dict(path_or_state_dict)
        if not any(isinstance(value, Mapping) for value in checkpoint.values()):
            checkpoint = {"state_dict": checkpoint}
    _, state_dict = choose_weights(checkpoint, "auto" if use_ema else "raw")
    if not state_dict or not all(isinstance(value, Tensor) for value in state_dict.values()):
        raise UsageError(f"no tensors by name: {where}; expected a state dict or a checkpoint that holds one")
    return state_dict


@dataclass(frozen=True)
class FittedState:
    """Tensors that fit a model.

    Attributes:
        tensors: What the model takes over.
        reset: Tensors of the head that keep their fresh values.
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
    """Find out what of a checkpoint a model can take over; the backbone must fit, the head need not.

    Args:
        model: The model.
        state_dict: Tensors under the model's names.
        strict: Let tensors of the head that do not fit be an error.
        source_grid: As of `resample_positions`.

    Raises:
        UsageError: naming the tensors that do not fit.
    """
    target, state_dict = model.state_dict(), resample_positions(model, state_dict, source_grid)
    heads = _head_prefixes(model)
    fits = {name: name in target and target[name].shape == tensor.shape for name, tensor in state_dict.items()}
    missing = [name for name in target if not fits.get(name) and _must_be_held(name, model)]
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


def _head_prefixes(model: nn.Module) -> tuple[str, ...]:
    """How the names of the head's tensors begin, timm's own classifiers among them: ``fc.``, ``head_dist.``, ..."""
    names = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    return ("head.", *(f"{name}." for name in ([names] if isinstance(names, str) else names)))


def _must_be_held(name: str, model: nn.Module) -> bool:
    """Whether a checkpoint must hold a tensor: counters and the fixed sinusoid need not be there."""
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
    """Whether a checkpoint's classifier of patches has no place in a model that could have one."""
    return hasattr(model, "return_dense") and "head.dense_fc.weight" in {*names} - model.state_dict().keys()


def load_fitted(model: nn.Module, fitted: FittedState) -> None:
    """Load what fits, with one warning about what keeps its fresh values."""
    model.load_state_dict(fitted.tensors, strict=False)
    if fitted.reset or fitted.unused:
        parts = {"start afresh": fitted.reset, "are not used": fitted.unused}
        text = "; ".join(f"{', '.join(names)} {what}" for what, names in parts.items() if names)
        text += " (return_dense=True makes a model that uses dense_fc)" * _drops_patches(model, fitted.unused)
        _logger.warning(f"the checkpoint's head does not fit {type(model).__name__}: {text}")


def load_checkpoint(
    model: nn.Module,
    path_or_state_dict: str | os.PathLike[str] | Mapping[str, Any],
    *,
    use_ema: bool = True,
    strict: bool = False,
    source_grid: tuple[int, int] | None = None,
) -> nn.Module:
    """Load a checkpoint of this package or of timm, also for another image size or number of classes.

    A published checkpoint goes through `vision.load_published_checkpoint`; arguments, errors and the warning are as
    there. A checkpoint of as many tokens as the model has is taken to have the model's grid.
    """
    from vision.models.weights.published_names import is_published, load_published_checkpoint

    state_dict = read_state_dict(path_or_state_dict, use_ema)
    if isinstance(model, HeadMixin) and is_published(state_dict, model.published_family):
        return load_published_checkpoint(model, state_dict, strict=strict, source_grid=source_grid)
    load_fitted(model, fit_state_dict(model, state_dict, strict=strict, source_grid=source_grid))
    return model


def resample_positions(
    model: nn.Module, state_dict: Mapping[str, Tensor], source_grid: tuple[int, int] | None = None
) -> dict[str, Tensor]:
    """Interpolate the grid of a position embedding, Swin's relative ones and HVT's pooled ones to the model's size.

    Prefix tokens stay as they are, and so does everything at the same size.

    Args:
        model: The model.
        state_dict: Tensors under the model's names; it is not changed.
        source_grid: Height and width of their token grid; None: the model's own where the number of tokens is the
            same, otherwise square.

    Raises:
        UsageError: if the positions are no such grid.
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
        raise UsageError(
            f"the checkpoint's {num_positions} positions are no grid of {source[0]}x{source[1]}: pos_embed; "
            "give its height and width as source_grid"
        )
    state_dict["pos_embed"] = resample_abs_pos_embed(
        position, list(grid), old_size=list(source), num_prefix_tokens=num_prefix
    )
    return model.resample_pooled(state_dict, source) if hasattr(model, "resample_pooled") else state_dict


def square_grid(num_positions: int) -> tuple[int, int]:
    """Height and width of a square of at most so many positions."""
    side = math.isqrt(max(num_positions, 0))
    return side, side
