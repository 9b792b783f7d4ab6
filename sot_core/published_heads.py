"""The heads of the published README files: ``Classifier`` and ``OnlyVisualTokensClassifier``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sot_core.config import HeadConfig
from sot_core.head import ClassificationHead

__all__ = ["Classifier", "OnlyVisualTokensClassifier"]


class Classifier(ClassificationHead):
    """A head from a published dictionary, see :meth:`~sot_core.config.HeadConfig.from_dict`.

    Args:
        cfg: The dictionary; it is not changed.
        num_classes: Classes K.

    Shape:
        tokens (B, 1 + N, D), class token first -> (B, K).
    """

    def __init__(self, cfg: Mapping[str, Any], num_classes: int = 1000) -> None:
        super().__init__(HeadConfig.from_dict(cfg, num_classes=num_classes))


class OnlyVisualTokensClassifier(ClassificationHead):
    """A head on word tokens alone from a published dictionary, whose ``fusion_type`` is ignored.

    Args:
        cfg: The dictionary; it is not changed.
        num_classes: Classes K.

    Shape:
        tokens (B, N, D), no class token -> (B, K).
    """

    def __init__(self, cfg: Mapping[str, Any], num_classes: int = 1000) -> None:
        words = {**cfg, "fusion_type": "words", "has_cls_token": False}
        super().__init__(HeadConfig.from_dict(words, num_classes=num_classes))
