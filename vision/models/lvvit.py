"""LV-ViT: a vision transformer with a convolutional stem, trained with a label for every token.

Reference: arXiv:2104.10858.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

from timm.models import generate_default_cfgs
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from vision.models.dense_head import DenseHead
from vision.models.dense_mixin import DenseMixin, DenseOutput
from vision.models.head_mixin import resolve_head_config, split_head_options
from vision.models.register import create_with_head, model_cfg, register_variant
from vision.models.token_embed import TokenEmbed

__all__ = ["ConvStemEmbed", "DenseOutput", "LVViT", "ScaledBlock"]


class ConvStemEmbed(TokenEmbed):
    """Image to tokens by three convolutions at half the size, and one that is as wide as its step.

    Args:
        stem_width: Channels of the three convolutions.
        img_size: Image height and width in pixels, a multiple of ``patch_size``.
        patch_size: Height and width of a token in pixels, an even number.
        in_chans: Image channels.
        embed_dim: Token width.
        bias: Whether the last convolution has a bias.
        **kwargs: As `TokenEmbed`.

    Raises:
        ValueError: for an image or patch size that does not fit.
    """

    def __init__(
        self,
        stem_width: int = 64,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__("linear", img_size, patch_size, in_chans, embed_dim, bias=bias, **kwargs)
        if any(size % 2 for size in self.patch_size):
            raise ValueError(f"patch_size must be even, got {patch_size}")
        self.style = "convolutional"
        dd = {name: kwargs.get(name) for name in ("device", "dtype")}
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for index, (chans, kernel, stride) in enumerate(((in_chans, 7, 2), (stem_width, 3, 1), (stem_width, 3, 1)), 1):
            layers[f"conv{index}"] = nn.Conv2d(chans, stem_width, kernel, stride, kernel // 2, bias=False, **dd)
            layers[f"bn{index}"] = nn.BatchNorm2d(stem_width, **dd)
            layers[f"relu{index}"] = nn.ReLU(inplace=True)
        step = tuple(size // 2 for size in self.patch_size)
        layers["proj"] = nn.Conv2d(stem_width, embed_dim, step, step, bias=bias, **dd)
        self.proj = nn.Sequential(layers)


class ScaledBlock(Block):
    """timm's `Block` with its residual branches divided by ``skip_lam``."""

    def __init__(self, *args: Any, skip_lam: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.skip_lam = skip_lam

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        attended = self.attn(self.norm1(x), attn_mask=attn_mask, is_causal=is_causal)
        x = x + self.drop_path1(self.ls1(attended)) / self.skip_lam
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x)))) / self.skip_lam


class LVViT(DenseMixin, VisionTransformer):
    """Vision transformer with a convolutional stem and a classifier on every patch token.

    Its logits are the head's plus half the largest that ``dense_fc`` gives any patch, class by class (`DenseHead`).
    For token labeling ``return_dense`` lets training return the patches' logits as well.

    Args:
        *args: As timm's `VisionTransformer`.
        stem_width: Channels of the stem.
        skip_lam: Divisor of the residual branches.
        return_dense, mix_token, mix_alpha: The attributes of `DenseMixin`.
        head: Fields of `HeadConfig`; the token width and the number of classes are the model's.
        weight_init: As timm's `VisionTransformer`.
        **kwargs: As timm's `VisionTransformer`.

    Shape:
        (B, in_chans, H, W) -> (B, num_classes).

    Raises:
        ValueError: as `vision.models.dense_mixin.resolve_dense`.
    """

    head_class = DenseHead
    published_family = "lvvit"

    def __init__(
        self,
        *args: Any,
        stem_width: int = 64,
        skip_lam: float = 1.0,
        return_dense: bool = False,
        mix_token: bool = False,
        mix_alpha: float = 1.0,
        head: Mapping[str, Any] | None = None,
        weight_init: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            *args,
            class_token=True,
            embed_layer=partial(ConvStemEmbed, stem_width, strict_img_size=True),
            block_fn=partial(ScaledBlock, skip_lam=skip_lam),
            weight_init="skip",
            **kwargs,
        )
        self.set_dense(return_dense, mix_token, mix_alpha)
        config = resolve_head_config(head or {}, self.embed_dim, self.num_classes, with_cls=True)
        self.finish_init(DenseHead(config), weight_init)


_MODELS: dict[str, dict[str, Any]] = {
    "t": {"embed_dim": 240, "depth": 12, "num_heads": 4},
    "s": {"embed_dim": 384, "depth": 16, "num_heads": 6, "skip_lam": 2.0},
    "m": {"embed_dim": 512, "depth": 20, "num_heads": 8, "skip_lam": 2.0},
    "l": {"embed_dim": 768, "depth": 24, "num_heads": 12, "skip_lam": 3.0, "stem_width": 128},
}
_IMG_SIZES = {
    "lvvit_t": 224,
    **{"lvvit_s": 224, "lvvit_s_384": 384},
    **{"lvvit_m": 224, "lvvit_m_384": 384, "lvvit_m_448": 448},
    **{"lvvit_l": 224, "lvvit_l_448": 448, "lvvit_l_512": 512},
}


_ADDRESS = "https://github.com/zihangJiang/TokenLabeling/releases/download/"
_RELEASED = {
    "lvvit_t": {224: "v0.2.0/lvvit_t.pth"},
    "lvvit_s": {224: "1.0/lvvit_s-26M-224-83.3.pth.tar", 384: "1.0/lvvit_s-26M-384-84.4.pth.tar"},
    "lvvit_m": {
        224: "1.0/lvvit_m-56M-224-84.0.pth.tar",
        384: "1.0/lvvit_m-56M-384-85.4.pth.tar",
        448: "1.1/lvvit_m-56M-448-85.5.pth.tar",
    },
    "lvvit_l": {448: "1.0/lvvit_l-150M-448-86.2.pth.tar", 512: "1.0/lvvit_l-150M-512-86.4.pth.tar"},
}


def _cfgs(name: str, size: int) -> dict[str, dict[str, Any]]:
    """The descriptions of a model: of its own image size, the default; without a size in its name, of all released."""
    base = name.removesuffix(f"_{size}")
    released = _RELEASED[base]
    sizes = (*sorted(released.keys() - {size}), size) if name == base else (size,)
    cfgs = {}
    for each in sizes:
        tag = f"in1k_{each}" if each in released else "untrained"
        cfgs[f"{name}.{tag}{'*' * (each == size)}"] = model_cfg(
            url=_ADDRESS + released[each] if each in released else None,
            input_size=(3, each, each),
            crop_pct=0.9 if base in ("lvvit_t", "lvvit_s") else 1.0,
            first_conv="patch_embed.proj.conv1",
            classifier=("head.cls_fc", "head.dense_fc"),
        )
    return cfgs


default_cfgs = generate_default_cfgs(
    {key: cfg for name, size in _IMG_SIZES.items() for key, cfg in _cfgs(name, size).items()}
)


def _create_lvvit(variant: str, pretrained: bool, **kwargs: Any) -> LVViT:
    given, kwargs = split_head_options(kwargs)
    fusion = "sum_fc" if given.keys() - {"drop_rate"} else "cls"  # the published head, unless another is asked for
    head = {"num_heads": 6, "q_dim": 24, "fusion": fusion, **given}
    model_args = {"mlp_ratio": 3.0, "qkv_bias": False, "norm_layer": nn.LayerNorm, **kwargs}
    return create_with_head(LVViT, variant, pretrained, head, **model_args)


for _name, _size in _IMG_SIZES.items():
    _model = _MODELS[_name.split("_")[1]]
    _title = "LV-ViT-{}: {depth} blocks of width {embed_dim}.".format(_name.split("_")[1].upper(), **_model)
    register_variant(__name__, _name, partial(_create_lvvit, _name), _title, **_model)
