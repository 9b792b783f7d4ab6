"""DeiT with the token embedding and the second-order head ("DeiT + ours").

No code is published for these: blocks, position embedding and widths are DeiT's, the head's dimensions are SoT's where
they give the published size; docs/vision.md has the counts.

Reference: arXiv:2104.10935, table 8; arXiv:2012.12877.
"""

from __future__ import annotations

from typing import Any

from timm.models import generate_default_cfgs, register_model

from vision.models.builder import model_cfg
from vision.models.sot import SoT, create_sot

__all__: list[str] = []

default_cfgs = generate_default_cfgs({f"deit_{size}_sot.untrained": model_cfg() for size in ("tiny", "small", "base")})


@register_model
def deit_tiny_sot(pretrained: bool = False, **kwargs: Any) -> SoT:
    """DeiT-T + ours: 12 blocks of width 192, head 6 x 14 x 14."""
    model_args = {"embed_dim": 192, "depth": 12, "num_heads": 3, "fixed_pos_embed": False}
    return create_sot("deit_tiny_sot", pretrained, {"num_heads": 6, "q_dim": 14}, **{**model_args, **kwargs})


@register_model
def deit_small_sot(pretrained: bool = False, **kwargs: Any) -> SoT:
    """DeiT-S + ours: 12 blocks of width 384, dense blocks of 7 layers in the token embedding, head 6 x 28 x 28."""
    model_args = {
        "embed_dim": 384,
        "depth": 12,
        "num_heads": 6,
        "fixed_pos_embed": False,
        "token_embed": {"dense_layers": 7},
    }
    return create_sot("deit_small_sot", pretrained, {"num_heads": 6, "q_dim": 28}, **{**model_args, **kwargs})


@register_model
def deit_base_sot(pretrained: bool = False, **kwargs: Any) -> SoT:
    """DeiT-B + ours: 12 blocks of width 768, head 6 x 38 x 38."""
    model_args = {"embed_dim": 768, "depth": 12, "num_heads": 12, "fixed_pos_embed": False}
    return create_sot("deit_base_sot", pretrained, {"num_heads": 6, "q_dim": 38}, **{**model_args, **kwargs})
