"""The heads of the published README files: ``Classifier`` and ``OnlyVisualTokensClassifier``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sot_core.config import HeadConfig
from sot_core.head import ClassificationHead

__all__ = ["Classifier", "OnlyVisualTokensClassifier"]


def _read_call(
    cfg: Mapping[str, Any] | int | None,
    num_classes: int | None,
    representation: Mapping[str, Any] | None,
    input_dim: int | None,
) -> tuple[Mapping[str, Any], dict[str, int]]:
    """The dictionary of a call in either form, and the fields of `HeadConfig` that the call gives beside it.

    Raises:
        ValueError: for a call without a dictionary, with two, or with two token widths.
    """
    if isinstance(cfg, int):  # the published order: num_classes, input_dim, representationConfig
        if num_classes is not None and input_dim is None:
            cfg, num_classes, input_dim = None, cfg, num_classes
        else:
            cfg, num_classes = None, cfg
    values = representation if cfg is None else cfg
    if values is None or (cfg is not None and representation is not None):
        raise ValueError("a head needs one dictionary: Classifier(cfg) or Classifier(num_classes, input_dim, cfg)")
    sizes = {"num_classes": 1000 if num_classes is None else num_classes}
    if input_dim is None:
        return values, sizes
    config = HeadConfig.from_dict(values, embed_dim=input_dim, **sizes)
    if config.embed_dim != input_dim:
        raise ValueError(f"input_dim {input_dim} is not the dictionary's dim, {config.embed_dim}; give one of them")
    return values, {**sizes, "embed_dim": input_dim}


class Classifier(ClassificationHead):
    """A head from a published dictionary, see :meth:`~sot_core.config.HeadConfig.from_dict`.

    ``Classifier(cfg, num_classes)``, or as the published code calls it: ``Classifier(num_classes, input_dim, cfg)``.

    Args:
        cfg: The dictionary, which is not changed; or the number of classes K, if the others follow.
        num_classes: Classes K (1000); or the token width D in the published order.
        representationConfig: The dictionary, in the published order.
        input_dim: Token width D, unless the dictionary has it as ``dim``.

    Shape:
        tokens (B, 1 + N, D), class token first -> (B, K).

    Raises:
        ValueError: as `HeadConfig.from_dict`; for no dictionary, two, or two token widths.
    """

    def __init__(
        self,
        cfg: Mapping[str, Any] | int | None = None,
        num_classes: int | None = None,
        representationConfig: Mapping[str, Any] | None = None,
        *,
        input_dim: int | None = None,
    ) -> None:
        values, sizes = _read_call(cfg, num_classes, representationConfig, input_dim)
        super().__init__(HeadConfig.from_dict(values, **sizes))


class OnlyVisualTokensClassifier(ClassificationHead):
    """A head on word tokens alone from a published dictionary, whose ``fusion_type`` plays no part.

    Args:
        cfg, num_classes, representationConfig, input_dim: As `Classifier`.

    Shape:
        tokens (B, N, D), no class token -> (B, K).

    Raises:
        ValueError: as `Classifier`.
    """

    def __init__(
        self,
        cfg: Mapping[str, Any] | int | None = None,
        num_classes: int | None = None,
        representationConfig: Mapping[str, Any] | None = None,
        *,
        input_dim: int | None = None,
    ) -> None:
        values, sizes = _read_call(cfg, num_classes, representationConfig, input_dim)
        words = {**values, "fusion_type": "words", "has_cls_token": False}
        super().__init__(HeadConfig.from_dict(words, **sizes))
