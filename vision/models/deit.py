"""DeiT with the token embedding and the second-order head ("DeiT + ours").

No code is published for these: blocks, position embedding and widths are DeiT's, the head's dimensions are SoT's where
they give the published size; docs/vision.md has the counts.

Reference: arXiv:2104.10935, table 8; arXiv:2012.12877.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.models import generate_default_cfgs

from vision.models.register import model_cfg, register_variant
from vision.models.sot import create_sot

__all__: list[str] = []

_VARIANTS: dict[str, tuple[dict[str, Any], int]] = {  # the blocks, and q and k of the head
    "tiny": ({"embed_dim": 192, "num_heads": 3}, 14),
    "small": ({"embed_dim": 384, "num_heads": 6, "token_embed": {"dense_layers": 7}}, 28),
    "base": ({"embed_dim": 768, "num_heads": 12}, 38),
}
default_cfgs = generate_default_cfgs({f"deit_{size}_sot.untrained": model_cfg() for size in _VARIANTS})

for _size, (_blocks, _q) in _VARIANTS.items():
    _name, _width = f"deit_{_size}_sot", _blocks["embed_dim"]
    _create = partial(create_sot, _name, head={"num_heads": 6, "q_dim": _q})
    _title = f"DeiT-{_size[0].upper()} + ours: 12 blocks of width {_width}, head 6 x {_q} x {_q}."
    register_variant(__name__, _name, _create, _title, depth=12, fixed_pos_embed=False, **_blocks)
