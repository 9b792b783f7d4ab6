"""The names of tensors in the published checkpoints of SoT, So-ViT, HVT and LV-ViT, and this package's names for them.

Every rule about published names is in this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sot_base.errors import UsageError

__all__ = ["FAMILIES", "PUBLISHED_CLASSIFIERS", "convert_published", "is_published", "is_so_vit"]

PUBLISHED_CLASSIFIERS = ("classifier.visual_fc", "classifier.cls_fc")  # SoT and So-ViT; the others': head
_SO_VIT_BLOCK = "classifier.representation.conv_dr_block."
_SO_VIT_START = "classifier.normalization.weight"


@dataclass(frozen=True)
class Family:
    """How one family of published models names its tensors.

    Attributes:
        title: The family, for messages.
        renamed: Prefixes of published names and of ours; the first one that fits counts.
        kept: Prefixes that are the same here.
        marks: Prefixes that only published checkpoints have.
    """

    title: str
    renamed: Mapping[str, str]
    kept: tuple[str, ...]
    marks: tuple[str, ...]


FAMILIES = {
    "sot": Family(
        title="SoT or So-ViT",
        renamed={
            "visual_tokens.tokens.proj.": "patch_embed.proj.",  # the published Naive_linear
            "visual_tokens.tokens.": "patch_embed.proj.",
            "classifier.representation.wr.": "head.pool.proj.",
            "classifier.representation.norm.": "head.pool.norm.",
            "classifier.visual_fc.": "head.word_fc.",
            "classifier.cls_fc.": "head.cls_fc.",
        },
        kept=("blocks.", "norm.", "cls_token", "pos_embed"),
        marks=(
            "visual_tokens.tokens.",
            "classifier.representation.",
            "classifier.normalization.",
            "classifier.visual_fc.",
            "classifier.cls_fc.",
        ),
    ),
    "hvt": Family(
        title="HVT",
        renamed={"head.": "head.word_fc."},
        kept=("blocks.", "norm.", "cls_token", "pos_embed", "patch_embed."),
        marks=("head.weight",),
    ),
    "lvvit": Family(
        title="LV-ViT",
        renamed={"aux_head.": "head.dense_fc.", "head.": "head.cls_fc.", "patch_embed.": "patch_embed.proj."},
        kept=("blocks.", "norm.", "cls_token", "pos_embed"),
        marks=("head.weight", "aux_head.weight"),
    ),
}


def is_published(state_dict: Mapping[str, Tensor], family: str = "sot") -> bool:
    """Whether a state dict has names that only a published checkpoint of a family has."""
    return any(name.startswith(FAMILIES[family].marks) for name in state_dict)


def is_so_vit(state_dict: Mapping[str, Tensor]) -> bool:
    """Whether a published checkpoint of the SoT family is one of So-ViT."""
    return _SO_VIT_START in state_dict


def convert_published(state_dict: Mapping[str, Tensor], family: str = "sot") -> dict[str, Tensor]:
    """Rename the tensors of a published checkpoint to this package's names; the mapping is not changed.

    The So-ViT head applies svPN to the transposed matrix: its two projections are swapped here, and the columns of
    ``word_fc`` with them.

    Args:
        state_dict: Tensors by published name, without a ``module.`` prefix.
        family: ``sot`` (So-ViT too), ``hvt`` or ``lvvit``.

    Raises:
        UsageError: for a tensor that no rule knows.
    """
    rules, rest = FAMILIES[family], dict(state_dict)
    prefixes = {**rules.renamed, **{prefix: prefix for prefix in rules.kept}}
    converted = _take_so_vit_head(rest) if is_so_vit(rest) else {}
    for name, tensor in rest.items():
        old = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        if old is None:
            raise UsageError(f"not a published {rules.title} checkpoint: unknown tensor {name!r}; check the file")
        converted[prefixes[old] + name.removeprefix(old)] = tensor
    start = converted.get("head.pool.norm.weight")
    if start is not None and start.dim() == 1 and "head.pool.norm.bias" not in converted:  # svPN, not LayerNorm
        converted["head.pool.norm.start_vector"] = converted.pop("head.pool.norm.weight")
    return converted


def _take_so_vit_head(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the pooling and ``visual_fc`` of a So-ViT head from ``rest`` and return them under our names."""

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
