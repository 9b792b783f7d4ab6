"""The convolutional token embeddings: a stem, three stages in the style of a well-known network, a 1x1 convolution.

Every style halves the image in the stem first and then in its stages, first to last, until the patch size is reached;
a stage that has nothing left to halve has stride 1. One function per style; `EMBED_STYLES` gives them their names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import ConvNormAct
from timm.models.densenet import DenseBlock
from timm.models.resnet import Bottleneck
from torch import Tensor, nn

from vision.models.dense_block import ReluDenseBlock, Transition

__all__ = ["EMBED_STYLES", "MAX_HALVINGS", "NonLocalBlock", "build_tokenizer"]

MAX_HALVINGS = 4  # the stem and three stages
_BatchNorm = partial(nn.BatchNorm2d, eps=1e-3)  # the published epsilon of the ResNet, Inception and Non-local stages

Stages = tuple[list[nn.Module], int]  # the stages and their output channels


class InceptionBlock(nn.Module):
    """Four branches side by side: 1x1, 1x1 and 3x3, 1x1 and 5x5, 3x3 max-pooling and 1x1; each with BatchNorm and ReLU.

    Args:
        in_chans: Input channels.
        dim: Half the output channels (a multiple of 4): the branches give dim/2, dim, dim/4 and dim/4.
        stride: 1 or 2.

    Shape:
        (B, in_chans, H, W) -> (B, 2 * dim, H / stride, W / stride).
    """

    def __init__(self, in_chans: int, dim: int, stride: int, **dd: Any) -> None:
        super().__init__()
        conv = partial(ConvNormAct, norm_layer=nn.BatchNorm2d, norm_kwargs={"eps": 1e-3}, **dd)
        self.branch0 = conv(in_chans, dim // 2, 1, stride=stride)
        self.branch1 = nn.Sequential(conv(in_chans, dim // 2, 1), conv(dim // 2, dim, 3, stride=stride, padding=1))
        self.branch2 = nn.Sequential(conv(in_chans, dim // 4, 1), conv(dim // 4, dim // 4, 5, stride=stride, padding=2))
        self.branch3 = nn.Sequential(nn.MaxPool2d(3, stride=stride, padding=1), conv(in_chans, dim // 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch0(x), self.branch1(x), self.branch2(x), self.branch3(x)], dim=1)


class NonLocalBlock(nn.Module):
    """``BatchNorm(W attention(theta, phi, g) + shortcut)``: every position sees every other one.

    The softmax is not scaled, as published: with large activations it saturates.

    Args:
        dim: Input channels, and those of theta, phi and g.
        out_chans: Output channels.

    Shape:
        (B, dim, H, W) -> (B, out_chans, H, W).

    Reference:
        arXiv:1711.07971, embedded Gaussian.
    """

    def __init__(self, dim: int, out_chans: int, **dd: Any) -> None:
        super().__init__()
        for name, width in (("g", dim), ("theta", dim), ("phi", dim), ("shortcut", out_chans)):
            self.add_module(name, nn.Sequential(nn.Conv2d(dim, width, 1, **dd), nn.BatchNorm2d(width, **dd)))
        self.W = nn.Conv2d(dim, out_chans, 1, **dd)
        self.bn_norm = nn.BatchNorm2d(out_chans, **dd)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (branch(x).flatten(2).transpose(1, 2) for branch in (self.theta, self.phi, self.g))
        mixed = F.scaled_dot_product_attention(query, key, value, scale=1.0)  # (B, H * W, dim)
        return self.bn_norm(self.W(mixed.transpose(1, 2).unflatten(2, x.shape[2:])) + self.shortcut(x))


def _densenet(
    dim: int, strides: list[int], dd: dict[str, Any], dense_layers: int = 6, dense_norm: bool = False
) -> Stages:
    """Three dense blocks, growth dim / 4, each with a transition to 2 * dim channels."""
    growth, chans, stages = dim // 4, dim, []
    block = DenseBlock if dense_norm else ReluDenseBlock
    for stride in strides:
        stages.append(block(dense_layers, chans, bn_size=2, growth_rate=growth, **dd))
        chans += dense_layers * growth
        transition = OrderedDict(norm=nn.BatchNorm2d(chans, **dd), conv=nn.Conv2d(chans, 2 * dim, 1, bias=False, **dd))
        if stride == 2:
            transition["pool"] = nn.AvgPool2d(2)
        stages.append(Transition(transition))
        chans = 2 * dim
    return stages, chans


def _resnet(dim: int, strides: list[int], dd: dict[str, Any]) -> Stages:
    """Three bottlenecks to 4 * dim channels, with a projected shortcut where the shape changes."""
    chans, stages = dim, []
    for stride in strides:
        shortcut = None
        if stride != 1 or chans != 4 * dim:
            shortcut = nn.Sequential(
                nn.Conv2d(chans, 4 * dim, 1, stride=stride, bias=False, **dd), nn.BatchNorm2d(4 * dim, **dd)
            )
        stages.append(Bottleneck(chans, dim, stride=stride, downsample=shortcut, norm_layer=_BatchNorm, **dd))
        chans = 4 * dim
    return stages, chans


def _inception(dim: int, strides: list[int], dd: dict[str, Any]) -> Stages:
    """Three Inception blocks to 2 * dim channels."""
    chans = (dim, 2 * dim, 2 * dim)
    return [InceptionBlock(c, dim, stride, **dd) for c, stride in zip(chans, strides, strict=True)], 2 * dim


def _nonlocal(dim: int, strides: list[int], dd: dict[str, Any]) -> Stages:
    """Two 3x3 convolutions, each with a non-local block, to 4 * dim channels; a third halving is an average pool."""
    stages: list[nn.Module] = []
    for chans, out_chans, stride in ((dim, 2 * dim, strides[0]), (2 * dim, 4 * dim, strides[1])):
        stages += [
            nn.Conv2d(chans, dim, 3, stride=stride, padding=1, **dd),
            _BatchNorm(dim, **dd),
            nn.ReLU(),
            NonLocalBlock(dim, out_chans, **dd),
        ]
    return [*stages, nn.AvgPool2d(2)] if strides[2] == 2 else stages, 4 * dim


EMBED_STYLES: dict[str, Callable[..., Stages]] = {
    "densenet": _densenet,
    "resnet": _resnet,
    "inception": _inception,
    "nonlocal": _nonlocal,
}


def build_tokenizer(
    style: str,
    in_chans: int,
    embed_dim: int,
    halvings: int,
    token_dim: int = 64,
    bias: bool = True,
    options: Mapping[str, Any] | None = None,
    **dd: Any,
) -> nn.Sequential:
    """Stem, stages and the 1x1 convolution to the token width, under the published names.

    Args:
        style: A name in `EMBED_STYLES`.
        in_chans: Image channels.
        embed_dim: Token width.
        halvings: How often height and width are halved, 0 to `MAX_HALVINGS`.
        token_dim: Width of the stem, a multiple of 4; the stages' widths follow it.
        bias: Whether the last convolution has a bias.
        options: Options of the style alone.
        **dd: Device and dtype.

    Shape:
        (B, in_chans, H, W) -> (B, embed_dim, H / 2 ** halvings, W / 2 ** halvings).
    """
    strides = [2 if index < halvings else 1 for index in range(MAX_HALVINGS)]
    stem: list[nn.Module] = [nn.Conv2d(in_chans, token_dim, 3, padding=1, **dd)]
    if strides[0] == 2:
        stem.append(nn.MaxPool2d(3, stride=2, padding=1))
    stages, chans = EMBED_STYLES[style](token_dim, strides[1:], dd, **(options or {}))
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(*stem),
            stage=nn.Sequential(*stages),
            transition=nn.Conv2d(chans, embed_dim, 1, bias=bias, **dd),
        )
    )
