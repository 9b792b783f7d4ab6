"""The loss of token labeling: each patch has a label of its own, beside the label of the image.

Reference: arXiv:2104.10858.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vision.models.dense_mixin import DenseOutput
from vision.token_label.targets import TokenLabelTarget

__all__ = ["TokenLabelLoss", "soft_cross_entropy"]

AGREED, DISAGREED = 0.5, 0.9  # share of the label map in the image's label, as published


def soft_cross_entropy(logits: Tensor, target: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Mean cross entropy of soft targets.

    Args:
        logits: (..., K).
        target: Probabilities, of the same shape.
        class_weights: (K,) what each class counts; None: the same.
    """
    if class_weights is not None:
        target = target * class_weights
    return -(target * logits.log_softmax(dim=-1)).sum(dim=-1).mean()


class TokenLabelLoss(nn.Module):
    """``cls_weight`` times the loss of the image's label plus ``dense_weight`` times the mean loss of its patches'.

    The output is that of any model that gives a `DenseOutput`. Where MixToken has put a box of patches of another image
    into an image, the image's label is mixed by the box's area; the patches' logits are already with their own images.
    Class logits in several parts (``sum_loss``) count one loss each, and logits alone learn the image's label.

    Args:
        dense_weight: Weight of the patches' loss (>= 0); 0 leaves it out.
        cls_weight: Weight of the image's loss (>= 0); 0 leaves it out.
        ground_truth: Mix the data set's class into the image's label: half of it where both name the same class, else
            a tenth. As published; that the truth counts less where the label map contradicts it is no misprint here.
        class_weights: (K,) what each class counts, in images and patches; None: the same.

    Shape:
        A `DenseOutput` of (B, K) and (B, N, K), or logits (B, K), with a `TokenLabelTarget`, or with probabilities
        (B, K) or class indices (B,) that then hold for the image and all of its patches -> a scalar.

    Raises:
        ValueError: for a negative weight; in forward, for targets of other classes or another grid than the logits.
    """

    def __init__(
        self,
        dense_weight: float = 0.5,
        cls_weight: float = 1.0,
        ground_truth: bool = False,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        if dense_weight < 0 or cls_weight < 0:
            raise ValueError(f"weights of losses must not be negative, got {dense_weight} and {cls_weight}")
        self.dense_weight, self.cls_weight, self.ground_truth = dense_weight, cls_weight, ground_truth
        self.register_buffer("class_weights", class_weights, persistent=False)

    def forward(self, output: DenseOutput | Tensor | tuple[Tensor, ...], target: TokenLabelTarget | Tensor) -> Tensor:
        return self.weighted(self.parts(output, target))

    def parts(
        self, output: DenseOutput | Tensor | tuple[Tensor, ...], target: TokenLabelTarget | Tensor
    ) -> dict[str, Tensor]:
        """The losses of ``class`` and ``dense`` logits before they are weighted; what has weight 0 is left out."""
        dense = output.dense if isinstance(output, DenseOutput) else None
        logits = output.logits if isinstance(output, DenseOutput) else output
        parts = logits if isinstance(logits, tuple) else (logits,)
        if not isinstance(target, TokenLabelTarget):
            target = _of_whole_image(target, parts[0])
        _check(target, parts[0], dense)
        losses = {}
        if self.cls_weight:
            label = self._image_label(target)
            if isinstance(output, DenseOutput):
                label = _mix_by_area(label, output)
            losses["class"] = sum(soft_cross_entropy(part, label, self.class_weights) for part in parts)
        if self.dense_weight and dense is not None:
            losses["dense"] = soft_cross_entropy(dense, target.tokens, self.class_weights)
        return losses

    def weighted(self, losses: Mapping[str, Tensor]) -> Tensor:
        """The loss, from what `parts` gives; 0 of nothing."""
        weights = {"class": self.cls_weight, "dense": self.dense_weight}
        return sum((weights[name] * loss for name, loss in losses.items()), torch.zeros(()))

    def _image_label(self, target: TokenLabelTarget) -> Tensor:
        if not self.ground_truth:
            return target.label
        agrees = target.label.argmax(dim=-1, keepdim=True) == target.truth.argmax(dim=-1, keepdim=True)
        share = torch.full_like(target.label, DISAGREED).masked_fill_(agrees, AGREED)
        return share * target.label + (1.0 - share) * target.truth

    def extra_repr(self) -> str:
        return f"dense_weight={self.dense_weight}, cls_weight={self.cls_weight}, ground_truth={self.ground_truth}"


def _of_whole_image(target: Tensor, logits: Tensor) -> TokenLabelTarget:
    if target.ndim == 1:
        target = nn.functional.one_hot(target, logits.shape[-1]).to(logits.dtype)
    return TokenLabelTarget(target, target, target.unsqueeze(-2))


def _check(target: TokenLabelTarget, logits: Tensor, dense: Tensor | None) -> None:
    if target.label.shape != logits.shape:
        raise ValueError(f"labels of shape {tuple(target.label.shape)} for logits of shape {tuple(logits.shape)}")
    if dense is not None and target.tokens.shape[1] not in (1, dense.shape[1]):
        raise ValueError(f"labels of {target.tokens.shape[1]} patches for a model of {dense.shape[1]}")


def _mix_by_area(label: Tensor, output: DenseOutput) -> Tensor:
    """The label of images that have a box of the reversed batch's patches in them."""
    top, left, bottom, right = output.box
    area = (bottom - top) * (right - left) / output.dense.shape[1]
    return (1.0 - area) * label + area * label.flip(0)
