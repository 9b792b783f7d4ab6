"""HVT: a vision transformer that shortens its token sequence by pooling, and classifies the mean of what is left.

The variant that it is compared with has a class token, which passes the poolings unchanged and is classified instead.

Reference: arXiv:2103.10619.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.layers import trunc_normal_
from timm.models import generate_default_cfgs
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from sot_core import ClassificationHead
from vision.models.head_mixin import HeadMixin, resolve_head_config, split_head_options
from vision.models.register import create_with_head, model_cfg, register_variant
from vision.models.token_embed import TokenEmbed
from vision.models.token_pool import pooled_length, resample_pooled_positions

__all__ = ["HVT", "HVTBlock"]


class HVTBlock(Block):
    """timm's `Block`, after which the patch tokens may be pooled and get new positions.

    Attributes:
        num_prefix_tokens: Tokens before those of the patches, which stay as they are.
        pool: The pooling along the sequence, or None.
        pos_embed: Learned positions of the pooled tokens, (1, L, D), or None.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_prefix_tokens = 0
        self.pool: nn.Module | None = None
        self.register_parameter("pos_embed", None)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        x = super().forward(x, attn_mask, is_causal)
        if self.pool is None:
            return x
        prefix, patches = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        patches = self.pool(patches.transpose(1, 2)).transpose(1, 2) + self.pos_embed
        return torch.cat([prefix, patches], dim=1) if self.num_prefix_tokens else patches


class HVT(HeadMixin, VisionTransformer):
    """Vision transformer that max-pools its patch tokens at the start of each stage.

    Stages are ``pool_block_width`` blocks long; the tokens are pooled after the first block of each, and get new
    learned positions. The head reads the tokens that are left: their average as published, or what the head's fields
    say (MGCrP and its relatives). A class token is not pooled; it has a position where the patches get their first.

    Args:
        img_size: Height and width of the image in pixels.
        patch_size: Height and width of a patch in pixels.
        num_heads: Attention heads per block.
        head_dim: Channels per head; the token width is ``num_heads * head_dim``.
        num_blocks: Number of blocks.
        pool_kernel_size: Tokens of a pooling window.
        pool_stride: Tokens from window to window. The published code ignores it and always steps by 2.
        pool_block_width: Blocks a stage; 0: no pooling at all.
        class_token: Whether there is a class token, for the fusions that read it.
        head: Fields of `HeadConfig`; token width, number of classes and fusion are the model's.
        weight_init: As timm's `VisionTransformer`.
        **kwargs: As timm's `VisionTransformer`.

    Shape:
        (B, in_chans, H, W) -> (B, num_classes).

    Raises:
        ValueError: if an argument is out of range, or a pooling window is longer than the sequence.
    """

    published_family = "hvt"

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        *,
        num_heads: int = 6,
        head_dim: int = 64,
        num_blocks: int = 12,
        pool_kernel_size: int = 3,
        pool_stride: int = 2,
        pool_block_width: int = 12,
        class_token: bool = False,
        head: Mapping[str, Any] | None = None,
        weight_init: str = "",
        **kwargs: Any,
    ) -> None:
        sizes = {"num_heads": num_heads, "head_dim": head_dim, "num_blocks": num_blocks}
        for name, size in {**sizes, "pool_kernel_size": pool_kernel_size, "pool_stride": pool_stride}.items():
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a positive integer, got {size!r}")
        if not isinstance(pool_block_width, int) or pool_block_width < 0:
            raise ValueError(
                f"pool_block_width must be an integer of at least 0 (0: no pooling), got {pool_block_width!r}"
            )
        if not isinstance(class_token, bool):
            raise ValueError(f"class_token must be True or False, got {class_token!r}")
        if kwargs.get("dynamic_img_size"):
            raise ValueError(
                "dynamic_img_size is not for HVT: its pooled tokens have positions of their own; use img_size"
            )
        super().__init__(
            img_size,
            patch_size,
            embed_dim=num_heads * head_dim,
            depth=num_blocks,
            num_heads=num_heads,
            class_token=class_token,
            reg_tokens=0,
            global_pool="token" if class_token else "avg",
            fc_norm=False,
            embed_layer=partial(TokenEmbed, "linear", strict_img_size=True),
            block_fn=HVTBlock,
            weight_init="skip",
            **kwargs,
        )
        self.pool_kernel_size, self.pool_stride = pool_kernel_size, pool_stride
        length, reference = self.patch_embed.num_patches, self.patch_embed.proj.weight
        for block in self.blocks[::pool_block_width] if pool_block_width else ():
            length = pooled_length(length, pool_kernel_size, pool_stride)
            block.pool, block.num_prefix_tokens = nn.MaxPool1d(pool_kernel_size, pool_stride), self.num_prefix_tokens
            block.pos_embed = nn.Parameter(reference.new_empty(1, length, self.embed_dim))
        for index, info in enumerate(self.feature_info):
            info["reduction"] *= pool_stride ** sum(pooled <= index for pooled in self.pooled_blocks)
        config = resolve_head_config(head or {}, self.embed_dim, self.num_classes, with_cls=class_token)
        self.finish_init(ClassificationHead(config), weight_init)

    @property
    def pooled_blocks(self) -> list[int]:
        """Indices of the blocks after which tokens are pooled; without those that `prune_intermediate_layers` took."""
        return [index for index, block in enumerate(self.blocks) if block.pool is not None]

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """As timm's `VisionTransformer`; positions of pooled tokens are drawn like those of the patches."""
        super().init_weights(mode, needs_reset)
        for index in self.pooled_blocks:
            trunc_normal_(self.blocks[index].pos_embed, std=0.02)

    def no_weight_decay(self) -> set[str]:
        """Parameters without weight decay: all positions, and what the head names."""
        return super().no_weight_decay() | {f"blocks.{index}.pos_embed" for index in self.pooled_blocks}

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        """Change the size of images and patches; all positions are interpolated."""
        old_grid = self.patch_embed.grid_size
        super().set_input_size(img_size=img_size, patch_size=patch_size)
        with torch.no_grad():
            old = {f"blocks.{index}.pos_embed": self.blocks[index].pos_embed for index in self.pooled_blocks}
            for name, tensor in self.resample_pooled(old, old_grid).items():
                if tensor is not old[name]:
                    block = self.get_submodule(name.removesuffix(".pos_embed"))
                    block.pos_embed = nn.Parameter(tensor, requires_grad=old[name].requires_grad)

    def resample_pooled(self, state_dict: Mapping[str, Tensor], source_grid: tuple[int, int]) -> dict[str, Tensor]:
        """Interpolate the positions of pooled tokens from another grid of patches to the model's.

        Args:
            state_dict: Tensors under the model's names; it is not changed.
            source_grid: Height and width of their patches.

        Returns:
            All tensors; positions that are not of that grid stay as they are.
        """
        state_dict, length = dict(state_dict), source_grid[0] * source_grid[1]
        for times, index in enumerate(self.pooled_blocks, start=1):
            if length < self.pool_kernel_size:
                break
            length = pooled_length(length, self.pool_kernel_size, self.pool_stride)
            name = f"blocks.{index}.pos_embed"
            if name in state_dict and state_dict[name].shape[1] == length:
                state_dict[name] = resample_pooled_positions(
                    state_dict[name],
                    source_grid,
                    self.patch_embed.grid_size,
                    self.pool_kernel_size,
                    self.pool_stride,
                    times,
                )
        return state_dict

    def forward_intermediates(self, x: Tensor, *args: Any, output_fmt: str = "NCHW", **kwargs: Any) -> Any:
        """As timm's `VisionTransformer`; as ``NCHW``, pooled sequences (which form no grid) are maps of one row."""
        height, width = self.patch_embed.dynamic_feat_size(x.shape[-2:])
        result = super().forward_intermediates(x, *args, output_fmt="NLC", **kwargs)
        if output_fmt == "NLC":
            return result
        if output_fmt != "NCHW":
            raise ValueError(f"Unknown output_fmt {output_fmt!r}, expected one of ['NCHW', 'NLC']")

        def as_map(tokens: Any) -> Any:
            if isinstance(tokens, tuple):  # with the prefix tokens that belong to them
                return as_map(tokens[0]), *tokens[1:]
            rows = (height, width) if tokens.shape[1] == height * width else (1, tokens.shape[1])
            return tokens.transpose(1, 2).unflatten(2, rows).contiguous()

        if isinstance(result, dict):
            return {**result, "image_intermediates": [as_map(y) for y in result["image_intermediates"]]}
        if isinstance(result, list):
            return [as_map(y) for y in result]
        return result[0], [as_map(y) for y in result[1]]


_CFG = model_cfg(crop_pct=0.875, first_conv="patch_embed.proj", classifier="head.word_fc")
_VARIANTS: dict[str, tuple[str, dict[str, int]]] = {
    "hvt": (
        "HVT of any scaling: ``input_size``, ``patch_size``, ``num_heads``, ``head_dim``, ``num_blocks``, ``pool_*``, "
        "``class_token``.",
        {},
    ),
    "hvt_tiny_1": ("HVT-Ti-1: 12 blocks of 3 heads, one pooling.", {"num_heads": 3}),
    "hvt_small_0": ("HVT-S-0: 12 blocks of 6 heads, no pooling.", {"pool_block_width": 0}),
    "hvt_small_1": ("HVT-S-1: 12 blocks of 6 heads, one pooling.", {"pool_block_width": 12}),
    "hvt_small_2": ("HVT-S-2: 12 blocks of 6 heads, two poolings.", {"pool_block_width": 6}),
    "hvt_small_3": ("HVT-S-3: 12 blocks of 6 heads, three poolings.", {"pool_block_width": 4}),
    "hvt_small_4": ("HVT-S-4: 12 blocks of 6 heads, four poolings.", {"pool_block_width": 3}),
    "scale_hvt_tiny_4": ("Scale HVT-Ti-4: HVT-Ti-4 widened to 6 heads, which is HVT-S-4.", {"pool_block_width": 3}),
}
_ADDRESS = "https://github.com/zhuang-group/HVT/releases/download/"
_RELEASED = {
    "hvt_tiny_1": "v1.0/hvt_ti_1.pth",
    "hvt_small_0": "v1.0/hvt_s_0.pth",
    "hvt_small_1": "v1.1/hvt_s_1.pth",
    "hvt_small_2": "v1.0/hvt_s_2.pth",
    "hvt_small_3": "v1.0/hvt_s_3.pth",
    "scale_hvt_tiny_4": "v1.0/scale_hvt_ti_4.pth",
}
default_cfgs = generate_default_cfgs(
    {f"{name}.untrained": _CFG for name in _VARIANTS if name not in _RELEASED}
    | {f"{name}.in1k": {**_CFG, "url": _ADDRESS + file} for name, file in _RELEASED.items()}
)


def _create_hvt(variant: str, pretrained: bool, **kwargs: Any) -> HVT:
    if "input_size" in kwargs:  # the published name
        if "img_size" in kwargs:
            raise ValueError("input_size and img_size say the same; give one")
        kwargs["img_size"] = kwargs.pop("input_size")
    narrow = kwargs.get("num_heads", 6) in range(1, 6)
    head = {"pooling": "gap", "num_heads": 6, "q_dim": 14 if narrow else 24}  # MGCrP as in SoT-Tiny and SoT-Small
    if kwargs.get("class_token") and all(kwargs.get(name) is None for name in ("head_pooling", "head_config")):
        head["fusion"] = "cls"  # the classifier of the comparison; a pooling asks for the words too
    fields, kwargs = split_head_options(kwargs, **head)
    model = create_with_head(HVT, variant, pretrained, fields, **kwargs)
    if isinstance(model, HVT) and model.cls_token is not None:
        layers = tuple(f"head.{name}" for name, _ in model.head.named_children() if name.endswith("_fc"))
        model.pretrained_cfg = model.default_cfg = {**model.pretrained_cfg, "classifier": layers}
    return model


for _name, (_title, _sizes) in _VARIANTS.items():
    register_variant(__name__, _name, partial(_create_hvt, _name), _title, **_sizes)
