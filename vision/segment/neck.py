"""Four maps of different resolutions from the tokens of a transformer, which have only one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sot_base.errors import UsageError

__all__ = ["NECKS", "PyramidNeck", "SideNeck", "take_indices"]


def _conv_norm(conv: nn.Module, channels: int) -> list[nn.Module]:
    return [conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def _up(channels: int, factor: int, bias: bool = True) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(channels, channels, factor, factor, bias=bias)


class _Neck(nn.Module):
    """Apply a layer to each of four maps.

    Shape:
        Four maps (B, D, h, w) -> four maps of ``out_channels[i]`` channels, of the sizes that a subclass says.

    Attributes:
        out_channels: Channels of the four results.
        multiple: How many tokens a side of the image must be a multiple of.
        normalized: Whether the results need no further normalisation.
    """

    out_channels: tuple[int, int, int, int]
    multiple: int
    normalized: bool
    layers: nn.ModuleList

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        return [layer(x) for layer, x in zip(self.layers, maps, strict=True)]


class SideNeck(_Neck):
    """The side layers of the published UperNet on LV-ViT: a quarter, half, the whole and the whole of the patch size.

    Convolutions with BatchNorm and ReLU; the last map, of the same resolution as the third, is widened.

    Args:
        embed_dim: Token width D.
        last_channels: Channels of the last map.
    """

    multiple, normalized = 1, True

    def __init__(self, embed_dim: int, last_channels: int = 2048) -> None:
        super().__init__()
        self.out_channels = (embed_dim, embed_dim, embed_dim, last_channels)
        rows = []
        for factor, channels in zip((4, 2, 1, 1), self.out_channels, strict=True):
            row = _conv_norm(_up(embed_dim, factor, bias=False), embed_dim) if factor > 1 else []
            rows.append(nn.Sequential(*row, *_conv_norm(nn.Conv2d(embed_dim, channels, 1, bias=False), channels)))
        self.layers = nn.ModuleList(rows)


class PyramidNeck(_Neck):
    """The usual maps of a plain transformer for UperNet: a quarter, half, the whole and twice the patch size.

    Transposed convolutions, the map itself, and max pooling.

    Args:
        embed_dim: Token width D.
        last_channels: Ignored: every map has D channels.
    """

    multiple, normalized = 2, False

    def __init__(self, embed_dim: int, last_channels: int | None = None) -> None:
        super().__init__()
        self.out_channels = (embed_dim,) * 4
        quarter = nn.Sequential(_up(embed_dim, 2), nn.BatchNorm2d(embed_dim), nn.GELU(), _up(embed_dim, 2))
        self.layers = nn.ModuleList([quarter, _up(embed_dim, 2), nn.Identity(), nn.MaxPool2d(2)])


NECKS: dict[str, type[_Neck]] = {"side": SideNeck, "pyramid": PyramidNeck}


def take_indices(neck: str, depth: int) -> tuple[int, ...]:
    """Which blocks give the four maps, counted from 0.

    For ``side`` the last and every third before it, as published (16 blocks: 6, 9, 12, 15); for ``pyramid`` the end of
    each quarter (3, 7, 11, 15).

    Raises:
        UsageError: for fewer than four blocks.
    """
    if depth < 4:
        raise UsageError(f"UperNet needs the tokens of four blocks: the model has {depth}; give a deeper --model")
    if neck == "pyramid":
        return tuple(depth * (part + 1) // 4 - 1 for part in range(4))
    step = min(3, depth // 4)
    return tuple(depth - 1 - step * back for back in (3, 2, 1, 0))
