"""Tensors of a model that was saved within another one: DINO's teacher, Lightning's modules, wrappers of one's own."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from torch import Tensor

__all__ = ["unwrap_names"]

_logger = logging.getLogger(__name__)
_DEPTH = 3  # names of wrappers in front of the model's own, as in module.model.backbone.


def unwrap_names(state: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Take the names of wrappers off, and leave out what a wrapper has beside the model.

    Args:
        state: Tensors by name.
        names: The names of the model's tensors.

    Returns:
        The tensors under the names that begin alike, if thereby more of them are the model's; else all as they are.
    """
    names = set(names)
    candidates = {_lead(name, depth) for name in state for depth in range(1, _DEPTH + 1)} - {""}
    counts = {lead: sum(_rest(name, lead) in names for name in state) for lead in ("", *sorted(candidates))}
    best = max(counts, key=lambda lead: counts[lead])
    if not best or counts[best] == counts[""]:
        return dict(state)
    kept = {name[len(best) :]: tensor for name, tensor in state.items() if name.startswith(best)}
    _logger.info(f"the checkpoint's names begin with {best!r}; {len(state) - len(kept)} other tensors are left out")
    return kept


def _lead(name: str, depth: int) -> str:
    parts = name.split(".")[:-1]
    return ".".join(parts[:depth]) + "." if len(parts) >= depth else ""


def _rest(name: str, lead: str) -> str | None:
    return name[len(lead) :] if name.startswith(lead) else None
