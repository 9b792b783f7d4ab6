"""Turn label maps into the labels of an augmented image's patches.

Reference: arXiv:2104.10858; areas are averaged as RoIAlign does (arXiv:1703.06870).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sot_base.later_values import send
from vision.token_label.read_maps import LabelMap

__all__ = ["TokenLabelTarget", "cell_weights", "make_targets"]

_ROUNDING = 1e-4  # of a cell of the map, or of the side of an image


class TokenLabelTarget(NamedTuple):
    """The labels of a batch of images and of their patches, all of them probabilities of K classes.

    Attributes:
        truth: (B, K) the data set's class of the image.
        label: (B, K) what the label map says of what is left of the image.
        tokens: (B, N, K) what the label map says of every patch, row by row.
    """

    truth: Tensor
    label: Tensor
    tokens: Tensor


def make_targets(
    truth: Tensor,
    label_map: LabelMap,
    frames: Tensor,
    grid: tuple[int, int],
    num_classes: int,
    smoothing: float = 0.0,
) -> TokenLabelTarget:
    """Labels of images and patches: the softmax of the mean scores of the positions that they cover.

    A class that is not among a position's best ones has score 0 there, and so have all classes where augmentation has
    filled the image: a patch that is all filled in has the uniform label.

    Args:
        truth: (B,) class indices.
        label_map: Label maps (B, k, h, w) of the whole images.
        frames: (B, F, 2, 3) how the images were moved, see `vision.token_label.transforms.FollowTransform`; they
            are read on the CPU, so leave them there.
        grid: Height and width in patches of the model.
        num_classes: Classes K.
        smoothing: Share of all labels that is spread evenly over the classes, 0 to 1.

    Returns:
        The target, on the maps' device.
    """
    scores, classes = label_map
    map_size = (scores.shape[-2], scores.shape[-1])
    weights = torch.cat([cell_weights(frames, size, map_size, scores.device) for size in ((1, 1), grid)], dim=1)
    places, best = classes.flatten(2).transpose(1, 2), scores.float().flatten(2).transpose(1, 2)
    dense = best.new_zeros(*best.shape[:2], num_classes).scatter_(2, places, best)
    labels = (weights @ dense).softmax(dim=-1)
    one_hot = torch.nn.functional.one_hot(truth.to(scores.device), num_classes).float()
    one_hot, labels = (part * (1.0 - smoothing) + smoothing / num_classes for part in (one_hot, labels))
    return TokenLabelTarget(one_hot, labels[:, 0], labels[:, 1:])


def cell_weights(
    frames: Tensor, grid: tuple[int, int], map_size: tuple[int, int], device: torch.device | None = None
) -> Tensor:
    """How much of each cell of a map lies under each patch.

    A patch is sampled at evenly spaced points, along each axis at least one for every cell of the map. A point takes
    the four cells around it by bilinear interpolation, or nothing where it lies outside of a frame.

    Args:
        frames: (B, F, 2, 3) as in `make_targets`.
        grid: Height and width in patches.
        map_size: Height h and width w of the map.
        device: Where the result goes; default: the frames' device.

    Returns:
        (B, N, h * w) float32; the sum of a row is the part of the patch that lies inside.
    """
    (rows, columns), (height, width) = grid, map_size
    points_x = _count_points(frames[:, 0, :, 0], map_size, columns)
    points_y = _count_points(frames[:, 0, :, 1], map_size, rows)
    x, share_x = _sample(points_x, columns, device)  # (B, columns, Sx), (B, Sx)
    y, share_y = _sample(points_y, rows, device)  # (B, rows, Sy), (B, Sy)
    x, y = x[:, None, :, None, :], y[:, :, None, :, None]
    weight = share_y[:, None, None, :, None] * share_x[:, None, None, None, :]  # (B, 1, 1, Sy, Sx)
    places = [
        _move(frame, x, y) for frame in send(frames.float(), device).unbind(1)
    ]  # two of (B, rows, columns, Sy, Sx)
    for u, v in places:
        weight = weight * _is_inside(u) * _is_inside(v)
    u, v = (place.flatten(3, 4).flatten(1, 2) for place in places[0])  # on the map, (B, N, Sy * Sx)
    over_rows = _interpolate(v, height) * weight.flatten(3, 4).flatten(1, 2)[..., None]  # (B, N, Sy * Sx, h)
    return (over_rows.transpose(-2, -1) @ _interpolate(u, width)).flatten(2)


def _count_points(direction: Tensor, map_size: tuple[int, int], patches: int) -> Tensor:
    """Points of a patch along an axis of the image: one for each cell of the map that it covers, (B,).

    Args:
        direction: (B, 2) where the axis of the image lies in the map, x and y, in fractions of the map.
        map_size: Height and width of the map.
        patches: Patches along the axis.
    """
    cells = torch.hypot(direction[:, 0] * map_size[1], direction[:, 1] * map_size[0]) / patches
    return (cells - _ROUNDING).ceil().clamp(min=1)


def _sample(counts: Tensor, patches: int, device: torch.device | None) -> tuple[Tensor, Tensor]:
    """Points along an axis, in fractions of the image, and their shares of a patch: (B, patches, S) and (B, S).

    S is the largest of the ``counts``; surplus points of an image have a share of 0.
    """
    steps, counts = int(counts.max()), send(counts, device)
    step = torch.arange(steps, device=counts.device)
    offset = (step + 0.5) / counts[:, None]
    patch = torch.arange(patches, device=counts.device)
    return (patch[:, None] + offset[:, None]) / patches, (step < counts[:, None]) / counts[:, None]


def _move(frame: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the affine maps of a frame, (B, 2, 3), to points."""
    u, v = (row[:, 0] * x + row[:, 1] * y + row[:, 2] for row in frame[..., None, None, None, None].unbind(1))
    return u, v


def _is_inside(place: Tensor) -> Tensor:
    return (place - 0.5).abs() <= 0.5 + _ROUNDING


def _interpolate(place: Tensor, size: int) -> Tensor:
    """Linear interpolation along an axis of ``size`` cells: the share of each, in a new last dimension."""
    nearest = (place * size - 0.5).clamp(0, size - 1)
    return (1.0 - (nearest[..., None] - torch.arange(size, device=place.device)).abs()).clamp(min=0)
