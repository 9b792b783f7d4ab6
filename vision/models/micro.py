"""sot_micro: a small SoT for images of 8 to 64 pixels, quick on a CPU."""

from __future__ import annotations

from typing import Any

from timm.layers import to_2tuple
from timm.models import generate_default_cfgs, register_model

from vision.models.register import model_cfg
from vision.models.sot import SoT, create_sot

__all__: list[str] = []

default_cfgs = generate_default_cfgs(
    {"sot_micro.untrained": model_cfg(num_classes=10, input_size=(3, 32, 32), crop_pct=1.0)}
)


@register_model
def sot_micro(pretrained: bool = False, **kwargs: Any) -> SoT:
    """SoT of 4 blocks of width 96, head 4 x 12 x 12; an image of 32 gives 8x8 tokens.

    The patch size follows ``img_size`` where none is given: 2 pixels below 24, 4 below 48, otherwise 8, or less where
    that does not divide the image.
    """
    img_size = kwargs.get("img_size") or 32
    model_args = {
        "img_size": img_size,
        "patch_size": _patch_size(to_2tuple(img_size)),
        "embed_dim": 96,
        "depth": 4,
        "num_heads": 4,
        "mlp_ratio": 2.0,
        "qkv_bias": False,
        "token_embed": {"token_dim": 32, "dense_layers": 2},
    }
    return create_sot("sot_micro", pretrained, {"num_heads": 4, "q_dim": 12}, **{**model_args, **kwargs})


def _patch_size(img_size: tuple[int, int]) -> int:
    largest = 2 if min(img_size) < 24 else 4 if min(img_size) < 48 else 8
    return next(patch for patch in (largest, largest // 2, 1) if all(size % patch == 0 for size in img_size))
