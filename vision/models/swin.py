"""Swin Transformer with the token embedding and the second-order head ("Swin + ours").

No code is published for these; docs/vision.md has the counts. Swin has no class token: the head reads the
words alone.

Reference: arXiv:2104.10935, table 8; arXiv:2103.14030.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from timm.models import generate_default_cfgs, register_model
from timm.models.swin_transformer import SwinTransformer

from sot_core import ClassificationHead
from vision.models.builder import create_with_head, model_cfg
from vision.models.head_mixin import HeadMixin, resolve_head_config, split_head_options
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
default_cfgs = generate_default_cfgs({"swin_tiny_sot.untrained": _CFG, "swin_base_sot.untrained": _CFG})


def _create_swin(variant: str, pretrained: bool, head: dict[str, int], **kwargs: Any) -> SwinSoT:
    fields, kwargs = split_head_options(kwargs, **head)
    features = {"flatten_sequential": True, "out_indices": (0, 1, 2, 3)}
    return create_with_head(SwinSoT, variant, pretrained, fields, features, **kwargs)


@register_model
def swin_tiny_sot(pretrained: bool = False, **kwargs: Any) -> SwinSoT:
    """Swin-T + ours: token embedding of 56x56 at 224, head 6 x 24 x 24 on the last stage's 7x7 words."""
    model_args = {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)}
    return _create_swin("swin_tiny_sot", pretrained, {"num_heads": 6, "q_dim": 24}, **{**model_args, **kwargs})


@register_model
def swin_base_sot(pretrained: bool = False, **kwargs: Any) -> SwinSoT:
    """Swin-B + ours: token embedding of 56x56 at 224, head 6 x 38 x 38 on the last stage's 7x7 words."""
    model_args = {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)}
    return _create_swin("swin_base_sot", pretrained, {"num_heads": 6, "q_dim": 38}, **{**model_args, **kwargs})
