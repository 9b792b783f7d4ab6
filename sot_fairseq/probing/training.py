"""Train a head on cached token states, as ``fairseq-train --freeze-backbone`` does with the scripts' settings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.optim.adam import Adam
from torch import Tensor, nn

from sot_base.errors import UsageError
from sot_fairseq.models.head import SentenceHead
from sot_fairseq.probing.token_cache import TokenStates
from sot_text.metrics import compute_metrics, constant_values, value_name

__all__ = ["Outcome", "ProbeData", "ProbeSplit", "TrainingSettings", "predict", "train_head"]

WARMUP = 6  # percent of the updates, as in the scripts
ROWS_AT_ONCE = 256  # in evaluation

Metrics = dict[str, dict[str, float]]  # split -> metric -> percent


class ProbeSplit(NamedTuple):
    """A split: token states and targets (class numbers, sets of classes or numbers)."""

    states: TokenStates
    targets: Tensor


@dataclass(frozen=True)
class ProbeData:
    """The data that heads are trained and tested on.

    Args:
        train: The rows to learn from.
        dev: The rows to test on, by name; the first decides which epoch is best.
        metrics: Names of the metrics.
        main_metric: The one that decides.
        num_classes: Classes; 1 for regression.
        regression: Whether the targets are numbers.
        multi_label: Whether they are sets of classes.
        labels: Names of the classes.
        class_weights: Weights of the classes in the loss; None for none.
    """

    train: ProbeSplit
    dev: Mapping[str, ProbeSplit]
    metrics: tuple[str, ...]
    main_metric: str
    num_classes: int
    regression: bool
    multi_label: bool = False
    labels: tuple[str, ...] = ()
    class_weights: Tensor | None = None


@dataclass(frozen=True)
class TrainingSettings:
    """How a head is trained.

    Args:
        lr: Peak learning rate (> 0), reached after 6 % of the updates; falls linearly to 0.
        batch_size: Rows in an update (> 0).
        epochs: Epochs (> 0).
        weight_decay: Decoupled weight decay (>= 0), of all parameters.
    """

    lr: float = 1e-3
    batch_size: int = 32
    epochs: int = 8
    weight_decay: float = 0.1


class Outcome(NamedTuple):
    """The result of a training.

    Attributes:
        best_epoch: Number of the best epoch, from 1.
        best: Metrics (percent) of each dev split after it.
        last: The same after the last epoch.
        seconds: Time of an epoch, evaluation included.
        warnings: What the metrics of the best epoch do not show (:func:`sot_text.metrics.constant_values`).
    """

    best_epoch: int
    best: Metrics
    last: Metrics
    seconds: float
    warnings: list[str]


def train_head(create: Callable[[], nn.Module], data: ProbeData, settings: TrainingSettings, seed: int) -> Outcome:
    """Train and test a head.

    Args:
        create: Makes the head; its random start follows from the seed.
        data: The rows.
        settings: How to train.
        seed: Decides start, order and dropout; the same seed gives the same numbers.

    Raises:
        UsageError: if the loss is not finite.
    """
    first = next(iter(data.dev))
    updates = settings.epochs * math.ceil(len(data.train.states) / settings.batch_size)
    best_epoch, best, last = 0, {}, {}
    best_outputs: dict[str, np.ndarray] = {}
    begin = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = create()
        trained = [parameter for parameter in head.parameters() if parameter.requires_grad]
        optimizer = Adam(trained, settings.lr, (0.9, 0.98), 1e-6, settings.weight_decay)
        update = 0
        for epoch in range(1, settings.epochs + 1):
            head.train()
            for rows in _train_batches(data.train.states.lengths.numpy(), settings.batch_size, seed, epoch):
                optimizer.param_groups[0]["lr"] = settings.lr * lr_factor(update, updates)
                loss = _loss(_logits(head, data.train.states, rows), data.train.targets[rows], data)
                if not math.isfinite(float(loss.detach())):
                    raise UsageError(f"the loss is not finite: epoch {epoch}, lr {settings.lr}; give a lower --lr")
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                update += 1
            outputs = {name: _predictions(head, split, data) for name, split in data.dev.items()}
            last = {name: _metrics(predictions, data.dev[name], data) for name, predictions in outputs.items()}
            if not best or last[first][data.main_metric] >= best[first][data.main_metric]:  # fairseq keeps the later
                best_epoch, best, best_outputs = epoch, last, outputs
    warnings = [
        message for name, outputs in best_outputs.items() for message in _warnings(outputs, data.dev[name], data, name)
    ]
    return Outcome(best_epoch, best, last, (time.perf_counter() - begin) / settings.epochs, warnings)


@torch.no_grad()
def predict(head: nn.Module, states: TokenStates) -> Tensor:
    """Logits of all rows, (rows, K), in evaluation mode."""
    head.eval()
    order = states.lengths.argsort(stable=True)
    parts = [_logits(head, states, rows) for rows in order.split(ROWS_AT_ONCE)]
    logits = torch.cat(parts)
    return torch.empty_like(logits).index_copy_(0, order, logits)


def lr_factor(update: int, updates: int) -> float:
    """The learning rate after `update` of `updates` updates, as a share of its peak, as fairseq's polynomial decay.

    The first update has the learning rate 0 if there is a warm-up, as in fairseq.
    """
    warmup = updates * WARMUP // 100
    if warmup and update <= warmup:
        return update / warmup
    return 1 - (update - warmup) / (updates - warmup)


def _train_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> Iterator[Tensor]:
    """Rows of similar length, within 25 %, in random order (see `sot_fairseq.data.dataset.BatchedDataset`)."""
    rng = np.random.default_rng((seed, epoch))
    order = torch.from_numpy(np.argsort(lengths * rng.uniform(0.8, 1.25, len(lengths)), kind="stable"))
    batches = order.split(batch_size)
    return (batches[number] for number in rng.permutation(len(batches)))


def _logits(head: nn.Module, states: TokenStates, rows: Tensor) -> Tensor | tuple[Tensor, ...]:
    if isinstance(head, SentenceHead):
        return head(*states.gather(rows))
    return head(states.gather_first(rows))  # fairseq's own head reads the class token alone


def _loss(logits: Tensor | tuple[Tensor, ...], targets: Tensor, data: ProbeData) -> Tensor:
    parts = logits if isinstance(logits, tuple) else (logits,)
    return torch.stack([_loss_of(part, targets, data) for part in parts]).sum()


def _loss_of(logits: Tensor, targets: Tensor, data: ProbeData) -> Tensor:
    if data.regression:
        return F.mse_loss(logits.view(-1), targets)
    if data.multi_label:
        return F.binary_cross_entropy_with_logits(logits, targets.float(), pos_weight=data.class_weights)
    return F.cross_entropy(logits, targets, weight=data.class_weights)


def _predictions(head: nn.Module, split: ProbeSplit, data: ProbeData) -> np.ndarray:
    """Class numbers, sets of classes or numbers that the head predicts for a split."""
    logits = predict(head, split.states)
    if not logits.isfinite().all():
        raise UsageError("the head's outputs are not finite after an epoch: the training; give a lower --lr")
    if data.regression:
        return logits[:, 0].numpy()
    return (logits > 0 if data.multi_label else logits.argmax(dim=-1)).numpy()


def _metrics(predictions: np.ndarray, split: ProbeSplit, data: ProbeData) -> dict[str, float]:
    """Metrics over a whole split in percent."""
    values = compute_metrics(data.metrics, predictions, split.targets.numpy(), data.num_classes, warn=False)
    return {name: 100.0 * value for name, value in values.items()}


def _warnings(predictions: np.ndarray, split: ProbeSplit, data: ProbeData, name: str) -> list[str]:
    targets = split.targets.numpy()
    first = (value_name(predictions[0], data.labels), value_name(targets[0], data.labels))
    return constant_values(predictions, targets, first, f"split {name!r}")
