"""Metrics of a trained model, of its checkpoints, and the files of its predictions."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
from transformers import EvalPrediction

from sot_hf.checkpoints import STATE, check_same_model, find_checkpoints
from sot_hf.data import TextDataset
from sot_hf.load_config import load_config
from sot_hf.load_model import load_weights
from sot_hf.modeling import SoTForSequenceClassification
from sot_hf.trainer import HeadTrainer
from sot_text.glue import GlueTask
from sot_text.metrics import compute_metrics
from sot_text.submission import submission_name, write_submission

__all__ = ["evaluate", "evaluate_checkpoints", "metrics_function", "predict", "run_name"]

logger = logging.getLogger(__name__)

EVAL_PREFIX = {"valid": "eval", "valid1": "eval_mm"}  # of the names of metrics, by the name of the split


def metrics_function(task: GlueTask, name: str) -> Callable[[EvalPrediction], dict[str, float]]:
    """The function of logits and targets that `Trainer` calls for the metrics of a task.

    Args:
        task: The task with its labels.
        name: What warnings call the run.
    """

    def metrics(outputs: EvalPrediction) -> dict[str, float]:
        targets = np.asarray(outputs.label_ids)
        targets = targets.astype(bool) if task.multi_label else targets.reshape(-1)
        return compute_metrics(
            task.metrics, _decisions(outputs.predictions, task), targets, task.num_classes or None, task.labels, name
        )

    return metrics


def run_name(model: SoTForSequenceClassification, seed: int) -> str:
    """Head and seed, for messages about one of many runs."""
    head = model.config.head
    return f"head {'cls' if head['fusion'] == 'cls' else head['pooling']}, seed {seed}"


def evaluate(
    trainer: HeadTrainer, valid: dict[str, TextDataset], known: dict[str, float] | None = None
) -> dict[str, float]:
    """The metrics of all dev sets, by names such as ``eval_accuracy`` and ``eval_mm_accuracy``.

    Args:
        trainer: With the model.
        valid: Rows of each dev set, by the name of its split.
        known: Metrics of the split ``valid``, if they have been measured with the same weights.
    """
    results: dict[str, float] = {}
    for name, dataset in valid.items():
        if name == "valid" and known is not None:
            results |= known
        else:
            results |= trainer.evaluate(dataset, metric_key_prefix=EVAL_PREFIX[name])
    return results


def evaluate_checkpoints(trainer: HeadTrainer, valid: dict[str, TextDataset]) -> None:
    """Evaluate every checkpoint of the output folder and write ``eval_results_all.json``.

    Raises:
        UsageError: If one is of another model.
    """
    table = {}
    for checkpoint in find_checkpoints(trainer.output):
        check_same_model(checkpoint, trainer.model.config)
        config = load_config(str(checkpoint))
        config.freeze_backbone, config.train_layers = False, None  # only its weights are of interest
        saved = load_weights(str(checkpoint), config, dtype=trainer.model.dtype)
        trainer.model.load_state_dict(saved.state_dict())
        epoch = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))["epoch"]
        table[checkpoint.name] = {**evaluate(trainer, valid), "epoch": epoch}
        logger.info("%s: %s", checkpoint.name, table[checkpoint.name])
    if trainer.is_world_process_zero():
        trainer.write_json("eval_results_all.json", table)


def predict(trainer: HeadTrainer, task: GlueTask, test: dict[str, tuple[TextDataset, list[str]]]) -> list[Path]:
    """Predict the test files and write them in the form of GLUE's server; returns the written files.

    Args:
        trainer: With the trained model.
        task: The task with its labels.
        test: Rows of each test file and their indices, by the file's name.
    """
    written = []
    for file, (dataset, indices) in test.items():
        decisions = _decisions(trainer.predict(dataset).predictions, task)
        if trainer.is_world_process_zero():
            path = trainer.output / submission_name(task, file)
            write_submission(path, task, indices, [_answer(decision, task) for decision in decisions])
            written.append(path)
    return written


def _decisions(logits: np.ndarray, task: GlueTask) -> np.ndarray:
    """Numbers (rows,), class indices (rows,), or which classes each row has (rows, K), bool."""
    if task.regression:
        return logits[:, 0]
    return logits > 0 if task.multi_label else logits.argmax(axis=-1)


def _answer(decision: np.ndarray, task: GlueTask) -> str | float | list[str]:
    """A prediction in the task's label names."""
    if task.regression:
        return float(decision)
    if task.multi_label:
        return [task.labels[index] for index in np.flatnonzero(decision)]
    return task.labels[int(decision)]
