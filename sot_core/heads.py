"""The classification head: a linear layer on the class token and second-order pooling of the word tokens, fused."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from sot_core.config import HeadConfig
from sot_core.factory import ACTIVATIONS, FUSIONS, create_pooling

__all__ = ["ClassificationHead", "Contributions"]


class Contributions(NamedTuple):
    """Exact split of the logits: ``cls + word``, each (B, K); a part that the fusion lacks is 0."""

    cls: Tensor
    word: Tensor


class ClassificationHead(nn.Module):
    """Classify from the class token and the word tokens.

    Args:
        config: What the head is made of.

    Shape:
        tokens (B, 1 + N, D) with the class token at index 0, padding_mask (B, 1 + N) bool, True = ignore -> (B, K);
        with ``has_cls_token=False`` tokens (B, N, D) and mask (B, N). ``fusion="sum_loss"`` in training returns the
        pair (class token logits, word logits). With ``num_classes=0`` the pooled features: the words (B, P), or
        [cls, words] for ``concat``, or the class token for ``cls``. B batch, N word tokens, D token width, K classes.

    Raises:
        ValueError: if tokens or mask have another shape.

    Reference:
        arXiv:2104.10935, section 3.1.

    Example:
        >>> head = ClassificationHead(HeadConfig(embed_dim=64, num_classes=3))
        >>> head(torch.randn(2, 10, 64)).shape
        torch.Size([2, 3])
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.fusion = FUSIONS[config.fusion]
        self.cls_layer = "cls_fc" if config.cls_pooler_dim is None else "out_proj"
        cls_dim, word_dim = config.embed_dim, 0
        self.needs_cls = self.fusion.uses_cls and (config.num_classes > 0 or config.fusion in ("cls", "concat"))
        self.has_cls_pooler = self.needs_cls and config.cls_pooler_dim is not None
        if config.cls_pooler_dim is not None and self.needs_cls:
            cls_dim = config.cls_pooler_dim
            self.dense = nn.Linear(config.embed_dim, cls_dim)
            self.cls_activation = ACTIVATIONS[config.cls_pooler_activation]()
            self.cls_drop = nn.Dropout(config.cls_pooler_drop_rate)
        if self.fusion.uses_words:
            self.pool = create_pooling(config)
            self.drop = nn.Dropout(config.drop_rate)
            word_dim = self.pool.out_dim
        if config.num_classes > 0:
            for name, size in self.fusion.layer_sizes(self.cls_layer, cls_dim, word_dim).items():
                setattr(self, name, nn.Linear(size, config.num_classes))
        self.num_features = {"concat": cls_dim + word_dim, "cls": cls_dim}.get(config.fusion, word_dim)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        cls, words = self._represent(tokens, padding_mask)
        if self.config.num_classes == 0:
            return self.fusion.features(cls, words)
        return self.fusion.logits(self, cls, words)

    def contributions(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Contributions:
        """Split the logits into what the class token and what the words say; their sum is the logit.

        Shape:
            As :meth:`forward` -> two tensors (B, K).

        Raises:
            ValueError: for ``aggre_all``, whose logits do not split, and for a head without classes.
        """
        if self.config.num_classes == 0 or self.fusion.pools_cls:
            raise ValueError(
                f"the logits of fusion={self.config.fusion!r} with {self.config.num_classes} classes do not split "
                "into a class token and a word part"
            )
        return Contributions(*self.fusion.parts(self, *self._represent(tokens, padding_mask)))

    def classify(self, layer: str, features: Tensor) -> Tensor:
        """Apply one of the head's linear classifiers by its name."""
        logits: Tensor = self.get_submodule(layer)(features)
        return logits

    def _represent(self, tokens: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The class token's vector and the pooled words, of width 0 where the fusion does not use them."""
        if tokens.dim() != 3 or tokens.shape[-1] != self.config.embed_dim:
            raise ValueError(f"tokens must be (B, N, {self.config.embed_dim}), got {tuple(tokens.shape)}")
        if padding_mask is not None and padding_mask.shape != tokens.shape[:2]:
            raise ValueError(
                f"padding_mask must be (B, N) = {tuple(tokens.shape[:2])}, got {tuple(padding_mask.shape)}"
            )
        cls = words = tokens.new_empty(tokens.shape[0], 0)
        if self.needs_cls and self.fusion.uses_words:
            cls, words = self.pool.split(tokens, padding_mask)
        elif self.needs_cls:
            cls = tokens[:, 0]
        elif self.config.has_cls_token and not self.fusion.pools_cls:
            words = self.pool(tokens[:, 1:], None if padding_mask is None else padding_mask[:, 1:])
        else:
            words = self.pool(tokens, padding_mask)
        if self.has_cls_pooler:
            cls = self.cls_drop(self.cls_activation(self.dense(self.cls_drop(cls))))
        return cls, self.drop(words) if self.fusion.uses_words else words
