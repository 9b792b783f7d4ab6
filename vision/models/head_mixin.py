"""The methods that give a timm model the second-order head, the same for every kind of backbone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from sot_core import ClassificationHead, HeadConfig
from sot_core.options import HEAD_OPTIONS, head_settings

__all__ = [
    "DENSE_OPTIONS",
    "HeadMixin",
    "count_prefix_tokens",
    "has_cls_token",
    "no_dense_error",
    "resolve_head_config",
    "split_head_options",
]

DENSE_OPTIONS = ("return_dense", "mix_token", "mix_alpha")  # of models with `vision.models.dense_mixin.DenseMixin`


class HeadMixin:
    """Classify from ``forward_features`` with a `ClassificationHead` named ``head``; goes before timm's model class.

    The state dict is the backbone's plus ``head.*``. timm's interface stays: ``forward_head(pre_logits=True)`` gives
    the features before the classifiers, ``reset_classifier`` renews the classifiers and keeps the pooling,
    ``reset_classifier(0)`` returns those features, ``reset_classifier(0, "")`` the tokens themselves.

    Attributes:
        head: The head; ``head.config`` describes it in plain values.
        token_layout: How ``forward_features`` gives its output: ``NLC``, ``NHWC`` or ``NCHW``.
        head_class: Class of the head.
        published_family: Whose published names checkpoints may have, see `vision.models.weights.published_names`.
        returns_tokens: Whether ``reset_classifier(0, "")`` has taken the head out of the forward pass.
        num_classes: Classes K.
        head_hidden_size: Width of the features before the classifiers.
    """

    head: ClassificationHead
    head_class: type[ClassificationHead] = ClassificationHead
    published_family: str = "sot"
    token_layout: str = "NLC"
    returns_tokens: bool = False
    num_classes: int
    head_hidden_size: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        dense = {name: kwargs.pop(name) for name in DENSE_OPTIONS if name in kwargs}
        if dense.get("return_dense") or dense.get("mix_token"):
            raise no_dense_error(type(self))
        super().__init__(*args, **kwargs)

    def set_head(self, head: ClassificationHead) -> None:
        """Put a head in place of the present one, on the same device, with the same dtype and mode."""
        reference = next(self.parameters())
        self.head = head.to(device=reference.device, dtype=reference.dtype).train(self.training)
        self.num_classes = head.config.num_classes
        self.head_hidden_size = head.num_features

    def finish_init(self, head: ClassificationHead, weight_init: str) -> None:
        """Put the head in place and initialise all weights, at the end of a model's constructor."""
        self.set_head(head)
        self.weight_init_mode = "reset" if weight_init == "skip" else weight_init
        if weight_init != "skip":
            self.init_weights(needs_reset=False)

    def init_weights(self, *args: Any, **kwargs: Any) -> None:
        """Initialise the backbone as timm does, the head's linear layers with a deviation of 0.02 in every mode.

        timm's ``jax`` modes set the layers of a head to 0, where the covariance has no gradient.
        """
        head, self.head = self.head, nn.Identity()
        super().init_weights(*args, **kwargs)
        self.head = head
        for layer in head.modules():
            if isinstance(layer, nn.Linear):
                trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def word_tokens(self, x: Tensor) -> Tensor:
        """The tokens that the head reads, from the output of ``forward_features``.

        A norm that the backbone applies after its own pooling (``fc_norm``) is applied to each token.

        Shape:
            (B, P + N, D), (B, H, W, D) or (B, D, H, W) -> (B, 1 + N, D), class token first, or (B, N, D) without one.
            Of the P prefix tokens only the class token stays.
        """
        if self.token_layout == "NHWC":
            x = x.flatten(1, 2)
        elif self.token_layout == "NCHW":
            x = x.flatten(2).transpose(1, 2)
        else:
            num_prefix = count_prefix_tokens(self)
            if not self.head.config.has_cls_token:
                x = x[:, num_prefix:]
            elif num_prefix > 1:
                x = torch.cat([x[:, :1], x[:, num_prefix:]], dim=1)
        fc_norm = getattr(self, "fc_norm", None)
        return x if fc_norm is None else fc_norm(x)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, ...]:
        return self.forward_head(self.forward_features(x, *args, **kwargs))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor | tuple[Tensor, ...]:
        """Logits, or with ``pre_logits`` the features before the classifiers."""
        if self.returns_tokens:
            return x
        tokens = self.word_tokens(x)
        if pre_logits:
            return self.head.features(tokens)
        return self.head(tokens)

    def get_classifier(self) -> nn.Module | tuple[nn.Module, ...]:
        """The linear classifier, or where class token and words have one each, both."""
        layers = tuple(module for name, module in self.head.named_children() if name.endswith("_fc"))
        return layers if len(layers) > 1 else layers[0] if layers else nn.Identity()

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """New classifiers for ``num_classes``; the pooling and its weights stay.

        Args:
            num_classes: Classes K; 0 returns the features before the classifiers.
            global_pool: ``""`` with 0 classes returns the tokens; any other value leaves the pooling to the head.
        """
        head = self.head_class(self.head.config.replace(num_classes=num_classes))
        if head.fusion.uses_words:
            head.pool = self.head.pool
        self.set_head(head)
        self.returns_tokens = num_classes == 0 and global_pool == ""

    def no_weight_decay(self) -> set[str]:
        """Parameters without weight decay: the backbone's, and svPN's start vector."""
        start = {f"head.{name}" for name, _ in self.head.named_parameters() if name.endswith("start_vector")}
        return set(super().no_weight_decay()) | start if hasattr(super(), "no_weight_decay") else start


def no_dense_error(model_class: type[nn.Module]) -> ValueError:
    """The error for asking a model without a token for every patch for logits of patches."""
    return ValueError(
        f"{model_class.__name__} has no token for every patch to the end: return_dense and mix_token are for timm's "
        "VisionTransformer (vit_*, deit_*) and for sot_*, so_vit_*, deit_*_sot and lvvit_*"
    )


def count_prefix_tokens(model: nn.Module) -> int:
    """Tokens before the words in a token model's features: class token, distillation token, registers."""
    count = getattr(model, "num_prefix_tokens", None)
    if count is None:
        return model.cls_token.shape[-2] if has_cls_token(model) else 0
    return count


def has_cls_token(model: nn.Module) -> bool:
    """Whether the first of a token model's features is a class token."""
    return getattr(model, "cls_token", None) is not None


def resolve_head_config(
    values: Mapping[str, Any],
    embed_dim: int,
    num_classes: int,
    with_cls: bool,
    settings: Mapping[str, Any] | None = None,
) -> HeadConfig:
    """Read a head's fields, or a published dictionary, and make them fit the backbone.

    Without a class token the fusion becomes ``words``, and ``cls`` the average of the words.

    Args:
        values: Fields of `HeadConfig` or a published dictionary.
        embed_dim: The backbone's token width.
        num_classes: Classes, where ``values`` names none.
        with_cls: Whether the backbone has a class token.
        settings: Fields of `HeadConfig` that override ``values``.

    Raises:
        ValueError: as `HeadConfig.from_dict`, or if ``values`` has another token width.
    """
    as_written = {} if with_cls else {"has_cls_token": True}  # read it so first, then make it fit
    config = HeadConfig.from_dict({**values, **as_written}, embed_dim=embed_dim, num_classes=num_classes)
    if settings:
        config = HeadConfig.from_dict({**config.to_dict(), **settings, **as_written})
    if config.embed_dim != embed_dim:
        raise ValueError(f"embed_dim {config.embed_dim} does not fit: the backbone's tokens are {embed_dim} wide")
    if with_cls:
        return config
    pooling = "gap" if config.fusion == "cls" else config.pooling
    return config.replace(fusion="words", pooling=pooling, has_cls_token=False)


def split_head_options(kwargs: Mapping[str, Any], **defaults: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the head's options out of a model's keyword arguments.

    Args:
        kwargs: What the model was asked for: the options of `sot_core.options` by their names (``head_pooling``,
            ``mgcrp_heads``, ...), ``head_config`` (a `HeadConfig` or a dictionary of its fields), ``drop_rate`` (the
            head's dropout, as timm's models have it) and the backbone's own arguments.
        **defaults: Fields of `HeadConfig` for what is not asked for.

    Returns:
        The fields of the head, and the arguments that are left for the backbone.
    """
    given = {key: value for key, value in kwargs.items() if value is not None}
    names = {option.name for option in HEAD_OPTIONS}
    config = given.pop("head_config", {})
    config = config.to_dict() if isinstance(config, HeadConfig) else config
    drop = {"drop_rate": given.pop("drop_rate")} if "drop_rate" in given else {}
    options = {key: given.pop(key) for key in names & given.keys()}
    return {**defaults, **drop, **config, **head_settings(options)}, given
