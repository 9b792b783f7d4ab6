"""SoT: a vision transformer with a convolutional token embedding and the second-order head.

Reference: arXiv:2104.10935.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.models import generate_default_cfgs
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from vision.models.dense_mixin import DenseMixin
from vision.models.head_mixin import resolve_head_config, split_head_options
from vision.models.register import create_with_head, model_cfg, register_variant
from vision.models.token_embed import TokenEmbed

__all__ = ["SoT", "create_sot", "sinusoid_table"]


def sinusoid_table(num_tokens: int, dim: int) -> Tensor:
    """The fixed position embedding of "Attention is all you need": sine and cosine in turn, by the token's index.

    Shape:
        (1, num_tokens, dim), float32.
    """
    channels = torch.arange(dim, dtype=torch.float64)
    frequencies = 10000.0 ** (-2.0 * (channels // 2) / dim)
    angles = torch.arange(num_tokens, dtype=torch.float64).unsqueeze(1) * frequencies
    table = torch.where(channels % 2 == 0, angles.sin(), angles.cos())
    return table.unsqueeze(0).to(torch.float32)


class SoT(DenseMixin, VisionTransformer):
    """Vision transformer whose tokens come from `TokenEmbed` and whose logits come from `ClassificationHead`.

    With ``return_dense``, for token labeling, the head is a `DenseHead`: it has a classifier of patches, ``dense_fc``,
    whose largest logits count half in the logits, as in LV-ViT.

    Args:
        *args: As timm's `VisionTransformer`.
        head: Fields of `HeadConfig`; the token width and the number of classes are the model's.
        token_embed: Dictionary or type of `TokenEmbed`.
        fixed_pos_embed: Whether the position embedding is the fixed sinusoid, a parameter that is not trained, as
            published; otherwise it is learned.
        return_dense, mix_token, mix_alpha: The attributes of `DenseMixin`.
        weight_init: As timm's `VisionTransformer`.
        **kwargs: As timm's `VisionTransformer`.

    Shape:
        (B, in_chans, H, W) -> (B, num_classes).

    Raises:
        ValueError: as `vision.models.dense_mixin.resolve_dense`.

    Reference:
        arXiv:2104.10935; arXiv:2104.10858 for ``return_dense``.
    """

    def __init__(
        self,
        *args: Any,
        head: Mapping[str, Any] | None = None,
        token_embed: Mapping[str, Any] | str | None = None,
        fixed_pos_embed: bool = True,
        return_dense: bool = False,
        mix_token: bool = False,
        mix_alpha: float = 1.0,
        weight_init: str = "",
        **kwargs: Any,
    ) -> None:
        embed_layer = partial(TokenEmbed, token_embed, strict_img_size=True)
        super().__init__(*args, embed_layer=embed_layer, weight_init="skip", **kwargs)
        self.fixed_pos_embed = fixed_pos_embed and self.pos_embed is not None
        if self.fixed_pos_embed:
            self.pos_embed.requires_grad_(False)
        config = resolve_head_config(head or {}, self.embed_dim, self.num_classes, self.has_class_token)
        self.set_dense(return_dense, mix_token, mix_alpha)
        self.finish_init(self.head_class(config), weight_init)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Initialise the weights, the fixed position embedding with its sinusoid."""
        super().init_weights(mode, needs_reset)
        if self.fixed_pos_embed:
            with torch.no_grad():
                self.pos_embed.copy_(sinusoid_table(*self.pos_embed.shape[1:]))


def create_sot(variant: str, pretrained: bool, head: dict[str, Any], **kwargs: Any) -> SoT:
    """Build a `SoT` model.

    Args:
        variant: Name of the model.
        pretrained: Whether to load the weights that ``pretrained_cfg_overlay`` names.
        head: Fields of `HeadConfig` that belong to the variant.
        **kwargs: The model's arguments and the head's options, see `split_head_options`.
    """
    fields, kwargs = split_head_options(kwargs, **head)
    if kwargs.get("return_dense"):
        classifier = (*model_cfg()["classifier"], "head.dense_fc")
        kwargs["pretrained_cfg_overlay"] = {"classifier": classifier, **(kwargs.get("pretrained_cfg_overlay") or {})}
    return create_with_head(SoT, variant, pretrained, fields, **kwargs)


_PUBLISHED: dict[str, Any] = {"qkv_bias": False, "norm_layer": torch.nn.LayerNorm}  # an epsilon of 1e-5
_VARIANTS: dict[str, tuple[dict[str, Any], int]] = {  # the blocks, and q and k of the head
    "tiny": ({"embed_dim": 240, "depth": 12, "num_heads": 4, "mlp_ratio": 2.5}, 14),
    "small": ({"embed_dim": 384, "depth": 14, "num_heads": 6, "mlp_ratio": 3.5}, 24),
    "base": ({"embed_dim": 528, "depth": 24, "num_heads": 8, "mlp_ratio": 3.0}, 38),
}
default_cfgs = generate_default_cfgs({f"sot_{size}.untrained": model_cfg(crop_pct=0.875) for size in _VARIANTS})

for _size, (_blocks, _q) in _VARIANTS.items():
    _create = partial(create_sot, f"sot_{_size}", head={"num_heads": 6, "q_dim": _q})
    _title = f"SoT-{_size.title()}: {{depth}} blocks of width {{embed_dim}}, head 6 x {_q} x {_q}.".format(**_blocks)
    register_variant(__name__, f"sot_{_size}", _create, _title, **_PUBLISHED, **_blocks)
