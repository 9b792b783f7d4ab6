"""Learning rates by part of the model: a multiple of ``--lr`` for the head, smaller ones for lower encoder layers.

Each parameter carries its multiple as ``optim_overrides``, fairseq's own name for it, which its half-precision
optimizers hand on to their copies. fairseq's optimizers and schedulers know one rate; it stays the one that is
logged and saved. For the time of a step the optimizer's groups are split by multiple, so checkpoints have fairseq's
usual form, and a run may go on with other multiples than it was started with.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from sot_base.errors import UsageError

__all__ = ["scale_learning_rates", "scaled_groups"]

HEADS = "classification_heads."
LAYER = re.compile(r"encoder\.sentence_encoder\.layers\.(\d+)\.")


def scale_learning_rates(model: nn.Module, head_lr_scale: float, layer_decay: float) -> bool:
    """Give every parameter its multiple of the learning rate.

    Heads get ``head_lr_scale``. With L layers, layer i of the encoder (1 to L, from below) gets
    ``layer_decay**(L + 1 - i)``, the embeddings ``layer_decay**(L + 1)``, as in timm's ``param_groups_layer_decay``.

    Args:
        model: A model of this package.
        head_lr_scale: Multiple for the classification heads (> 0).
        layer_decay: Factor from one layer to the one below, in (0, 1].

    Returns:
        Whether any multiple is not 1.

    Raises:
        UsageError: if a value is out of range.
    """
    if not 0.0 < head_lr_scale < float("inf"):
        raise UsageError(f"not a positive number: --head-lr-scale {head_lr_scale:g}; give 1 for the encoder's rate")
    if not 0.0 < layer_decay <= 1.0:
        raise UsageError(f"not in (0, 1]: --layer-decay {layer_decay:g}; give 1 for the same rate in every layer")
    if head_lr_scale == layer_decay == 1.0:
        return False
    names = [name for name, _ in model.named_parameters()]
    above_top = 2 + max((int(match[1]) for match in map(LAYER.match, names) if match), default=-1)
    for name, parameter in model.named_parameters():
        layer = LAYER.match(name)
        depth = int(layer[1]) + 1 if layer else 0
        scale = head_lr_scale if name.startswith(HEADS) else layer_decay ** (above_top - depth)
        parameter.optim_overrides = {"optimizer": {"lr_scale": scale}}
    return True


@contextlib.contextmanager
def scaled_groups(optimizer: Any) -> Iterator[None]:
    """Split the groups of a `FairseqOptimizer` by their parameters' multiples for the time of the block.

    Raises:
        UsageError: if the optimizer has put parameters together that were to have rates of their own.
    """
    stock = optimizer.optimizer
    whole = stock.param_groups
    parts: list[dict[str, Any]] = []
    for group in whole:
        by_scale: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            overrides = getattr(parameter, "optim_overrides", None)
            if overrides is None:
                raise UsageError(
                    "--head-lr-scale and --layer-decay need separate parameters: this optimizer joins them into one "
                    "vector; add --fp16-no-flatten-grads with --fp16, and leave out --ddp-backend fully_sharded"
                )
            by_scale.setdefault(overrides["optimizer"]["lr_scale"], []).append(parameter)
        parts += [{**group, "params": params, "lr": group["lr"] * scale} for scale, params in by_scale.items()]
    stock.param_groups = parts
    try:
        yield
    finally:
        stock.param_groups = whole
