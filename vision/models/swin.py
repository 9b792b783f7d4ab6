"""Swin Transformer with the token embedding and the second-order head ("Swin + ours").

No code is published for these; docs/vision.md has the counts. Swin has no class token: the head reads the
words alone.

Reference: arXiv:2104.10935, table 8; arXiv:2103.14030.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from timm.models import generate_default_cfgs
from timm.models.swin_transformer import SwinTransformer

from sot_core import ClassificationHead
from vision.models.head_mixin import HeadMixin, resolve_head_config, split_head_options
from vision.models.register import create_with_head, model_cfg, register_variant
from vision.models.token_embed import TokenEmbed

__all__ = ["SwinSoT"]


class SwinSoT(HeadMixin, SwinTransformer):
    """Swin Transformer whose tokens come from `TokenEmbed` and whose logits come from `ClassificationHead`.

    Args:
        *args: As timm's `SwinTransformer`.
        head: Fields of `HeadConfig`; the token width, the number of classes and the fusion are the model's.
        token_embed: Dictionary or type of `TokenEmbed`.
        weight_init: As timm's `SwinTransformer`.
        **kwargs: As timm's `SwinTransformer`.

    Shape:
        (B, in_chans, H, W) -> (B, num_classes).
    """

    token_layout = "NHWC"

    def __init__(
        self,
        *args: Any,
        head: Mapping[str, Any] | None = None,
        token_embed: Mapping[str, Any] | str | None = None,
        weight_init: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, embed_layer=partial(TokenEmbed, token_embed), weight_init="skip", **kwargs)
        config = resolve_head_config(head or {}, self.num_features, self.num_classes, with_cls=False)
        self.finish_init(ClassificationHead(config), weight_init)


_CFG = model_cfg(pool_size=(7, 7), classifier="head.word_fc")
_VARIANTS: dict[str, tuple[dict[str, Any], int]] = {  # the blocks, and q and k of the head
    "tiny": ({"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)}, 24),
    "base": ({"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)}, 38),
}
default_cfgs = generate_default_cfgs({f"swin_{size}_sot.untrained": _CFG for size in _VARIANTS})


def _create_swin(variant: str, pretrained: bool, head: dict[str, int], **kwargs: Any) -> SwinSoT:
    fields, kwargs = split_head_options(kwargs, **head)
    features = {"flatten_sequential": True, "out_indices": (0, 1, 2, 3)}
    return create_with_head(SwinSoT, variant, pretrained, fields, features, **kwargs)


for _size, (_blocks, _q) in _VARIANTS.items():
    _create = partial(_create_swin, f"swin_{_size}_sot", head={"num_heads": 6, "q_dim": _q})
    _title = f"Swin-{_size[0].upper()} + ours: tokens of 56x56 at 224, head 6 x {_q} x {_q} on 7x7 words."
    register_variant(__name__, f"swin_{_size}_sot", _create, _title, **_blocks)
