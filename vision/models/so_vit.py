"""So-ViT: the older form of SoT, with a ResNet-style token embedding and one head of q x k after BatchNorm and ReLU.

Reference: arXiv:2104.10935v1.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model

from vision.models.builder import model_cfg
from vision.models.sot import SoT, create_sot

__all__: list[str] = []

default_cfgs = generate_default_cfgs({f"so_vit_{depth}.untrained": model_cfg() for depth in (7, 10, 14, 19)})


_PUBLISHED: dict[str, Any] = {"qkv_bias": False, "norm_layer": torch.nn.LayerNorm, "token_embed": "ResNet"}
_HEAD: dict[str, Any] = {"num_heads": 1, "projection": "batch_norm_relu"}


@register_model
def so_vit_7(pretrained: bool = False, **kwargs: Any) -> SoT:
    """So-ViT-7: 7 blocks of width 256, head 24 x 48."""
    model_args = {**_PUBLISHED, "depth": 7, "embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0}
    head = {**_HEAD, "q_dim": 24, "k_dim": 48}
    return create_sot("so_vit_7", pretrained, head, **{**model_args, **kwargs})


@register_model
def so_vit_10(pretrained: bool = False, **kwargs: Any) -> SoT:
    """So-ViT-10: 10 blocks of width 256, head 24 x 48."""
    model_args = {**_PUBLISHED, "depth": 10, "embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0}
    head = {**_HEAD, "q_dim": 24, "k_dim": 48}
    return create_sot("so_vit_10", pretrained, head, **{**model_args, **kwargs})


@register_model
def so_vit_14(pretrained: bool = False, **kwargs: Any) -> SoT:
    """So-ViT-14: 14 blocks of width 384, head 48 x 64."""
    model_args = {**_PUBLISHED, "depth": 14, "embed_dim": 384, "num_heads": 6, "mlp_ratio": 3.0}
    head = {**_HEAD, "q_dim": 48, "k_dim": 64}
    return create_sot("so_vit_14", pretrained, head, **{**model_args, **kwargs})


@register_model
def so_vit_19(pretrained: bool = False, **kwargs: Any) -> SoT:
    """So-ViT-19: 19 blocks of width 448, head 48 x 96."""
    model_args = {**_PUBLISHED, "depth": 19, "embed_dim": 448, "num_heads": 7, "mlp_ratio": 3.0}
    head = {**_HEAD, "q_dim": 48, "k_dim": 96}
    return create_sot("so_vit_19", pretrained, head, **{**model_args, **kwargs})
