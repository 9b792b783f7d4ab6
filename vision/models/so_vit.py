"""So-ViT: the older form of SoT, with a ResNet-style token embedding and one head of q x k after BatchNorm and ReLU.

Reference: arXiv:2104.10935v1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.models import generate_default_cfgs

from vision.models.register import model_cfg, register_variant
from vision.models.sot import create_sot

__all__: list[str] = []

_PUBLISHED: dict[str, Any] = {"qkv_bias": False, "norm_layer": torch.nn.LayerNorm, "token_embed": "ResNet"}
_VARIANTS: dict[int, tuple[dict[str, Any], tuple[int, int]]] = {  # of each depth: the blocks, and q and k of the head
    7: ({"embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0}, (24, 48)),
    10: ({"embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0}, (24, 48)),
    14: ({"embed_dim": 384, "num_heads": 6, "mlp_ratio": 3.0}, (48, 64)),
    19: ({"embed_dim": 448, "num_heads": 7, "mlp_ratio": 3.0}, (48, 96)),
}
_PAGES = {  # of the released weights: large files that the host lets one download after a confirmation
    7: "https://drive.google.com/file/d/1-MTuAbQ-T6skfqHEYrhb9BmitG1iu5SY/view?usp=sharing",
    10: "https://drive.google.com/file/d/1biRaP_m8NR48buFEQQwCRQphR_Nz5Sjw/view?usp=sharing",
    14: "https://drive.google.com/file/d/1A85Rlnaaya9GEpraaEKJsSaGsdqHU5YO/view?usp=sharing",
    19: "https://drive.google.com/file/d/1Jv2lYVzJ5lY909MHYP3YORhAVsKxUAC9/view?usp=sharing",
}
default_cfgs = generate_default_cfgs(
    {f"so_vit_{depth}.in1k": model_cfg(crop_pct=0.875, origin_url=_PAGES[depth]) for depth in _VARIANTS}
)

for _depth, (_blocks, (_q, _k)) in _VARIANTS.items():
    _head = {"num_heads": 1, "projection": "batch_norm_relu", "q_dim": _q, "k_dim": _k}
    _title = f"So-ViT-{_depth}: {_depth} blocks of width {_blocks['embed_dim']}, head {_q} x {_k}."
    _create = partial(create_sot, f"so_vit_{_depth}", head=_head)
    register_variant(__name__, f"so_vit_{_depth}", _create, _title, depth=_depth, **_PUBLISHED, **_blocks)
