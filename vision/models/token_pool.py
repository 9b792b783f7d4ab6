"""Pooling along the token sequence, and positions of pooled tokens for another image size."""

from __future__ import annotations

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor

__all__ = ["pooled_length", "resample_pooled_positions", "spread_pooled"]


def pooled_length(num_tokens: int, kernel_size: int, stride: int) -> int:
    """Length of a sequence after pooling without padding.

    Raises:
        ValueError: if the sequence is shorter than the window.
    """
    if num_tokens < kernel_size:
        raise ValueError(
            f"pool_kernel_size {kernel_size} is wider than the sequence of {num_tokens} that is left; "
            "take larger images, smaller patches or a larger pool_block_width"
        )
    return (num_tokens - kernel_size) // stride + 1


def resample_pooled_positions(
    positions: Tensor,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    kernel_size: int,
    stride: int,
    times: int,
) -> Tensor:
    """Positions of pooled tokens for another grid of patches; at the same grid they stay as they are.

    Pooled tokens lie along the rows of the patches. They are spread to one position a patch (linearly, between the
    middles of their windows), that grid is interpolated as timm does it, and read at the middles of the new windows.

    Args:
        positions: Learned positions of the pooled tokens.
        old_grid: Height and width of their patches.
        new_grid: Height and width of the new ones.
        kernel_size: Window of each pooling, in tokens.
        stride: Step of each pooling, in tokens.
        times: How many poolings the tokens went through (>= 1).

    Shape:
        (1, L, D) -> (1, L', D).
    """
    if tuple(old_grid) == tuple(new_grid):
        return positions
    first, step = _middles(kernel_size, stride, times)
    length = new_grid[0] * new_grid[1]
    for _ in range(times):
        length = pooled_length(length, kernel_size, stride)
    patches = torch.arange(old_grid[0] * old_grid[1], device=positions.device)
    grid = _read_between(positions, (patches - first) / step)
    grid = resample_abs_pos_embed(grid, list(new_grid), old_size=list(old_grid), num_prefix_tokens=0)
    return _read_between(grid, first + step * torch.arange(length, device=positions.device))


def spread_pooled(values: Tensor, grid: tuple[int, int], kernel_size: int, stride: int, times: int) -> Tensor:
    """Values of pooled tokens spread to one for each patch, linearly, between the middles of their windows.

    Args:
        values: A value of each pooled token.
        grid: Height and width of the patches.
        kernel_size: Window of each pooling, in tokens.
        stride: Step of each pooling, in tokens.
        times: How many poolings the tokens went through.

    Shape:
        (B, L) -> (B, H * W).
    """
    first, step = _middles(kernel_size, stride, times)
    patches = torch.arange(grid[0] * grid[1], device=values.device)
    return _read_between(values.unsqueeze(-1), (patches - first) / step).squeeze(-1)


def _middles(kernel_size: int, stride: int, times: int) -> tuple[float, int]:
    """Middle of the first pooled token's window, and the distance to the next one's, in patches."""
    first, step = 0.0, 1
    for _ in range(times):
        first += step * (kernel_size - 1) / 2
        step *= stride
    return first, step


def _read_between(sequence: Tensor, where: Tensor) -> Tensor:
    """Values of a sequence (B, L, D) at fractional places, linearly; beyond its ends the end's."""
    where = where.clamp(0, sequence.shape[1] - 1)
    below = where.floor().long()
    above = (below + 1).clamp(max=sequence.shape[1] - 1)
    return torch.lerp(sequence[:, below], sequence[:, above], (where - below).to(sequence.dtype).unsqueeze(-1))
