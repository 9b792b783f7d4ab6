"""The criterion ``sentence_prediction_mgcrp``: every GLUE metric over the whole dev set, and the sum of two losses."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from sot_fairseq.tasks.task_config import option
from sot_text.metrics import compute_metrics, constant_values

__all__ = ["SentencePredictionMGCrPConfig", "SentencePredictionMGCrPCriterion"]

logger = logging.getLogger(__name__)

CLASSIFICATION = ("accuracy", "f1", "mcc", "acc_and_f1")
REGRESSION = ("pearson", "spearman", "pearson_and_spearman")


@dataclass
class SentencePredictionMGCrPConfig(FairseqDataclass):
    """Options of the criterion, named as those of fairseq's ``sentence_prediction``."""

    classification_head_name: str = option("sentence_classification_head", "name of the classification head to use")
    regression_target: bool = option(False, "the target is a number; the loss is the squared error")


@register_criterion("sentence_prediction_mgcrp", dataclass=SentencePredictionMGCrPConfig)
class SentencePredictionMGCrPCriterion(FairseqCriterion):
    """Cross-entropy, or the squared error for regression; for ``sum_loss`` the sum over both classifiers.

    In validation the predictions of all batches and processes are gathered and the metrics computed once over all of
    them, in percent and not rounded: accuracy, F1, MCC and the mean of accuracy and F1, or Pearson's and Spearman's
    correlation and their mean.
    """

    adds_losses = True

    def __init__(self, cfg: SentencePredictionMGCrPConfig, task: Any) -> None:
        super().__init__(task)
        self.head_name = cfg.classification_head_name
        self.regression_target = cfg.regression_target
        self.metric_names = REGRESSION if cfg.regression_target else CLASSIFICATION

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss of a batch, its number of sentences, and what to log."""
        output, _ = model(**sample["net_input"], features_only=True, classification_head_name=self.head_name)
        logits = output if isinstance(output, tuple) else (output,)
        targets = model.get_targets(sample, [output]).view(-1)
        loss = torch.stack([self._loss(part, targets) for part in logits]).sum()
        sample_size = targets.numel()
        log: dict[str, Any] = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample_size,
            "sample_size": sample_size,
        }
        if not model.training:
            log["predictions"], log["targets"] = self._predictions(logits[0], targets)
            log["num_classes"] = 0 if self.regression_target else logits[0].shape[-1]
            log["split"] = sample.get("split")
            log["labels"] = self._first_labels(logits[0], targets)
        elif not self.regression_target:
            log["correct"] = (sum(logits).argmax(dim=-1) == targets).sum()
        return loss, sample_size, log

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.regression_target:
            return F.mse_loss(logits.view(-1).float(), targets.float(), reduction="sum")
        return F.cross_entropy(logits.float(), targets, reduction="sum")

    def _predictions(self, logits: Tensor, targets: Tensor) -> tuple[bytes, bytes]:
        """Predictions and targets as bytes: fairseq gathers them from all processes through a small buffer."""
        if self.regression_target:
            return _pack(logits.view(-1).float(), np.float32), _pack(targets, np.float64)
        return _pack(logits.argmax(dim=-1), np.int16), _pack(targets, np.int16)

    def _first_labels(self, logits: Tensor, targets: Tensor) -> dict[int, str]:
        """Names of the first prediction and the first target: those of all, if all are the same."""
        names = getattr(self.task, "label_names", ())
        return {} if not names else {row: names[row] for row in (int(logits[0].argmax()), int(targets[0]))}

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss (in bits, as fairseq does) and the metrics over everything logged so far."""
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        loss = sum(float(log.get("loss", 0)) for log in logging_outputs)
        metrics.log_scalar("loss", loss / max(sample_size, 1) / math.log(2), sample_size, round=3)
        if any("correct" in log for log in logging_outputs):
            correct = sum(int(log.get("correct", 0)) for log in logging_outputs)
            metrics.log_scalar("accuracy", 100.0 * correct / max(sample_size, 1), sample_size, round=1)
        with_predictions = [log for log in logging_outputs if "predictions" in log]
        if not with_predictions:
            return
        num_classes = with_predictions[0]["num_classes"]
        names, kinds = (REGRESSION, (np.float32, np.float64)) if num_classes == 0 else (CLASSIFICATION, (np.int16,) * 2)
        for key, kind in zip(("predictions", "targets"), kinds, strict=True):
            values = np.concatenate([np.frombuffer(log[key], dtype=kind) for log in with_predictions])
            metrics.log_concat_tensor(
                f"_{key}", torch.from_numpy(values.astype(np.float64 if num_classes == 0 else np.int64))
            )
        labels, split = (with_predictions[0].get(key) for key in ("labels", "split"))
        for name in names:
            warn_of = (labels, *split) if split and name == names[0] else None
            metrics.log_derived(
                name, lambda meters, name=name, warn_of=warn_of: _metric(meters, name, num_classes, warn_of)
            )

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """False: predictions are gathered, not added."""
        return False


def _pack(values: Tensor, kind: Any) -> bytes:
    return values.detach().cpu().numpy().astype(kind).tobytes()


def _metric(
    meters: Any, name: str, num_classes: int, warn_of: tuple[Mapping[int, str], str, int] | None = None
) -> float:
    """One metric, in percent, over all predictions gathered so far.

    `warn_of` are names of classes, the split and its number of rows: fairseq asks after every batch, but a model that
    predicts one class alone is warned of when the split is complete.
    """
    predictions, targets = (meters[key].tensor.numpy() for key in ("_predictions", "_targets"))
    if warn_of is not None and len(targets) >= warn_of[2]:
        for message in constant_values(predictions, targets, warn_of[0], f"split {warn_of[1]!r}"):
            logger.warning(message)
    return 100.0 * compute_metrics([name], predictions, targets, num_classes or None, warn=False)[name]
