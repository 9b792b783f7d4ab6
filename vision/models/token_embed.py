"""Token embedding: an image to visual tokens by a small convolutional network.

Reference: arXiv:2104.10935, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from timm.layers import PatchEmbed, to_2tuple
from torch import Tensor

from sot_core.published_form import unknown_key
from vision.models.embed_stages import EMBED_STYLES, MAX_HALVINGS, build_tokenizer

__all__ = ["EMBED_TYPES", "TokenEmbed", "check_img_size", "read_embed_config"]

EMBED_TYPES = {  # the published names, then those of this package
    "DenseNet": "densenet",
    "ResNet": "resnet",
    "Inception": "inception",
    "Non-local": "nonlocal",
    "Naive_linear": "linear",
    **{name: name for name in (*EMBED_STYLES, "linear")},
}
_DENSE_DEFAULTS: dict[str, Any] = {"dense_layers": 6, "dense_norm": False}
_DEFAULTS: dict[str, Any] = {
    "type": "DenseNet",
    "embedding_dim": 64,
    "large_output": False,
    "token_dim": 64,
    **_DENSE_DEFAULTS,
}


def read_embed_config(cfg: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """A full token embedding dictionary from a partial one or the name of a type; see :class:`TokenEmbed`.

    Raises:
        ValueError: for an unknown key or type, a number that is not positive, a ``token_dim`` that is not a multiple of
            4, or an option of DenseNet on another type.
    """
    values = {} if cfg is None else {"type": cfg} if isinstance(cfg, str) else cfg
    for key in values:
        if key not in _DEFAULTS:
            raise unknown_key(key, "the token embedding's dictionary", _DEFAULTS)
    config = {**_DEFAULTS, **values}
    if config["type"] not in EMBED_TYPES:
        raise ValueError(f"Unknown token embedding type {config['type']!r}, expected one of {list(EMBED_TYPES)}")
    for name in ("embedding_dim", "dense_layers"):
        if config[name] < 1:
            raise ValueError(f"{name} must be positive, got {config[name]}")
    dense = {name: config[name] for name in _DENSE_DEFAULTS}
    if EMBED_TYPES[config["type"]] != "densenet" and dense != _DENSE_DEFAULTS:
        raise ValueError(f"{list(_DENSE_DEFAULTS)} are options of DenseNet, not of {config['type']!r}")
    if config["token_dim"] < 4 or config["token_dim"] % 4:
        raise ValueError(f"token_dim must be a positive multiple of 4, got {config['token_dim']}")
    return config


class TokenEmbed(PatchEmbed):
    """Image to tokens with the interface of timm's `PatchEmbed`, by convolutions that overlap and nest.

    Args:
        cfg: The published dictionary, or the name of a type alone. ``type``: ``DenseNet`` (default), ``ResNet``,
            ``Inception``, ``Non-local`` or ``Naive_linear`` (one convolution, timm's `PatchEmbed`), or the names in
            `EMBED_TYPES`. ``embedding_dim``: token width. ``large_output``: 56x56 tokens from an image of 224
            instead of 14x14. ``token_dim``: width of the stem (64). For DenseNet ``dense_layers``:
            layers of each dense block (6), and ``dense_norm``: BatchNorm and ReLU in them, as newer timm versions
            have it, instead of the published ReLU alone. The dictionary is not changed.
        img_size: Image height and width in pixels, a multiple of ``patch_size``; None: any, but no ``grid_size``.
        patch_size: Pixels per token and side, a power of two up to 16 (``Naive_linear``: any). None: 16, or 4 with
            ``large_output``; half of that for images of at most 112 pixels, so that 112 gives 14x14 as published.
        in_chans: Image channels.
        embed_dim: Token width, before the dictionary's.
        norm_layer: Normalisation of the tokens, after the embedding.
        flatten: Return (B, N, D) rather than (B, D, H, W), where ``output_fmt`` is None.
        output_fmt: timm's output format instead, such as ``NHWC``.
        bias: Whether the last convolution has a bias.
        strict_img_size: Accept no image size but ``img_size``.
        dynamic_img_pad: Pad images to a multiple of the patch size.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Shape:
        (B, in_chans, H, W) -> (B, N, D) with N = H * W / patch_size ** 2, in the image's row order.

    Raises:
        ValueError: for an unknown key or type, or an image or patch size that does not fit.

    Note:
        The published ``large_output=True`` fails for ResNet, is ignored by Non-local and Naive_linear and gives
        another number of tokens for Inception at 224 and DenseNet at 112 pixels; Non-local gives 784 tokens at 224
        where 196 are meant. Here every type gives the same grid: the missing or superfluous stride is put right in
        the stages (ResNet: with the projected shortcut that the changed shape needs; Non-local: one more average
        pool), under the same parameter names. Its published tokens at 224 are those of ``patch_size=8`` here.

    Example:
        >>> TokenEmbed(dict(type="DenseNet", embedding_dim=64, large_output=False))(torch.randn(1, 3, 224, 224)).shape
        torch.Size([1, 196, 64])
    """

    def __init__(
        self,
        cfg: Mapping[str, Any] | str | None = None,
        img_size: int | tuple[int, int] | None = 224,
        patch_size: int | tuple[int, int] | None = None,
        in_chans: int = 3,
        embed_dim: int | None = None,
        norm_layer: Callable[..., Any] | None = None,
        flatten: bool = True,
        output_fmt: str | None = None,
        bias: bool = True,
        strict_img_size: bool = False,
        dynamic_img_pad: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        config = read_embed_config(cfg)
        style = EMBED_TYPES[config["type"]]
        if patch_size is None:
            patch_size = _published_patch_size(img_size, config["large_output"])
        if img_size is not None and not dynamic_img_pad:
            check_img_size(to_2tuple(img_size), to_2tuple(patch_size))
        embed_dim = config["embedding_dim"] if embed_dim is None else embed_dim
        super().__init__(
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            embed_dim=embed_dim,
            norm_layer=norm_layer,
            flatten=flatten,
            output_fmt=output_fmt,
            bias=bias,
            strict_img_size=strict_img_size,
            dynamic_img_pad=dynamic_img_pad,
            device=device,
            dtype=dtype,
        )
        self.style = style
        if style != "linear":
            self.proj = build_tokenizer(
                style,
                in_chans,
                embed_dim,
                _count_halvings(self.patch_size),
                config["token_dim"],
                bias,
                {name: config[name] for name in _DENSE_DEFAULTS} if style == "densenet" else None,
                device=device,
                dtype=dtype,
            )

    def forward(self, x: Tensor) -> Tensor:
        # the other styles would gain as well, but with the channels last torch 2.14 aborts in the backward pass of some
        # strided 1x1 convolutions, as ResNet's shortcuts are, on processors without AVX-512
        if self.style == "densenet":
            x = x.contiguous(memory_format=torch.channels_last)
        return super().forward(x)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        """Change the image size; the patch size too where the embedding is linear."""
        new_patch_size = self.patch_size if patch_size is None else to_2tuple(patch_size)
        if new_patch_size != self.patch_size and self.style != "linear":
            raise ValueError(
                f"patch_size of a {self.style} embedding is fixed at {self.patch_size[0]}, got {patch_size}"
            )
        if img_size is not None:
            img_size = to_2tuple(img_size)
            if not self.dynamic_img_pad:
                check_img_size(img_size, new_patch_size)
        super().set_input_size(img_size=img_size, patch_size=patch_size)


def _published_patch_size(img_size: int | tuple[int, int] | None, large_output: bool) -> int:
    small_image = img_size is not None and max(to_2tuple(img_size)) <= 112
    return (4 if large_output else 16) // (2 if small_image else 1)


def _count_halvings(patch_size: tuple[int, int]) -> int:
    height, width = patch_size
    halvings = height.bit_length() - 1
    if height != width or height != 2**halvings or halvings > MAX_HALVINGS:
        raise ValueError(f"patch_size must be a power of two up to {2**MAX_HALVINGS}, got {patch_size}")
    return halvings


def check_img_size(img_size: tuple[int, int], patch_size: tuple[int, int]) -> None:
    """Make sure that patches fill an image.

    Raises:
        ValueError: for a patch size that is not a positive integer; with the nearest sizes, where they do not.
    """
    if not all(isinstance(patch, int) and patch > 0 for patch in patch_size):
        raise ValueError(f"patch_size must be a positive integer, got {patch_size[0]!r}")
    if any(size < 1 or size % patch for size, patch in zip(img_size, patch_size, strict=True)):
        below, above = (
            tuple(max(1, size // patch + step) * patch for size, patch in zip(img_size, patch_size, strict=True))
            for step in (0, 1)
        )
        raise ValueError(
            f"img_size {img_size} must be a multiple of the patch size {patch_size[0]}, the nearest: {below} or {above}"
        )
