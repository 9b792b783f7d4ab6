"""The classification head: pool the tokens, normalise, classify, sum."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sot_core.build import ACTIVATIONS, FUSIONS, create_pooling
from sot_core.config import HeadConfig
from sot_core.contributions import split_into_tokens
from sot_core.math.precision import at_least_float32, no_autocast
from sot_core.norms.features import apply_batch_norm, create_feature_norm

__all__ = ["ClassificationHead", "Contributions"]


class Contributions(NamedTuple):
    """Exact split of the logits: ``cls + word``, each (B, K); a part that the fusion lacks is 0."""

    cls: Tensor
    word: Tensor


class ClassificationHead(nn.Module):
    """Classify from the class token and the word tokens.

    Args:
        config: What the head is made of.

    Attributes:
        config: What the head is made of.
        fusion: How the two vectors become logits, see `sot_core.fusion`.
        num_features: Width of the vector before the classifiers.

    Shape:
        tokens (B, 1 + N, D) with the class token at index 0, padding_mask (B, 1 + N) bool, True = ignore -> (B, K);
        with ``has_cls_token=False`` tokens (B, N, D) and mask (B, N), with ``two_layers`` tokens of width 2 D.
        ``fusion="sum_loss"`` in training returns the pair (class token logits, word logits). With ``num_classes=0`` the
        features, see :meth:`features`. B batch, N word tokens, D token width, K classes.

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
        self.fusion = FUSIONS[config.fusion]("cls_fc" if config.cls_pooler_dim is None else "out_proj")
        cls_dim, word_dim = config.embed_dim, 0
        if self._reads_cls and config.cls_pooler_dim is not None:
            cls_dim = config.cls_pooler_dim
            self.dense = nn.Linear(config.embed_dim, cls_dim)
            self.cls_activation = ACTIVATIONS[config.cls_pooler_activation]()
            self.cls_drop = nn.Dropout(config.cls_pooler_drop_rate)
        if self.fusion.uses_words:
            self.pool = create_pooling(config)
            self.drop = nn.Dropout(config.drop_rate)
            word_dim = self.pool.out_dim
        self.cls_norm = create_feature_norm(config.feature_norm, cls_dim) if self._reads_cls else None
        self.word_norm = create_feature_norm(config.feature_norm, word_dim) if self.fusion.uses_words else None
        cls, words = torch.empty(0, cls_dim), torch.empty(0, word_dim)
        self.num_features = self.fusion.features(cls, words).shape[-1]
        if config.num_classes > 0:
            for name, vector in self.fusion.inputs(cls, words).items():
                self.add_module(name, nn.Linear(vector.shape[-1], config.num_classes))

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        cls, words = self._represent(tokens, padding_mask)
        if self.config.num_classes == 0:
            return self.fusion.features(cls, words)
        logits = {name: self.get_submodule(name)(vector) for name, vector in self.fusion.inputs(cls, words).items()}
        return self.fusion.combine(logits, self.training)

    def features(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """The vector before the classifiers, which a head without classes returns.

        Shape:
            As :meth:`forward` -> (B, num_features): the pooled words, [cls, words] for ``concat``, or the class token's
            vector for ``cls``.
        """
        return self.fusion.features(*self._represent(tokens, padding_mask))

    def contributions(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Contributions:
        """Split the logits into the contributions of the class token and of the words.

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
        classifiers = dict(self.named_children())
        return Contributions(*self.fusion.contributions(classifiers, *self._represent(tokens, padding_mask)))

    @torch.no_grad()
    def token_contributions(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Split the logits exactly into the contributions of the tokens; see `sot_core.contributions`.

        Index 0 has what does not come from a word: the class token's logits, the biases and other constants. For
        ``aggre_all`` it also has the class token's part of the pooled vector. Their sum is the logits to rounding: of
        float32, also under autocast, where the logits themselves are rounded to half precision.

        Shape:
            As :meth:`forward` -> (B, K, 1 + N), 0 at padding, with and without a class token; at least float32. There
            is no gradient.

        Raises:
            ValueError: in training mode, for a head without classes, and for a pooling or normalisation without an
                exact split: ``epn``, ``layer_norm``, svPN with ``residual_eps`` and ``attention_mlp``.
        """
        config, classifiers = self.config, dict(self.named_children())
        if self.training or config.num_classes == 0:
            state = "in training mode, where dropout is on" if self.training else "without classes"
            raise ValueError(f"a head {state} has no contributions of tokens; call eval() on a classifier")
        with no_autocast(tokens):
            tokens = tokens.to(torch.promote_types(tokens.dtype, next(self.parameters()).dtype))
            cls, words = self._represent(tokens, padding_mask)
            first = torch.add(*self.fusion.contributions(classifiers, cls, torch.zeros_like(words)))
            first = first.to(at_least_float32(first.dtype))
            if not self.fusion.uses_words:
                parts = first.new_zeros(*first.shape, tokens.shape[1] - 1)
                return torch.cat((first.unsqueeze(-1), parts), dim=-1)
            num_prefix = int(config.has_cls_token and not self.fusion.pools_cls)
            mask = None if padding_mask is None else padding_mask[:, num_prefix:]
            weight = self.fusion.word_weight(classifiers, words.shape[-1])
            parts, constant = split_into_tokens(self.pool, tokens[:, num_prefix:], mask, weight, self.word_norm)
            first = first + constant
            if self.fusion.pools_cls:
                first, parts = first + parts[..., 0], parts[..., 1:]
            return torch.cat((first.unsqueeze(-1), parts), dim=-1)

    @property
    def _reads_cls(self) -> bool:
        """Whether the class token's own vector is needed; every parameter of a head gets a gradient."""
        return self.fusion.features_use_cls or (self.fusion.uses_cls and self.config.num_classes > 0)

    def _represent(self, tokens: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The class token's vector and the pooled words, of width 0 where they are not used."""
        self._check(tokens, padding_mask)
        cls = words = tokens.new_empty(tokens.shape[0], 0)
        if self._reads_cls and self.fusion.uses_words:
            cls, words = self.pool.split(tokens, padding_mask)
        elif self._reads_cls:
            cls = tokens[:, 0]
        elif self.config.has_cls_token and not self.fusion.pools_cls:
            words = self.pool(tokens[:, 1:], None if padding_mask is None else padding_mask[:, 1:])
        else:
            words = self.pool(tokens, padding_mask)
        if self._reads_cls and self.config.two_layers:
            cls = cls[:, self.config.embed_dim :]
        has_pooler = self._reads_cls and self.config.cls_pooler_dim is not None
        if has_pooler:
            cls = self.cls_activation(self.dense(self.cls_drop(cls)))
        if self.cls_norm is not None:
            cls = apply_batch_norm(self.cls_norm, cls)
        if self.word_norm is not None:
            words = apply_batch_norm(self.word_norm, words)
        return self.cls_drop(cls) if has_pooler else cls, self.drop(words) if self.fusion.uses_words else words

    def _check(self, tokens: Tensor, padding_mask: Tensor | None) -> None:
        if tokens.dim() != 3 or tokens.shape[-1] != self.config.token_dim:
            raise ValueError(f"tokens must be (B, N, {self.config.token_dim}), got {tuple(tokens.shape)}")
        if padding_mask is not None and padding_mask.shape != tokens.shape[:2]:
            raise ValueError(
                f"padding_mask must be (B, N) = {tuple(tokens.shape[:2])}, got {tuple(padding_mask.shape)}"
            )
