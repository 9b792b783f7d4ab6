"""A classifier applied to every position of its last feature map, from which label maps are made.

Reference: arXiv:2104.10858; arXiv:2101.05022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sot_base.errors import UsageError
from vision.models.head_mixin import HeadMixin, count_prefix_tokens

__all__ = ["PlaceScores", "token_grid"]

_REMEDY = (
    "use a timm classifier, a model with the head of LV-ViT, or a second-order head whose pooling is gap "
    "or whose fusion is cls, sum_fc or sum_loss"
)


class PlaceScores(nn.Module):
    """Scores of every place of an image: the model's own head, as though the whole image looked like that place.

    A place's feature goes through ``forward_head`` alone: as a map of 1x1, or as a sequence of as many equal tokens as
    the head needs, prefix tokens included. So norms and layers around the pooling have their say, and with a linear
    head on the mean of the places the mean of the scores is the logits of the image. Of the second-order heads LV-ViT's
    uses its classifier of patches (``dense_fc``); one that pools covariances, which a single place does not have, uses
    its classifier of the class token (``cls_fc``).

    Args:
        model: A timm classifier in evaluation mode; its tokens or its map lie row by row.

    Shape:
        images (B, 3, H, W) -> (B, K, h, w), logits.

    Raises:
        UsageError: for a model that cannot classify a single place.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.name = model, type(model).__name__
        self.with_head = not isinstance(model, HeadMixin) or _head_takes_a_place(model)
        if getattr(model, "pooled_blocks", ()):
            raise UsageError(f"{self.name} pools its tokens to a sequence that is not a grid: no label maps; {_REMEDY}")

    def forward(self, images: Tensor) -> Tensor:
        features = self.model.forward_features(images)
        if not isinstance(features, Tensor) or features.ndim not in (3, 4):
            raise UsageError(f"{self.name} gives several feature maps, or none: no label maps; {_REMEDY}")
        layout = "NLC" if features.ndim == 3 else getattr(self.model, "token_layout", None)
        layout = layout or getattr(self.model, "output_fmt", "NCHW")
        if layout == "NCHW":
            grid = (features.shape[2], features.shape[3])
        elif layout == "NHWC":
            grid = (features.shape[1], features.shape[2])
        else:
            count = features.shape[1] - count_prefix_tokens(self.model)
            grid = token_grid(count, (images.shape[2], images.shape[3]), self.name)
        scores = self._apply_head(features, layout) if self.with_head else self._apply_layer(features)
        return scores.unflatten(1, grid).permute(0, 3, 1, 2)

    @torch.inference_mode()
    def find_grid(self, input_size: Sequence[int], num_classes: int, device: torch.device) -> tuple[int, int]:
        """Height and width of the map of an image.

        Args:
            input_size: Channels, height and width.
            num_classes: Outputs of the model.
            device: Where the model is.

        Raises:
            UsageError: with the model's own words, where its head does not take a single place.
        """
        try:
            scores = self(torch.zeros(1, *input_size, device=device))
        except UsageError:
            raise
        except (RuntimeError, ValueError, AssertionError, IndexError, TypeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(f"{self.name} cannot classify a single place: {reason}; {_REMEDY}") from error
        if scores.shape[1] != num_classes:
            raise UsageError(
                f"{self.name} cannot classify a single place: it gives {scores.shape[1]} scores for {num_classes} "
                f"classes; {_REMEDY}"
            )
        return scores.shape[2], scores.shape[3]

    def _apply_head(self, features: Tensor, layout: str) -> Tensor:
        """``forward_head`` on every place, (B, N, K)."""
        size = len(features)
        if layout == "NCHW":
            places = features.flatten(2).transpose(1, 2).flatten(0, 1)[..., None, None]
        elif layout == "NHWC":
            places = features.flatten(0, 2)[:, None, None]
        else:
            prefix = count_prefix_tokens(self.model)
            words = features[:, prefix:]
            places = words.flatten(0, 1)[:, None].expand(-1, 1 + prefix, -1)
        scores: Any = self.model.forward_head(places)
        if not isinstance(scores, Tensor) or scores.ndim != 2:
            raise UsageError(f"{self.name} gives no logits: no label maps; {_REMEDY}")
        return scores.unflatten(0, (size, -1))

    def _apply_layer(self, features: Tensor) -> Tensor:
        """The classifier of patches or of the class token on every place, (B, N, K)."""
        tokens, head = self.model.word_tokens(features), self.model.head
        if hasattr(head, "dense_fc"):
            return head.dense_logits(tokens)
        words = tokens[:, 1:]
        if head.cls_norm is not None:
            words = head.cls_norm(words.flatten(0, 1)).view_as(words)
        return head.cls_fc(words)


def token_grid(count: int, image_size: tuple[int, int], name: str = "the model") -> tuple[int, int]:
    """Rows and columns of a sequence of tokens: of all grids the one that is most like the image.

    Args:
        count: Tokens without prefix tokens.
        image_size: Height and width of the image.
        name: The model, for the message.

    Raises:
        UsageError: if no grid of so many is like the image.
    """
    aspect = image_size[0] / image_size[1]
    grids = [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]
    odds = {grid: abs(math.log(grid[0] / grid[1] / aspect)) for grid in grids}
    best = min(odds, key=odds.__getitem__, default=(0, 0))
    if not grids or odds[best] > math.log(1.5):
        raise UsageError(
            f"{name} gives {count} tokens, which do not form a grid of an image of {image_size[0]}x{image_size[1]}: "
            f"no label maps; {_REMEDY}"
        )
    return best


def _head_takes_a_place(model: HeadMixin) -> bool:
    """Whether a head's own pooling of a single place is that place.

    Raises:
        UsageError: if it is not, and the head has no other classifier of tokens.
    """
    head = model.head
    if hasattr(head, "dense_fc"):
        return False
    if head.config.fusion == "cls" or head.config.pooling == "gap":
        return True
    if hasattr(head, "cls_fc"):
        return False
    raise UsageError(
        f"{type(model).__name__} has no classifier of single places: its head's fusion is {head.config.fusion} and its "
        f"pooling {head.config.pooling}; {_REMEDY}"
    )
