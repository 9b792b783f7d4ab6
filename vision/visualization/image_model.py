"""The interface of `sot_visual` to image classifiers: any timm model, with the second-order head or its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sot_base.errors import UsageError
from sot_core import ClassificationHead
from sot_visual.model_view import HeadInput, ModelView, same_places
from vision.models.head_mixin import count_prefix_tokens
from vision.models.hvt import HVT
from vision.models.token_pool import pooled_length, spread_pooled

__all__ = ["ImageModel"]


class ImageModel:
    """A classifier, and the positions of its tokens on the image.

    Args:
        model: A timm classifier; it is put in evaluation mode, and all parameters require gradients.
        input_size: Channels, height and width of its images.

    Attributes:
        grid: Height and width of the grid of tokens; with pooled tokens, of the grid of patches.

    Raises:
        UsageError: if the model's tokens do not form a grid.
    """

    def __init__(self, model: nn.Module, input_size: tuple[int, ...]) -> None:
        self.model = model.eval().requires_grad_(True)
        head = getattr(model, "head", None)
        self.head = head if isinstance(head, ClassificationHead) else None
        image = torch.zeros(1, *input_size, device=next(model.parameters()).device)
        with torch.no_grad():
            shape = model.forward_features(image).shape
        if len(shape) == 4:
            self.layout = getattr(model, "token_layout", None) or getattr(model, "output_fmt", "NCHW")
            self.layout = self.layout if self.layout != "NLC" else "NCHW"
            self.prefix, self.grid = 0, tuple(shape[1:3] if self.layout == "NHWC" else shape[2:])
        else:
            self.layout, self.prefix = "NLC", count_prefix_tokens(model)
            self.grid = self._patch_grid(input_size, shape[1] - self.prefix)
        self._shape = shape[1:]

    def view(self, model: nn.Module | None = None) -> ModelView:
        """A view for the attribution methods; ``model`` replaces the model, for instance a copy of it."""
        model = self.model if model is None else model
        blocks = getattr(model, "blocks", None)
        is_plain = self.layout == "NLC" and isinstance(blocks, (nn.Sequential, nn.ModuleList)) and len(blocks) > 0
        return ModelView(
            tokens=lambda images: self._tokens(model, images),
            classify=lambda tokens, mask: self._classify(model, tokens),
            head=model.head if self.head is not None else None,
            embedding=None,
            baseline=torch.zeros_like,  # the mean colour
            to_sequence=self._with_prefix if self.head is not None and self.layout == "NLC" else same_places,
            last_block=blocks[-1] if is_plain else None,
        )

    def place(self, scores: Tensor) -> Tensor:
        """Arrange scores of tokens (B, T) on the grid: (B, H, W).

        Raises:
            UsageError: if their number does not fit the grid.
        """
        words = scores[:, scores.shape[1] - self._num_words(scores.shape[1]) :]
        if isinstance(self.model, HVT) and words.shape[1] != self.grid[0] * self.grid[1]:
            times = _poolings(self.model, words.shape[1], self.grid)
            words = spread_pooled(words, self.grid, self.model.pool_kernel_size, self.model.pool_stride, times)
        if words.shape[1] != self.grid[0] * self.grid[1]:
            raise UsageError(f"{words.shape[1]} scores where the tokens are {self.grid}; choose another --method")
        return words.unflatten(1, self.grid)

    def _num_words(self, length: int) -> int:
        """How many of the tokens of a sequence stand for patches."""
        return length - self.prefix if self.layout == "NLC" else length

    def _tokens(self, model: nn.Module, images: Tensor) -> HeadInput:
        features = model.forward_features(images)
        if self.head is not None:
            return model.word_tokens(features), None
        if self.layout == "NCHW":
            return features.flatten(2).transpose(1, 2), None
        return (features.flatten(1, 2) if self.layout == "NHWC" else features), None

    def _classify(self, model: nn.Module, tokens: Tensor) -> Tensor:
        if self.head is not None:
            return model.head(tokens)
        if self.layout == "NCHW":
            return model.forward_head(tokens.transpose(1, 2).unflatten(2, self.grid))
        return model.forward_head(tokens.unflatten(1, self.grid) if self.layout == "NHWC" else tokens)

    def _with_prefix(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Scores of the backbone's tokens from those of the head's; the backbone may have more prefix tokens."""
        given = int(self.head.config.has_cls_token)
        return F.pad(scores[:, given:], (self.prefix, 0)) + F.pad(
            scores[:, :given], (0, scores.shape[1] + self.prefix - 2 * given)
        )

    def _patch_grid(self, input_size: tuple[int, ...], num_words: int) -> tuple[int, int]:
        embed = getattr(self.model, "patch_embed", None)
        grid: Any = getattr(embed, "grid_size", None)
        if hasattr(embed, "dynamic_feat_size"):
            grid = embed.dynamic_feat_size(tuple(input_size[-2:]))
        if grid is not None and (isinstance(self.model, HVT) or grid[0] * grid[1] == num_words):
            return int(grid[0]), int(grid[1])
        height = round((num_words * input_size[-2] / input_size[-1]) ** 0.5)
        if height and num_words % height == 0:
            return height, num_words // height
        raise UsageError(f"{num_words} tokens do not form a grid: {type(self.model).__name__}; give another model")


def _poolings(model: HVT, length: int, grid: tuple[int, int]) -> int:
    """Number of poolings after which this many tokens are left."""
    current = grid[0] * grid[1]
    for times in range(len(model.pooled_blocks) + 1):
        if current == length:
            return times
        current = pooled_length(current, model.pool_kernel_size, model.pool_stride)
    raise UsageError(f"{length} tokens come from no pooling of {grid[0]} x {grid[1]} patches; give another model")
