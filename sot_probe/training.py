"""Train many heads on stored token states in one pass over the data: one read of a batch feeds them all.

The settings are those of ``fairseq-train`` in ``glue_scripts``: a warm-up over 6 % of the updates, then a linear decay,
decoupled weight decay of all parameters. What a head learns depends on its own seed and settings alone: each has random
numbers of its own, and the order of the batches follows from the seed.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sot_base.errors import UsageError
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Objective
from sot_probe.states import TokenStates

__all__ = ["Candidate", "Outcome", "Split", "TrainingSettings", "lr_factor", "predict", "train_heads"]

WARMUP = 6  # percent of the updates
ROWS_AT_ONCE = 256  # in evaluation
NOT_FINITE = "the head's outputs are not finite after an epoch: the training; give a lower --lr"
Metrics = dict[str, dict[str, float]]  # split -> metric -> percent
Measure = Callable[[np.ndarray, np.ndarray], dict[str, float]]  # predictions, targets -> metric -> percent


class Split(NamedTuple):
    """A part of the data: token states and targets."""

    states: TokenStates
    targets: Tensor

    def subset(self, rows: np.ndarray) -> Split:
        """Some of its rows."""
        chosen = torch.from_numpy(rows)
        return Split(self.states.subset(chosen), self.targets[chosen])


@dataclass(frozen=True)
class TrainingSettings:
    """How a head is trained.

    Args:
        lr: Peak learning rate (> 0), reached after 6 % of the updates; falls linearly to 0.
        batch_size: Rows in an update (> 0).
        epochs: Epochs of the schedule (> 0).
        weight_decay: Decoupled weight decay (>= 0), of all parameters.
    """

    lr: float = 1e-3
    batch_size: int = 32
    epochs: int = 8
    weight_decay: float = 0.1


@dataclass(frozen=True)
class Candidate:
    """A head to be trained.

    Args:
        create: Makes it, from random numbers of the seed: a module of (states of the layers, padding mask).
        settings: How to train.
    """

    create: Callable[[], LayerHead]
    settings: TrainingSettings


@dataclass
class Outcome:
    """The result of a training.

    Attributes:
        head: The trained module, in evaluation mode; with ``watch`` as it was in its best epoch.
        history: Metrics (percent) of each watched split, after each epoch.
        best_epoch: Number of the best epoch, from 1; without ``watch`` the last one.
        seconds: Computing time of the whole training, evaluations included.
        parameters: What was learned.
        predictions: For each watched split what the head predicts in its best epoch.
        failed: Why it was given up; empty if it was not.
    """

    head: LayerHead
    history: list[Metrics] = field(default_factory=list)
    best_epoch: int = 0
    seconds: float = 0.0
    parameters: int = 0
    predictions: dict[str, np.ndarray] = field(default_factory=dict)
    failed: str = ""


Optimize = Callable[[Sequence[nn.Parameter], TrainingSettings], torch.optim.Optimizer]


def adamw(parameters: Sequence[nn.Parameter], settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimizer of every side but fairseq's, which has its own."""
    return torch.optim.AdamW(
        parameters, settings.lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=settings.weight_decay, fused=True
    )


def train_heads(
    candidates: Sequence[Candidate],
    train: Split,
    objective: Objective,
    seed: int,
    watch: Mapping[str, Split] | None = None,
    measure: Measure | None = None,
    main_metric: str = "",
    patience: int | None = None,
    optimize: Optimize = adamw,
    device: torch.device | str = "cpu",
) -> list[Outcome]:
    """Train heads side by side.

    Args:
        candidates: The heads. Those with the same size of batches share each batch that is read.
        train: The rows to learn from.
        objective: What to learn.
        seed: Decides start, order and dropout; the same seed gives the same numbers.
        watch: Splits to evaluate after each epoch; the first one decides which epoch is best, a later one if equal.
        measure: Gives the metrics of predictions.
        main_metric: The one that decides.
        patience: Stop a head after so many epochs that were not better; None: never.
        optimize: Makes the optimizer.
        device: Where heads are trained.

    Returns:
        For each candidate its result, also if its loss was not finite.
    """
    outcomes: dict[int, Outcome] = {}
    for size in dict.fromkeys(candidate.settings.batch_size for candidate in candidates):
        chosen = [number for number, item in enumerate(candidates) if item.settings.batch_size == size]
        steps = math.ceil(len(train.states) / size)
        trainees = [
            _Trainee(candidates[number], seed, steps, objective, optimize, torch.device(device)) for number in chosen
        ]
        _train_group(trainees, train, seed, size, watch or {}, measure, main_metric, patience)
        outcomes |= {number: trainee.finish() for number, trainee in zip(chosen, trainees, strict=True)}
    return [outcomes[number] for number in range(len(candidates))]


class _Trainee:
    """A head in training, with its optimizer and random numbers of its own."""

    def __init__(
        self,
        candidate: Candidate,
        seed: int,
        steps: int,
        objective: Objective,
        optimize: Optimize,
        device: torch.device,
    ) -> None:
        self.candidate, self.objective, self.device = candidate, objective, device
        self.random = _RandomNumbers(seed, device)
        with self.random:
            self.head = candidate.create().to(device)
        trained = [parameter for parameter in self.head.parameters() if parameter.requires_grad]
        self.optimizer = optimize(trained, candidate.settings)
        self.outcome = Outcome(self.head, parameters=sum(parameter.numel() for parameter in trained))
        self.updates, self.update = candidate.settings.epochs * steps, 0
        self.best_state: dict[str, Tensor] | None = None
        self.best_score, self.improved = -math.inf, 0  # the epoch that was better than all before
        self.active = True

    def step(self, states: Sequence[Tensor], mask: Tensor | None, targets: Tensor, epoch: int) -> None:
        begin, settings = time.perf_counter(), self.candidate.settings
        self.optimizer.param_groups[0]["lr"] = settings.lr * lr_factor(self.update, self.updates)
        self.head.train()
        with self.random:
            loss = self.objective.loss(self.head(states, mask), targets)
        if not math.isfinite(float(loss.detach())):
            self.give_up(f"the loss is not finite: epoch {epoch}, lr {settings.lr}; give a lower --lr")
            return
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.update += 1
        self.outcome.seconds += time.perf_counter() - begin

    def evaluate(self, logits: Mapping[str, Tensor], splits: Mapping[str, Split], measure: Measure, main: str) -> None:
        """Note the metrics of an epoch, and keep the head if it is the best one."""
        if any(not values.isfinite().all() for values in logits.values()):
            self.give_up(NOT_FINITE)
            return
        predictions = {name: self.objective.decide(values) for name, values in logits.items()}
        metrics = {name: measure(values, splits[name].targets.numpy()) for name, values in predictions.items()}
        self.outcome.history.append(metrics)
        score = metrics[next(iter(splits))][main]
        if score > self.best_score:
            self.improved = len(self.outcome.history)
        if score >= self.best_score:
            self.best_score, self.outcome.best_epoch = score, len(self.outcome.history)
            self.outcome.predictions = predictions
            self.best_state = copy.deepcopy(self.head.state_dict())

    def give_up(self, reason: str) -> None:
        self.outcome.failed, self.active = reason, False

    def finish(self) -> Outcome:
        if self.best_state is not None:
            self.head.load_state_dict(self.best_state)
        self.head.eval().cpu()
        return self.outcome


class _RandomNumbers:
    """A stream of torch's random numbers that others do not touch; the caller's are put back."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.cuda = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=self.cuda):
            torch.manual_seed(seed)
            self.states = self._read()

    def _read(self) -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self.cuda)]

    def _write(self, states: Sequence[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self.cuda, states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)

    def __enter__(self) -> None:
        self.callers = self._read()
        self._write(self.states)

    def __exit__(self, *error: Any) -> None:
        self.states = self._read()
        self._write(self.callers)


def _train_group(
    trainees: Sequence[_Trainee],
    train: Split,
    seed: int,
    batch_size: int,
    watch: Mapping[str, Split],
    measure: Measure | None,
    main_metric: str,
    patience: int | None,
) -> None:
    for epoch in range(1, max((trainee.candidate.settings.epochs for trainee in trainees), default=0) + 1):
        for trainee in trainees:
            trainee.active &= epoch <= trainee.candidate.settings.epochs
        if not any(trainee.active for trainee in trainees):
            return
        for rows in _batches(train.states.lengths.numpy(), batch_size, seed, epoch):
            states, mask = train.states.gather(rows)
            _step_all(trainees, states, mask, train.targets[rows], epoch)
        active = [trainee for trainee in trainees if trainee.active]
        for trainee in active:
            trainee.outcome.best_epoch = trainee.outcome.best_epoch if watch else epoch
        if not watch or measure is None:
            continue
        logits = {name: _predict_all(active, split.states) for name, split in watch.items()}
        for number, trainee in enumerate(active):
            own = {name: values[number] for name, values in logits.items()}
            trainee.evaluate(own, watch, measure, main_metric)
            if patience is not None and epoch - trainee.improved >= patience:
                trainee.active = False


def _step_all(
    trainees: Sequence[_Trainee], states: Sequence[Tensor], mask: Tensor | None, targets: Tensor, epoch: int
) -> None:
    device = trainees[0].device
    states, targets = [layer.to(device) for layer in states], targets.to(device)
    mask = None if mask is None else mask.to(device)
    for trainee in trainees:
        if trainee.active:
            trainee.step(states, mask, targets, epoch)


def _predict_all(trainees: Sequence[_Trainee], states: TokenStates) -> list[Tensor]:
    seconds = [0.0 for _ in trainees]
    logits = predict([trainee.head for trainee in trainees], states, seconds)
    for trainee, spent in zip(trainees, seconds, strict=True):
        trainee.outcome.seconds += spent
    return logits


@torch.no_grad()
def predict(heads: Sequence[nn.Module], states: TokenStates, seconds: list[float] | None = None) -> list[Tensor]:
    """Logits of all rows for each head, (rows, K), in evaluation mode, on the CPU.

    Args:
        heads: Modules of (states of the layers, padding mask).
        states: The rows; none gives none.
        seconds: Computing times, to which those of the heads are added.
    """
    parts: list[list[Tensor]] = [[] for _ in heads]
    order = states.lengths.argsort(stable=True)
    for rows in order.split(ROWS_AT_ONCE):  # type: ignore[no-untyped-call]
        layers, mask = states.gather(rows)
        for number, head in enumerate(heads):
            begin = time.perf_counter()
            device = next(head.parameters()).device
            moved = None if mask is None else mask.to(device)
            parts[number].append(head.eval()([layer.to(device) for layer in layers], moved).cpu())
            if seconds is not None:
                seconds[number] += time.perf_counter() - begin
    return [_in_order(torch.cat(own), order) for own in parts]


def _in_order(values: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(values).index_copy_(0, order, values)


def lr_factor(update: int, updates: int) -> float:
    """The learning rate after `update` of `updates` updates, as a share of its peak, as fairseq's polynomial decay.

    The first update has the learning rate 0 if there is a warm-up, as in fairseq.
    """
    warmup = updates * WARMUP // 100
    if warmup and update <= warmup:
        return update / warmup
    return 1 - (update - warmup) / (updates - warmup)


def _batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> Iterator[Tensor]:
    """Rows of similar length, within 25 %, in random order; rows of equal length in any order."""
    rng = np.random.default_rng((seed, epoch))
    order = torch.from_numpy(np.argsort(lengths * rng.uniform(0.8, 1.25, len(lengths)), kind="stable"))
    batches = order.split(batch_size)  # type: ignore[no-untyped-call]
    return (batches[number] for number in rng.permutation(len(batches)))


def require_success(outcomes: Iterable[Outcome]) -> None:
    """Make sure that a training ended well.

    Raises:
        UsageError: with the reason of the first one that did not.
    """
    for outcome in outcomes:
        if outcome.failed:
            raise UsageError(outcome.failed)
