"""Loading checkpoints into models: this package's, timm's and the published ones."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from timm.models import clean_state_dict
from torch import Tensor, nn

from sot_base.errors import UsageError
from vision.models.head_mixin import HeadMixin
from vision.models.weights.fit import fit_state_dict, load_fitted, resample_positions, square_grid
from vision.models.weights.published_names import FAMILIES, convert_published, is_published, is_so_vit
from vision.models.weights.read import WEIGHTS, read_checkpoint
from vision.models.weights.wrappers import unwrap_names

__all__ = [
    "checkpoint_filter_fn",
    "choose_weights",
    "load_checkpoint",
    "load_published_checkpoint",
    "load_state",
    "read_state_dict",
]

_logger = logging.getLogger(__name__)


def choose_weights(checkpoint: Mapping[str, Any], weights: str = "auto") -> tuple[str, dict[str, Tensor]]:
    """Choose a state dict of a checkpoint.

    Args:
        checkpoint: As returned by `read_checkpoint`.
        weights: ``ema``, ``raw``, or ``auto``: those that were better in validation, else the averaged ones if any.

    Returns:
        ``ema`` or ``raw``, and the state dict without the prefixes of distributed or compiled models.

    Raises:
        UsageError: if the checkpoint has no such weights.
    """
    better = ("raw", "ema") if checkpoint.get("better_weights") == "raw" else ("ema", "raw")
    for kind in better if weights == "auto" else (weights,):
        for key in WEIGHTS[kind]:
            if isinstance(checkpoint.get(key), Mapping):
                return kind, clean_state_dict(checkpoint[key])
    raise UsageError(f"the checkpoint has no {weights} weights: it holds {', '.join(checkpoint)}; see --weights")


def read_state_dict(
    path_or_state_dict: str | os.PathLike[str] | Mapping[str, Any],
    use_ema: bool = True,
    where: str = "the dictionary given",
) -> dict[str, Tensor]:
    """The tensors of a checkpoint, without the prefixes of wrappers.

    Args:
        path_or_state_dict: A checkpoint file, what it holds, or the tensors alone.
        use_ema: Use the averaged weights where there are any.
        where: What a dictionary has been read from, for the message.

    Raises:
        UsageError: if the file is missing or is not a checkpoint.
    """
    if not isinstance(path_or_state_dict, Mapping):
        where, checkpoint = str(path_or_state_dict), read_checkpoint(path_or_state_dict)
    else:
        checkpoint = dict(path_or_state_dict)
        if not any(isinstance(value, Mapping) for value in checkpoint.values()):
            checkpoint = {"state_dict": checkpoint}
    _, state_dict = choose_weights(checkpoint, "auto" if use_ema else "raw")
    if not state_dict or not all(isinstance(value, Tensor) for value in state_dict.values()):
        raise UsageError(f"no tensors by name: {where}; expected a state dict or a checkpoint that holds one")
    return state_dict


def load_state(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Load a state dict that must fit exactly.

    Raises:
        UsageError: naming what does not fit.
    """
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise UsageError(f"the checkpoint does not fit the model: {where} ({reason}); give its --model") from error


def load_checkpoint(
    model: nn.Module,
    path_or_state_dict: str | os.PathLike[str] | Mapping[str, Any],
    *,
    use_ema: bool = True,
    strict: bool = False,
    source_grid: tuple[int, int] | None = None,
) -> nn.Module:
    """Load a checkpoint of this package, of timm or a published one, also for other classes or another image size.

    Tensors of the head that do not fit, because the number of classes or the head's dimensions differ, keep their
    initial values, and one warning names them. For another image size the position embedding is interpolated. After a
    published checkpoint of SoT or So-ViT the head computes the published form: ``residual_eps=1e-5``, and for SoT
    ``center="sample"``, one scalar per head; this is logged and stored in ``model.head.config``.

    Args:
        model: The model.
        path_or_state_dict: A checkpoint file, what it holds, or the tensors alone.
        use_ema: Use the averaged weights where the checkpoint has them.
        strict: Raise an error for tensors of the head that do not fit.
        source_grid: Height and width of the checkpoint's token grid; None: the model's where the number of tokens is
            the same, otherwise square, as published checkpoints are.

    Returns:
        ``model``.

    Raises:
        UsageError: if the file is missing or unreadable, or does not fit the model; the model is then unchanged.
    """
    state_dict = given = read_state_dict(path_or_state_dict, use_ema)
    published = isinstance(model, HeadMixin) and is_published(given, model.published_family)
    if published:
        state_dict = convert_published(given, model.published_family)
        if source_grid is None and "pos_embed" in state_dict:
            source_grid = square_grid(state_dict["pos_embed"].shape[1] - ("cls_token" in state_dict))
    else:
        state_dict = unwrap_names(state_dict, model.state_dict().keys())
    fitted = fit_state_dict(model, state_dict, strict=strict, source_grid=source_grid)
    if published:
        _use_published_form(model, given)
    load_fitted(model, fitted)
    return model


def load_published_checkpoint(
    model: HeadMixin,
    path_or_state_dict: str | os.PathLike[str] | Mapping[str, Any],
    *,
    use_ema: bool = True,
    **kwargs: Any,
) -> HeadMixin:
    """Load a checkpoint of the published SoT, So-ViT, HVT or LV-ViT code into the model of that name.

    Args:
        model: A ``sot_*``, ``so_vit_*``, ``hvt_*`` or ``lvvit_*`` model.
        path_or_state_dict: As in `load_checkpoint`.
        use_ema: As in `load_checkpoint`.
        **kwargs: ``strict`` and ``source_grid``, as in `load_checkpoint`.

    Returns:
        ``model``.

    Raises:
        UsageError: if the checkpoint is not a published one; as `load_checkpoint`.

    Example:
        >>> model = vision.load_published_checkpoint(timm.create_model("sot_tiny"), "SoT_Tiny.pth.tar")
    """
    state_dict = read_state_dict(path_or_state_dict, use_ema)
    if not is_published(state_dict, model.published_family):
        raise UsageError(
            f"not a published {FAMILIES[model.published_family].title} checkpoint: its tensors have other names; "
            "vision.load_checkpoint reads the checkpoints of this package"
        )
    return load_checkpoint(model, state_dict, **kwargs)


def checkpoint_filter_fn(state_dict: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """What timm applies to the weights of ``create_model(..., pretrained=True)``: names, position grid and head.

    Tensors of the head that do not fit keep their initial values, and one warning names them.
    """
    if is_published(state_dict, model.published_family):
        _use_published_form(model, state_dict)
        state_dict = convert_published(state_dict, model.published_family)
    head = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("head.")}
    fresh = {name: own for name, own in head.items() if name not in state_dict or state_dict[name].shape != own.shape}
    if fresh:
        _logger.warning(f"the checkpoint's head does not fit the model: {', '.join(fresh)} are re-initialised")
    kept = {name: tensor for name, tensor in state_dict.items() if name in head or not name.startswith("head.")}
    return resample_positions(model, {**kept, **fresh})


def _use_published_form(model: HeadMixin, state_dict: Mapping[str, Tensor]) -> None:
    """Rebuild a head of SoT or So-ViT with the published centring and residual term; its parameters stay."""
    if model.published_family != "sot":
        return
    center = model.head.config.center if is_so_vit(state_dict) else "sample"
    head = model.head_class(model.head.config.replace(center=center, residual_eps=1e-5))
    head.load_state_dict(model.head.state_dict())
    model.set_head(head)
    _logger.info(f"published checkpoint: the head uses center={center!r} and residual_eps=1e-5")
