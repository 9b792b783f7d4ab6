"""MixToken: a box of patch tokens is swapped with that of another image.

Reference: arXiv:2104.10858.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Box", "box_around", "draw_box", "swap_box"]

Box = tuple[int, int, int, int]  # top, left, bottom and right in patches, the last two exclusive


@torch.compiler.disable
def draw_box(grid: tuple[int, int], alpha: float = 1.0) -> Box:
    """Draw a box as CutMix does: its middle anywhere, its area 1 - Beta(alpha, alpha) of the grid.

    Args:
        grid: Height and width in patches.
        alpha: Parameter of the Beta distribution (> 0).

    Returns:
        Top, left, bottom and right; the box may be empty. Random numbers are torch's, of the CPU.
    """
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    return box_around((int(torch.randint(grid[0], ())), int(torch.randint(grid[1], ()))), grid, 1.0 - lam)


def box_around(middle: tuple[int, int], grid: tuple[int, int], area: float) -> Box:
    """The box of the grid's shape around a patch, cut off at the grid's edges.

    Args:
        middle: Row and column of the patch.
        grid: Height and width in patches.
        area: Part of the grid that the box has before it is cut off, rounded down to an even number of patches a side.
    """
    half = [int(size * area**0.5) // 2 for size in grid]
    top, left = (max(place - reach, 0) for place, reach in zip(middle, half, strict=True))
    bottom, right = (min(place + reach, size) for place, reach, size in zip(middle, half, grid, strict=True))
    return top, left, bottom, right


def swap_box(tokens: Tensor, grid: tuple[int, int], box: Box) -> Tensor:
    """Swap the tokens in a box with those of the batch in reversed order; its own inverse.

    Args:
        tokens: One vector per patch, row by row.
        grid: Height and width in patches.
        box: As returned by `draw_box`.

    Shape:
        (B, H * W, D) or (B, H, W, D) -> the same.
    """
    top, left, bottom, right = box
    inside = torch.zeros(grid, dtype=torch.bool, device=tokens.device)
    inside[top:bottom, left:right] = True
    return torch.where(inside.view(*tokens.shape[1:-1], 1), tokens.flip(0), tokens)
