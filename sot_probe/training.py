"""Train many heads on stored token states in one pass over the data, each batch being read once for all of them.

The schedule is that of ``glue_scripts``: a warm-up over 6 % of the updates, then linear decay; decoupled weight decay
of all parameters. The result of a head depends on its own seed and settings alone: each head has its own random state,
and the seed determines the order of the batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sot_base.errors import UsageError
from sot_base.later_values import send
from sot_probe.objective import Objective
from sot_probe.states import TokenStates
from sot_probe.trainee import Candidate, Measure, Optimize, Outcome, Trainee, adamw

__all__ = ["Split", "predict", "require_success", "train_heads"]

ROWS_AT_ONCE = 256  # in evaluation


class Split(NamedTuple):
    """Token states and targets of a part of the data."""

    states: TokenStates
    targets: Tensor

    def subset(self, rows: np.ndarray) -> Split:
        """The split with only these rows."""
        chosen = torch.from_numpy(rows)
        return Split(self.states.subset(chosen), self.targets[chosen])


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
        candidates: The heads; those with the same batch size share the batches.
        train: The training rows.
        objective: The loss.
        seed: Seed of initial weights, order of batches and dropout.
        watch: Splits to evaluate after each epoch. The first one determines the best epoch, the later one in a tie.
        measure: Computes the metrics of predictions.
        main_metric: The metric that determines the best epoch.
        patience: Stop a head after this many epochs without improvement; None: never.
        optimize: Creates the optimizer.
        device: Device of the training.

    Returns:
        The result of each candidate, also if it failed.
    """
    outcomes: dict[int, Outcome] = {}
    for size in dict.fromkeys(candidate.settings.batch_size for candidate in candidates):
        chosen = [number for number, item in enumerate(candidates) if item.settings.batch_size == size]
        steps = math.ceil(len(train.states) / size)
        trainees = [
            Trainee(candidates[number], seed, steps, objective, optimize, torch.device(device)) for number in chosen
        ]
        _train_group(trainees, train, seed, size, watch or {}, measure, main_metric, patience)
        outcomes |= {number: trainee.finish() for number, trainee in zip(chosen, trainees, strict=True)}
    return [outcomes[number] for number in range(len(candidates))]


def _train_group(
    trainees: Sequence[Trainee],
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
        for trainee in trainees:
            trainee.settle()
        active = [trainee for trainee in trainees if trainee.active]
        for trainee in active:
            trainee.outcome.best_epoch = trainee.outcome.best_epoch if watch else epoch
        if not watch or measure is None:
            continue
        logits = {name: _predict_all(active, split.states) for name, split in watch.items()}
        targets = {name: split.targets for name, split in watch.items()}
        for number, trainee in enumerate(active):
            own = {name: values[number] for name, values in logits.items()}
            trainee.evaluate(own, targets, measure, main_metric)
            if patience is not None and epoch - trainee.improved >= patience:
                trainee.active = False


def _step_all(
    trainees: Sequence[Trainee], states: Sequence[Tensor], mask: Tensor | None, targets: Tensor, epoch: int
) -> None:
    device = trainees[0].device
    states, targets = [send(layer, device) for layer in states], send(targets, device)
    mask = None if mask is None else send(mask, device)
    for trainee in trainees:
        if trainee.active:
            trainee.step(states, mask, targets, epoch)


def _predict_all(trainees: Sequence[Trainee], states: TokenStates) -> list[Tensor]:
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
        states: The rows.
        seconds: If given, the computing time of each head is added to it.
    """
    parts: list[list[Tensor]] = [[] for _ in heads]
    order = states.lengths.argsort(stable=True)
    for rows in order.split(ROWS_AT_ONCE):  # type: ignore[no-untyped-call]
        layers, mask = states.gather(rows)
        for number, head in enumerate(heads):
            begin = time.perf_counter()
            device = next(head.parameters()).device
            moved = None if mask is None else send(mask, device)
            parts[number].append(head.eval()([send(layer, device) for layer in layers], moved))
            if seconds is not None:
                seconds[number] += time.perf_counter() - begin
    return [_in_order(torch.cat(own).cpu(), order) for own in parts]


def _in_order(values: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(values).index_copy_(0, order, values)


def _batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> Iterator[Tensor]:
    """Batches of rows of similar length, in random order; lengths are perturbed by up to 25 % before sorting."""
    rng = np.random.default_rng((seed, epoch))
    order = torch.from_numpy(np.argsort(lengths * rng.uniform(0.8, 1.25, len(lengths)), kind="stable"))
    batches = order.split(batch_size)  # type: ignore[no-untyped-call]
    return (batches[number] for number in rng.permutation(len(batches)))


def require_success(outcomes: Iterable[Outcome]) -> None:
    """Raise if a training failed.

    Raises:
        UsageError: with the reason of the first failed training.
    """
    for outcome in outcomes:
        if outcome.failed:
            raise UsageError(outcome.failed)
