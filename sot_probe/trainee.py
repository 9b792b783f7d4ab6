"""A head in training: settings, optimizer, random state and result."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sot_base.later_values import LaterValues
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Objective
from sot_probe.settings import TrainingSettings

__all__ = [
    "NOT_FINITE",
    "Candidate",
    "Groups",
    "Measure",
    "Metrics",
    "Optimize",
    "Outcome",
    "Trainee",
    "TrainingSettings",
    "adamw",
    "lr_factor",
]

WARMUP = 6  # percent of the updates
NOT_FINITE = "the head's outputs are not finite after an epoch: the training; give a lower --lr"
Metrics = dict[str, dict[str, float]]  # split -> metric -> percent
Measure = Callable[[np.ndarray, np.ndarray], dict[str, float]]  # predictions, targets -> metric -> percent


@dataclass(frozen=True)
class Candidate:
    """A head to be trained.

    Args:
        create: Creates the head, with initial weights from the seed.
        settings: How it is trained.
    """

    create: Callable[[], LayerHead]
    settings: TrainingSettings


@dataclass
class Outcome:
    """The result of a training.

    Attributes:
        head: The trained module, in evaluation mode; with ``watch``, that of the best epoch.
        history: Metrics (percent) of each watched split, after each epoch.
        best_epoch: The best epoch, from 1; without ``watch``, the last one.
        seconds: Computing time of the whole training, evaluations included.
        parameters: Number of trained parameters.
        predictions: Predictions of the best epoch for each watched split.
        failed: Why the training failed; empty if it succeeded.
    """

    head: LayerHead
    history: list[Metrics] = field(default_factory=list)
    best_epoch: int = 0
    seconds: float = 0.0
    parameters: int = 0
    predictions: dict[str, np.ndarray] = field(default_factory=dict)
    failed: str = ""


Groups = Sequence[dict[str, Any]]  # torch's parameter groups
Optimize = Callable[[Groups, TrainingSettings], torch.optim.Optimizer]


def adamw(groups: Groups, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The default optimizer; fairseq has its own."""
    return torch.optim.AdamW(
        groups, settings.lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=settings.weight_decay, fused=True
    )


class Trainee:
    """A head in training, with its own optimizer and random state.

    Args:
        candidate: The head and its settings.
        seed: Seed of initial weights and dropout.
        steps: Updates in an epoch.
        objective: The loss.
        optimize: Creates the optimizer.
        device: Device of the training.
    """

    def __init__(
        self,
        candidate: Candidate,
        seed: int,
        steps: int,
        objective: Objective,
        optimize: Optimize,
        device: torch.device,
    ) -> None:
        self.candidate, self.objective, self.device = candidate, objective.on(device), device
        self.random = _RandomNumbers(seed, device)
        with self.random:
            self.head = candidate.create().to(device)
        groups = _parameter_groups(self.head, candidate.settings.encoder_lr_scale)
        self.optimizer = optimize(groups, candidate.settings)
        parameters = sum(parameter.numel() for group in groups for parameter in group["params"])
        self.outcome = Outcome(self.head, parameters=parameters)
        self.updates, self.update = candidate.settings.epochs * steps, 0
        self.best_state: dict[str, Tensor] | None = None
        self.best_score, self.improved = -math.inf, 0  # the last epoch with an improvement
        self.losses = LaterValues()
        self.active = True

    def step(self, states: Sequence[Tensor], mask: Tensor | None, targets: Tensor, epoch: int) -> None:
        """Update the head on a batch; a loss that is not finite ends the training, on a GPU some steps later."""
        begin, settings = time.perf_counter(), self.candidate.settings
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * group["lr_scale"] * lr_factor(self.update, self.updates)
        self.head.train()
        with self.random:
            loss = self.objective.loss(self.head(states, mask), targets)
        self.losses.read(loss.detach().view(1), partial(self._check_loss, epoch))
        if not self.active:
            return
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.update += 1
        self.outcome.seconds += time.perf_counter() - begin

    def settle(self) -> None:
        """Wait for the losses of all steps, so that a training that has failed is known to have."""
        begin = time.perf_counter()
        self.losses.settle()
        self.outcome.seconds += time.perf_counter() - begin

    def _check_loss(self, epoch: int, losses: Sequence[float]) -> None:
        if not math.isfinite(losses[0]):
            self.give_up(f"the loss is not finite: epoch {epoch}, lr {self.candidate.settings.lr}; give a lower --lr")

    def evaluate(
        self, logits: Mapping[str, Tensor], targets: Mapping[str, Tensor], measure: Measure, main: str
    ) -> None:
        """Record the metrics of an epoch, and keep the weights if they are the best so far."""
        if any(not values.isfinite().all() for values in logits.values()):
            self.give_up(NOT_FINITE)
            return
        predictions = {name: self.objective.decide(values) for name, values in logits.items()}
        metrics = {name: measure(values, targets[name].numpy()) for name, values in predictions.items()}
        self.outcome.history.append(metrics)
        score = metrics[next(iter(targets))][main]
        if score > self.best_score:
            self.improved = len(self.outcome.history)
        if score >= self.best_score:
            self.best_score, self.outcome.best_epoch = score, len(self.outcome.history)
            self.outcome.predictions = predictions
            self.best_state = copy.deepcopy(self.head.state_dict())

    def give_up(self, reason: str) -> None:
        """End the training without a result."""
        self.outcome.failed, self.active = reason, False

    def finish(self) -> Outcome:
        """Return the result, with the weights of the best epoch if splits were watched."""
        if self.best_state is not None:
            self.head.load_state_dict(self.best_state)
        self.head.eval().cpu()
        return self.outcome


def _parameter_groups(head: LayerHead, encoder_lr_scale: float) -> list[dict[str, Any]]:
    """The trained parameters: those of the head, and those of the encoder's top layers, if there are any."""
    top = [] if head.top_layers is None else [part for part in head.top_layers.parameters() if part.requires_grad]
    encoder = set(top)
    own = [part for part in head.parameters() if part.requires_grad and part not in encoder]
    groups = [{"params": own, "lr_scale": 1.0}, {"params": top, "lr_scale": encoder_lr_scale}]
    return [group for group in groups if group["params"]]


class _RandomNumbers:
    """A separate random state of torch, active in a ``with`` block; the caller's state is restored after it."""

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


def lr_factor(update: int, updates: int) -> float:
    """Learning rate at an update as a share of its peak: linear warm-up and decay, as fairseq's polynomial decay.

    With a warm-up, the learning rate of the first update is 0, as in fairseq.
    """
    warmup = updates * WARMUP // 100
    if warmup and update <= warmup:
        return update / warmup
    return 1 - (update - warmup) / (updates - warmup)
