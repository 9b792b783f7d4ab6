"""What the models of this package share when timm builds them: default configuration, builder and registration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import PretrainedCfg, build_model_with_cfg, load_pretrained, register_model, resolve_pretrained_cfg

from vision.models.head_mixin import HeadMixin
from vision.models.weights.load import checkpoint_filter_fn, read_state_dict
from vision.models.weights.released import find_weights

__all__ = ["create_with_head", "model_cfg", "register_variant"]

Model = TypeVar("Model", bound=HeadMixin)
_FEATURES = {"out_indices": 3, "feature_cls": "getter"}


def model_cfg(**kwargs: Any) -> dict[str, Any]:
    """The default_cfg of a model of this package."""
    return {
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "patch_embed.proj.stem.0",
        "classifier": ("head.cls_fc", "head.word_fc"),
        **kwargs,
    }


def create_with_head(
    model_class: type[Model],
    variant: str,
    pretrained: bool,
    head: Mapping[str, Any],
    features: Mapping[str, Any] = _FEATURES,
    **kwargs: Any,
) -> Model:
    """Build a model through timm's builder.

    Args:
        model_class: Its class.
        variant: Its name.
        pretrained: Whether to load the released weights, or those that ``pretrained_cfg_overlay`` names. Classifiers
            of other classes and other heads are re-initialised.
        head: Fields of `HeadConfig`.
        features: timm's ``feature_cfg``, for ``features_only``.
        **kwargs: The arguments of the class and of timm's builder.

    Raises:
        UsageError: If there are no weights, or they cannot be downloaded or read.
    """
    build: Callable[..., Model] = model_class
    if pretrained:
        config = resolve_pretrained_cfg(variant, kwargs.get("pretrained_cfg"), kwargs.get("pretrained_cfg_overlay"))
        path = find_weights(variant, config, kwargs.get("cache_dir"))
        if path is not None:  # timm would download and read it itself
            build, pretrained = partial(_build_and_load, model_class, path, config), False
    features = {**features, "out_indices": kwargs.pop("out_indices", features["out_indices"])}
    return build_model_with_cfg(
        build,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg=features,
        head=head,
        **kwargs,
    )


def _build_and_load(model_class: type[Model], path: Path, config: PretrainedCfg, **kwargs: Any) -> Model:
    """Build a model and load a file of weights, with timm's changes for other classes and channels."""
    model = model_class(**kwargs)
    source = {**config.to_dict(), "state_dict": read_state_dict(path)}
    load_pretrained(model, source, model.num_classes, kwargs.get("in_chans", 3), checkpoint_filter_fn)
    return model


def register_variant(module: str, name: str, create: Callable[..., Model], title: str, **fixed: Any) -> None:
    """Register one of the variants of a family with timm, as a function of its module.

    Args:
        module: The module, which has the variant's ``default_cfgs``.
        name: Name of the variant.
        create: Builds it from ``pretrained`` and keyword arguments.
        title: Docstring of the function.
        **fixed: Keyword arguments of the variant, which the caller may override.
    """

    def create_variant(pretrained: bool = False, **kwargs: Any) -> Model:
        return create(pretrained, **{**fixed, **kwargs})

    create_variant.__name__ = create_variant.__qualname__ = name
    create_variant.__module__, create_variant.__doc__ = module, title
    setattr(sys.modules[module], name, register_model(create_variant))
