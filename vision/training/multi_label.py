"""Multi-label classification: each image has any number of classes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
from timm.loss import create_classification_loss
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from vision.data import ImageSet
from vision.data.multi_label import MultiLabelSet, MultiLabelSource, open_multi_label
from vision.evaluation.multi_label import MultiLabelEvaluator
from vision.training.class_weights import weigh_classes
from vision.training.classification import ClassificationSession

__all__ = ["MultiLabelSession"]


class MultiLabelSession(ClassificationSession):
    """A run of ``vision/train.py --multi-label``: a sigmoid and binary cross-entropy for each class."""

    metric, title = "map", "mAP"
    min_classes = 1
    multi_label = True
    plain_loss = staticmethod(binary_cross_entropy_with_logits)

    def open_split(self, args: Namespace, split: str) -> MultiLabelSource:
        return open_multi_label(args.data_dir, split, args.label_column, args.max_pixels)

    def create_train_set(self, source: MultiLabelSource, args: Namespace) -> ImageSet:
        return MultiLabelSet(source, num_classes=max(len(source.class_names), args.num_classes or 0))

    def create_val_set(self, source: MultiLabelSource, class_index: np.ndarray) -> ImageSet:
        return MultiLabelSet(source, class_index, len(self.class_names))

    def plain_train_set(self) -> ImageSet:
        return self.train_set

    def describe(self) -> dict[str, Any]:
        return {"multi_label": True, **super().describe()}

    def create_criterion(self) -> nn.Module:
        return create_classification_loss(
            multi_label=True,
            smoothing=self.args.smoothing,
            soft_targets=self.mixing,
            pos_weight=self.class_weights,
        ).to(self.device)

    def mixup_options(self) -> dict[str, Any]:
        return {**super().mixup_options(), "multi_label": True}

    def weigh_classes(self, option: str, source: MultiLabelSource) -> Tensor:
        counts, total = source.targets.sum(0).astype(int).tolist(), len(source.targets)
        return weigh_classes(option, source.class_names, counts, total, len(self.class_names), multi_label=True)

    def create_evaluator(self) -> MultiLabelEvaluator:
        return MultiLabelEvaluator(self.device)
