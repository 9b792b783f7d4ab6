"""Attach the second-order head to any timm classifier."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from torch import nn

from sot_core import HeadConfig
from vision.models.dense_mixin import DenseMixin, choose_head_class, resolve_dense, supports_dense
from vision.models.head_mixin import HeadMixin, count_prefix_tokens, has_cls_token, resolve_head_config
from vision.models.meta_device import feature_shape, parameters_without_gradient

__all__ = ["attach_head"]

_logger = logging.getLogger(__name__)
Model = TypeVar("Model", bound=nn.Module)


def attach_head(
    model: Model,
    config: HeadConfig | Mapping[str, Any] | None = None,
    *,
    return_dense: bool | None = None,
    mix_token: bool | None = None,
    mix_alpha: float | None = None,
    **settings: Any,
) -> Model:
    """Replace the classifier of a timm model by the second-order head; the model is modified in place and returned.

    It stays an instance of its class, and everything that timm does with it still works: the state dict is the
    backbone's plus ``head.*``; ``forward_features``, ``forward_intermediates`` and the grouping of parameters are the
    backbone's; ``forward_head``, ``get_classifier`` and ``reset_classifier`` act on the new head (see `HeadMixin`).
    Copying, pickling, EMA, ``torch.compile`` and distributed training work as for any module.

    The head reads the tokens of token models (of the prefix tokens only the class token) and each position of the
    maps of window models and convolutional networks. Without a class token it reads the words alone: the fusion
    becomes ``words``, and ``cls``, the baseline, becomes the average of the words, which is those models' own head.
    A norm that the old head applied after its pooling is kept as ``fc_norm`` and applied to each token. Other
    parameters that only the old head used are frozen, so that every trainable parameter gets a gradient.

    With ``return_dense`` a model of timm's `VisionTransformer` family can be trained with a label for every patch: its
    head is a `DenseHead` and training gives a `DenseOutput`, see `DenseMixin`.

    Args:
        model: A timm classifier; one that has the head already gets the new one.
        config: A `HeadConfig`, a dictionary of its fields or a published one; None: the defaults.
        return_dense: Return a `DenseOutput` in training. The default of this and the next two is what the model has;
            for a new model False, False and 1.
        mix_token: Mix a box of patches with those of the reversed batch in training (MixToken).
        mix_alpha: Parameter of the Beta distribution of the box's area (> 0).
        **settings: Fields of `HeadConfig` that override ``config``. Token width and number of classes default to the
            model's.

    Returns:
        ``model``.

    Raises:
        TypeError: if the model is not a timm classifier.
        ValueError: if its features are not one map or sequence of words, or ``embed_dim`` is not their width; as
            `vision.models.dense_mixin.resolve_dense`.

    Example:
        >>> model = attach_head(timm.create_model("resnet50", num_classes=10), num_heads=6, q_dim=24)
        >>> model(torch.randn(2, 3, 224, 224)).shape
        torch.Size([2, 10])
    """
    if not all(hasattr(model, name) for name in ("forward_features", "reset_classifier", "num_classes")):
        raise TypeError(
            f"{type(model).__name__} is not a timm classifier: "
            "it needs forward_features, reset_classifier and num_classes"
        )
    dense = resolve_dense(model, return_dense, mix_token, mix_alpha)
    layout, width = _read_layout(model)
    values = config.to_dict() if isinstance(config, HeadConfig) else config or {}
    with_cls = layout == "NLC" and has_cls_token(model)
    resolved = resolve_head_config(values, width, model.num_classes, with_cls, settings)
    head = choose_head_class(type(model), dense["return_dense"])(resolved)
    if not isinstance(model, HeadMixin):
        norm = _pooled_norm(model, width)
        model.reset_classifier(0)
        model.__class__ = class_with_head(type(model))
        if norm is not None:
            model.fc_norm = norm
    model.token_layout, model.returns_tokens = layout, False
    if isinstance(model, DenseMixin):
        model.set_dense(**dense)
    model.set_head(head)
    _logger.info(f"{type(model).__name__}: head with fusion {resolved.fusion!r} and pooling {resolved.pooling!r}")
    _freeze_unused(model)
    model.pretrained_cfg = model.default_cfg = {
        **getattr(model, "pretrained_cfg", {}),
        "classifier": tuple(f"head.{name}" for name, _ in head.named_children() if name.endswith("_fc")),
    }
    return model


def _read_layout(model: nn.Module) -> tuple[str, int]:
    """Layout and width of the output of ``forward_features``."""
    name, shape = type(model).__name__, feature_shape(model)
    if shape is None or len(shape) not in (3, 4):
        raise ValueError(f"{name} gives several feature maps, or none: the head needs one map or one token sequence")
    layout = "NLC" if len(shape) == 3 else getattr(model, "output_fmt", "NCHW")
    if layout == "NLC" and shape[1] <= count_prefix_tokens(model):
        raise ValueError(f"{name} gives its class token alone: there are no word tokens to pool")
    return layout, shape[1 if layout == "NCHW" else -1]


def _pooled_norm(model: nn.Module, width: int) -> nn.Module | None:
    """The old head's norm as one that acts on tokens, with the same parameters; None without one."""
    norm = getattr(getattr(model, "head", None), "norm", None)
    if isinstance(norm, nn.GroupNorm) and norm.num_groups == 1:  # on a pooled vector the same as LayerNorm
        shape = (norm.num_channels,)
    elif isinstance(norm, nn.LayerNorm):
        shape = norm.normalized_shape
    else:
        return None
    if tuple(shape) != (width,) or norm.weight is None:
        return None
    token_norm = nn.LayerNorm(width, eps=norm.eps, device="meta")
    token_norm.weight, token_norm.bias = norm.weight, norm.bias
    return token_norm


def _freeze_unused(model: nn.Module) -> None:
    unused = parameters_without_gradient(model)
    for name in unused:
        model.get_parameter(name).requires_grad_(False)
    if unused:
        _logger.info(f"{type(model).__name__}: frozen, for the new head does not use them: {', '.join(unused)}")


class _Attached(HeadMixin):
    """The base of the classes that `class_with_head` makes.

    They cannot be imported by name: an instance is pickled by the class it was made from.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank_model, (type(self).__bases__[1],), self.__dict__


class _AttachedDense(_Attached, DenseMixin):
    """`_Attached` for a class that can return the logits of every patch."""


@cache
def class_with_head(model_class: type[nn.Module]) -> type[nn.Module]:
    """The subclass of a timm model's class that has the head's methods.

    `attach_head` assigns it to ``model.__class__`` instead of wrapping the model: a wrapper would rename every
    parameter (checkpoints, layer decay and ``no_weight_decay`` go by names) and would hide the attributes and methods
    that timm looks for, and a copy would break references to the model, such as an optimizer's.
    """
    attached = _AttachedDense if supports_dense(model_class) else _Attached
    return type(model_class.__name__, (attached, model_class), {"__module__": model_class.__module__})


def _blank_model(model_class: type[nn.Module]) -> nn.Module:
    attached = class_with_head(model_class)
    return attached.__new__(attached)
