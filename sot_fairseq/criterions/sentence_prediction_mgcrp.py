"""The criterion ``sentence_prediction_mgcrp``: every metric over the whole dev set, and the sum of two losses."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Optional

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from sot_base.class_weights import parse_class_weights
from sot_base.errors import UsageError
from sot_fairseq.tasks.task_config import option
from sot_text.class_counts import CLASS_METRICS, ClassCounts, count_classes
from sot_text.glue import MULTI_LABEL_METRICS, NUMBER_METRICS
from sot_text.metrics import compute_metrics, constant_classes, constant_values, value_name

__all__ = ["SentencePredictionMGCrPConfig", "SentencePredictionMGCrPCriterion"]

logger = logging.getLogger(__name__)

TargetKind = Literal["classes", "sets", "numbers"]
METRIC_NAMES: dict[TargetKind, tuple[str, ...]] = {
    "classes": ("accuracy", "f1", "mcc", "acc_and_f1"),
    "sets": MULTI_LABEL_METRICS,
    "numbers": NUMBER_METRICS,
}


@dataclass
class SentencePredictionMGCrPConfig(FairseqDataclass):
    """Options of the criterion, named as those of fairseq's ``sentence_prediction``."""

    classification_head_name: str = option("sentence_classification_head", "name of the classification head to use")
    regression_target: bool = option(
        False, "the target is a number, the loss the squared error; taken from preprocess.json if it is there"
    )
    class_weights: Optional[str] = option(  # noqa: UP045
        None, "weights of the classes in the loss: balanced, or NAME=WEIGHT,... (others: 1)"
    )


@register_criterion("sentence_prediction_mgcrp", dataclass=SentencePredictionMGCrPConfig)
class SentencePredictionMGCrPCriterion(FairseqCriterion):
    """Cross-entropy; binary cross-entropy where a row may have several labels; the squared error for regression.

    For ``sum_loss`` it is the sum over both classifiers. The mean over a batch is that of torch's own losses: weighted
    by the classes' weights, and over classes where a row may have several labels.

    In validation the predictions of all processes are gathered, and the metrics are those over all of them, in percent
    and not rounded. Of classes only counts are kept.

    Raises:
        UsageError: if ``class_weights`` cannot be read, or is given for a regression.
    """

    adds_losses = True
    takes_sets = True
    sums_in_training = True

    def __init__(self, cfg: SentencePredictionMGCrPConfig, task: Any) -> None:
        super().__init__(task)
        self.head_name = cfg.classification_head_name
        self.regression_target = cfg.regression_target
        self.kind: TargetKind = "classes"
        if cfg.regression_target:
            self.kind = "numbers"
        elif getattr(task.cfg, "multi_label", False):
            self.kind = "sets"
        self.metric_names = METRIC_NAMES[self.kind]
        self._class_weights: tuple[Any, Tensor] | None = None  # on the device of the last batch, and what they are of
        if cfg.class_weights is not None:
            parse_class_weights(cfg.class_weights)
            if self.kind == "numbers":
                raise UsageError(f"a regression has no classes: --class-weights {cfg.class_weights}; leave it out")

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, Any, dict[str, Any]]:
        """Loss of a batch, the number that its mean divides by, and what to log."""
        if "target" not in sample:
            split = (sample.get("split") or ("?",))[0]
            raise UsageError(f"split {split!r} has no labels: {self.task.cfg.data}; give a split with labels")
        output, _ = model(**sample["net_input"], features_only=True, classification_head_name=self.head_name)
        logits = output if isinstance(output, tuple) else (output,)
        targets = model.get_targets(sample, [output])
        targets = targets if self.kind == "sets" else targets.view(-1)
        weights = self._weights(logits[0])
        loss = self._loss(logits[0], targets, weights)
        for part in logits[1:]:
            loss = loss + self._loss(part, targets, weights)
        sample_size = len(targets) if weights is None or self.kind == "sets" else _number(weights[targets].sum())
        log: dict[str, Any] = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": len(targets),
            "sample_size": sample_size,
        }
        if not model.training:
            output = logits[0].detach().float().cpu()
            self._check_outputs(output, sample)
            log |= self._measured(self._predictions(output).numpy(), targets.cpu().numpy(), output.shape[-1])
            log |= {"split": sample.get("split"), "model": getattr(self.task, "run_name", "")}
        elif self.kind != "numbers":
            right = self._predictions(sum(logits)) == targets
            log["correct"] = right.view(len(targets), -1).all(dim=1).sum()
        return loss, sample_size, log

    def _measured(self, predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> dict[str, Any]:
        """What the metrics need of a batch, small enough to be gathered from all processes."""
        names = getattr(self.task, "label_names", ())
        log = {"kind": self.kind, "first": tuple(value_name(values[0], names) for values in (predictions, targets))}
        if self.kind == "numbers":
            return log | {"predictions": predictions, "targets": targets.astype(np.float64)}
        if self.kind == "sets":
            targets = targets.astype(bool)
        return log | {"counts": count_classes(predictions, targets, num_classes)}

    def _check_outputs(self, logits: Tensor, sample: dict[str, Any]) -> None:
        """Refuse to measure non-finite outputs: the predicted classes would look like any others."""
        if not math.isfinite(float(logits.sum())) and not logits.isfinite().all():  # large outputs may overflow the sum
            split = (sample.get("split") or ("?",))[0]
            name = getattr(self.task, "run_name", "")
            raise UsageError(f"outputs for split {split!r} are not finite: {name}; lower --lr, or leave out --fp16")

    def _weights(self, logits: Tensor) -> Tensor | None:
        weights = getattr(self.task, "class_weights", None)
        if weights is None:
            return None
        if self._class_weights is None or self._class_weights[0] != (weights, logits.device):
            tensor = torch.tensor(weights, dtype=torch.float32, device=logits.device)
            self._class_weights = (list(weights), logits.device), tensor
        return self._class_weights[1]

    def _loss(self, logits: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        if self.kind == "numbers":
            return F.mse_loss(logits.view(-1).float(), targets.float(), reduction="sum")
        if self.kind == "sets":
            losses = F.binary_cross_entropy_with_logits(
                logits.float(), targets.float(), pos_weight=weights, reduction="none"
            )
            return losses.mean(dim=1).sum()
        return F.cross_entropy(logits.float(), targets, weight=weights, reduction="sum")

    def _predictions(self, logits: Tensor) -> Tensor:
        if self.kind == "numbers":
            return logits.view(-1).float()
        return logits > 0 if self.kind == "sets" else logits.argmax(dim=-1)

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss (in bits, as fairseq does) and the metrics over everything logged so far."""
        sample_size = sum(_double(log.get("sample_size", 0)) for log in logging_outputs)
        loss = sum(_double(log.get("loss", 0)) for log in logging_outputs)
        metrics.log_scalar("loss", loss / (sample_size or 1) / math.log(2), sample_size, round=3)
        if any("correct" in log for log in logging_outputs):
            correct = sum(_double(log.get("correct", 0)) for log in logging_outputs)
            rows = sum(_double(log.get("nsentences", 0)) for log in logging_outputs)
            metrics.log_scalar("accuracy", 100.0 * correct / max(rows, 1), rows, round=1)
        measured = [log for log in logging_outputs if "kind" in log]
        if not measured:
            return
        first = measured[0]
        if first["kind"] == "numbers":
            for key in ("predictions", "targets"):
                metrics.log_concat_tensor(f"_{key}", torch.cat([torch.from_numpy(log[key]) for log in measured]))
        else:
            counts = [sum(numbers) for numbers in zip(*(log["counts"] for log in measured), strict=True)]
            metrics.log_scalar_sum("_counts", torch.tensor(counts))
        logged = _Logged(first)
        for name in METRIC_NAMES[first["kind"]]:
            metrics.log_derived(name, partial(logged.metric, name))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return False: in validation predictions are gathered; in training the task says that values are summed."""
        return False


def _number(value: Tensor) -> Tensor | float:
    """A sum that the host knows as a number; one on a GPU stays there, since reading it would wait."""
    return float(value) if value.device.type == "cpu" else value


def _double(value: Any) -> Any:
    """A value that was logged: a tensor as a number, or on a GPU in double precision."""
    return _number(value.double()) if isinstance(value, Tensor) else value


class _Logged:
    """The metrics, in percent, over everything logged so far.

    fairseq asks after every batch, but the warning about a collapsed model comes when the split is complete.

    Args:
        log: The first logging output of a step.
    """

    def __init__(self, log: dict[str, Any]) -> None:
        self.kind, self.split, self.model, self.first = log["kind"], log["split"], log["model"], log["first"]
        self._counts: tuple[Tensor, ClassCounts] | None = None  # of the last metric, with what they are of

    def metric(self, name: str, meters: Any) -> float:
        """One metric of what fairseq's meters hold."""
        warns = self.split and name == METRIC_NAMES[self.kind][0]
        if name in CLASS_METRICS:
            counts = self._class_counts(meters["_counts"].sum)
            if warns:
                self._warn(counts.rows, partial(constant_classes, counts, self.first))
            return 100.0 * CLASS_METRICS[name](counts)
        predictions, targets = (meters[key].tensor.numpy() for key in ("_predictions", "_targets"))
        if warns:
            self._warn(len(targets), partial(constant_values, predictions, targets, self.first))
        return 100.0 * compute_metrics([name], predictions, targets, warn=False)[name]

    def _class_counts(self, total: Tensor) -> ClassCounts:
        if self._counts is None or self._counts[0] is not total:  # a meter makes a new tensor for each sum
            self._counts = total, ClassCounts.from_numbers(total.tolist(), self.kind == "sets")
        return self._counts[1]

    def _warn(self, rows: int, messages: Callable[[str], list[str]]) -> None:
        if rows >= self.split[1]:
            for message in messages(", ".join(part for part in (f"split {self.split[0]!r}", self.model) if part)):
                logger.warning(message)
