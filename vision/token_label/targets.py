"""From label maps to the labels of an image's patches, wherever augmentation has moved them.

Reference: arXiv:2104.10858; areas are averaged as RoIAlign does (arXiv:1703.06870).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vision.token_label.read_maps import LabelMap

__all__ = ["TokenLabelTarget", "cell_weights", "make_targets"]

_ROUNDING = 1e-4  # of a cell of the map, or of an image's side


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
    """Labels of images and patches: the softmax of the mean scores of what lies under them.

    A class that is not among a place's best ones has score 0 there, and so have all classes where augmentation has
    filled the image: a patch of nothing else has the uniform label.

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
    """How much of each place of a map lies under each patch.

    A patch is sampled at evenly spaced points, at least one for every place of the map along each of its sides; a point
    takes the four places around it by bilinear interpolation, or nothing where it lies outside of a frame.

    Args:
        frames: (B, F, 2, 3) as `make_targets`.
        grid: Height and width in patches.
        map_size: Height h and width w of the map.
        device: Where the result goes; default the frames'.

    Returns:
        (B, N, h * w) float32; a row's sum is the part of the patch that lies inside.
    """
    sides = torch.stack([_lengths(frames[:, 0], axis, map_size) / grid[1 - axis] for axis in (0, 1)])
    counts = (sides - _ROUNDING).ceil().clamp(min=1)  # points along the axes x and y of a patch, (2, B)
    steps = [int(count) for count in counts.amax(dim=1)]
    frames, counts = frames.float().to(device), counts.to(device)
    (x, part_x), (y, part_y) = (_points(counts[axis], steps[axis], grid[1 - axis]) for axis in (0, 1))
    x, y = x[:, None, :, None, :], y[:, :, None, :, None]
    weight = part_y[:, None, None, :, None] * part_x[:, None, None, None, :]
    for frame in frames.unbind(1):
        for place in _moved(frame, x, y):
            weight = weight * ((place - 0.5).abs() <= 0.5 + _ROUNDING)
    u, v = (
        _shares(place, size).flatten(3, 4).flatten(1, 2)
        for place, size in zip(_moved(frames[:, 0], x, y), map_size[::-1], strict=True)
    )
    weighted = v * weight.flatten(3, 4).flatten(1, 2)[..., None]
    return (weighted.transpose(-2, -1) @ u).flatten(2)


def _lengths(frame: Tensor, axis: int, map_size: tuple[int, int]) -> Tensor:
    """Length of an image's side in places of the map, (B,)."""
    return torch.hypot(frame[:, 0, axis] * map_size[1], frame[:, 1, axis] * map_size[0])


def _points(counts: Tensor, steps: int, cells: int) -> tuple[Tensor, Tensor]:
    """Middles of the parts of every patch along an axis (B, cells, S), and their weights (B, S)."""
    step = torch.arange(steps, device=counts.device)
    offset = (step + 0.5) / counts[:, None]
    cell = torch.arange(cells, device=counts.device)
    return (cell[:, None] + offset[:, None]) / cells, (step < counts[:, None]) / counts[:, None]


def _moved(frame: Tensor, x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Where points lie in a frame: x, then y."""
    for row in frame[..., None, None, None, None].unbind(1):
        yield row[:, 0] * x + row[:, 1] * y + row[:, 2]


def _shares(place: Tensor, size: int) -> Tensor:
    """Linear interpolation along an axis of ``size`` places: the share of each, in a new last dimension."""
    nearest = (place * size - 0.5).clamp(0, size - 1)
    return (1.0 - (nearest[..., None] - torch.arange(size, device=place.device)).abs()).clamp(min=0)
