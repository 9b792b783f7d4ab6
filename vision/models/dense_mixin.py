"""Training a vision transformer with a label for every patch: patch logits and MixToken.

Reference: arXiv:2104.10858.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from timm.layers import to_2tuple
from timm.models import checkpoint_seq
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from sot_core import ClassificationHead
from vision.models.dense_head import DenseHead
from vision.models.head_mixin import HeadMixin, no_dense_error
from vision.models.mix_token import Box, draw_box, swap_box

__all__ = ["DenseMixin", "DenseOutput", "choose_head_class", "resolve_dense", "supports_dense"]


class DenseOutput(NamedTuple):
    """The output of a model with ``return_dense`` in training.

    Attributes:
        logits: Class logits (B, K), of the mixed image; several for ``sum_loss``.
        dense: Logits of every patch (B, N, K), each with its own image.
        box: Where patches came from the reversed batch: top, left, bottom, right; empty without mixing.
    """

    logits: Tensor | tuple[Tensor, ...]
    dense: Tensor
    box: Box


class DenseMixin(HeadMixin):
    """`HeadMixin` for timm's `VisionTransformer` that can return the logits of every patch; goes before that class.

    A model with ``return_dense`` has a `DenseHead`. In training it returns a `DenseOutput`; in evaluation its logits
    are the head's plus half the largest that ``head.dense_fc`` gives any patch, class by class. Without
    ``return_dense`` it behaves as with `HeadMixin`.

    Attributes:
        return_dense: Whether training returns a `DenseOutput`.
        mix_token: Whether training mixes a box of patches with those of the reversed batch (MixToken).
        mix_alpha: Parameter of the Beta distribution of the box's area (> 0).
    """

    return_dense: bool = False
    mix_token: bool = False
    mix_alpha: float = 1.0

    def set_dense(self, return_dense: bool = False, mix_token: bool = False, mix_alpha: float = 1.0) -> None:
        """Choose what training returns and which class a head has that is made afterwards.

        Raises:
            ValueError: as `resolve_dense`.
        """
        options = resolve_dense(self, return_dense, mix_token, mix_alpha)
        self.return_dense, self.mix_token, self.mix_alpha = options.values()
        self.head_class = choose_head_class(type(self), return_dense)

    def dense_grid(self, img_size: int | tuple[int, int] | None = None) -> tuple[int, int]:
        """Height and width in patches, as labels of patches must have it.

        Args:
            img_size: Image height and width in pixels; None: what the model is built for.
        """
        if img_size is None:
            height, width = self.patch_embed.grid_size
        else:
            height, width = self.patch_embed.dynamic_feat_size(to_2tuple(img_size))
        return height, width

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, ...] | DenseOutput:
        """Logits; with ``return_dense`` a `DenseOutput` while the head is in training, also on a frozen backbone."""
        if self.head.training and self.return_dense and self.num_classes > 0:
            return self.forward_dense(x, None, *args, **kwargs)
        return super().forward(x, *args, **kwargs)

    def forward_dense(
        self, x: Tensor, box: Box | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> DenseOutput:
        """Class logits, the logits of every patch, and the box that was mixed.

        Args:
            x: Images (B, in_chans, H, W).
            box: Patches to mix: top, left, bottom, right; None: with ``mix_token`` in training a random one, else none.
            attn_mask: As in timm's `VisionTransformer`.
            is_causal: As in timm's `VisionTransformer`.

        Raises:
            ValueError: if the head has no classifier of patches.
        """
        if not isinstance(self.head, DenseHead) or self.num_classes == 0:
            raise ValueError("the head classifies no patches: build the model with return_dense=True and with classes")
        grid = self.dense_grid(tuple(x.shape[-2:]))
        if box is None:
            box = draw_box(grid, self.mix_alpha) if self.mix_token and self.head.training else (0, 0, 0, 0)
        x = self.norm_pre(self._pos_embed(swap_box(self.patch_embed(x), grid, box)))
        if attn_mask is not None or is_causal:
            for block in self.blocks:
                x = block(x, attn_mask=attn_mask, is_causal=is_causal)
        else:
            x = checkpoint_seq(self.blocks, x) if self.grad_checkpointing else self.blocks(x)
        tokens = self.word_tokens(self.norm(x))
        dense = swap_box(self.head.dense_logits(tokens), grid, box)
        return DenseOutput(self.head.class_logits(tokens), dense, box)


def supports_dense(model_class: type[nn.Module]) -> bool:
    """Whether `DenseMixin` fits a model's class: timm's `VisionTransformer`, which keeps a token for every patch."""
    if issubclass(model_class, HeadMixin):
        return issubclass(model_class, DenseMixin)
    same = getattr(model_class, "forward_features", None) is VisionTransformer.forward_features
    return issubclass(model_class, VisionTransformer) and same


def choose_head_class(model_class: type[nn.Module], return_dense: bool) -> type[ClassificationHead]:
    """The class of a model's head: its own, or with ``return_dense`` the one that classifies patches."""
    return DenseHead if return_dense else getattr(model_class, "head_class", ClassificationHead)


def resolve_dense(
    model: nn.Module, return_dense: bool | None, mix_token: bool | None, mix_alpha: float | None
) -> dict[str, Any]:
    """The options of `DenseMixin.set_dense`, what is None as the model has it.

    Raises:
        ValueError: for ``mix_token`` without ``return_dense``, which a loss needs to know the box, a ``mix_alpha`` that
            is not positive, and for ``return_dense`` with patch dropout or for a model without a token for every patch.
    """
    if return_dense is None:
        return_dense = getattr(model, "return_dense", False)
    if mix_token is None:
        mix_token = return_dense and getattr(model, "mix_token", False)
    if mix_alpha is None:
        mix_alpha = getattr(model, "mix_alpha", 1.0)
    if mix_token and not return_dense:
        raise ValueError("mix_token needs return_dense: without the box no loss knows what is in the image")
    if mix_alpha <= 0:
        raise ValueError(f"mix_alpha must be positive, got {mix_alpha}")
    if return_dense and not supports_dense(type(model)):
        raise no_dense_error(type(model))
    if return_dense and not isinstance(model.patch_drop, nn.Identity):
        raise ValueError("return_dense needs every patch: patch_drop_rate must be 0")
    return {"return_dense": return_dense, "mix_token": mix_token, "mix_alpha": mix_alpha}
