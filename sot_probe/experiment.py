"""Choose the settings of each head on held-out training rows, then train it with every seed and evaluate it once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import nn

from sot_probe.grid import MIXED, ProbeSettings
from sot_probe.held_out import hold_out
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Objective
from sot_probe.trainee import NOT_FINITE, Candidate, Measure, Metrics, Optimize, Outcome, TrainingSettings, adamw
from sot_probe.training import Split, predict, train_heads

__all__ = ["Choice", "Experiment", "SeedResult"]


class Choice(NamedTuple):
    """The chosen settings of a head.

    Attributes:
        settings: How the head is trained.
        score: The main metric (percent) on the held-out rows; None without held-out rows.
        failed: Why all trainings of the head failed; empty if one succeeded.
    """

    settings: TrainingSettings
    score: float | None = None
    failed: str = ""


class SeedResult(NamedTuple):
    """The result of a training with one seed.

    Attributes:
        outcome: The training.
        metrics: Metrics (percent) of each dev split.
    """

    outcome: Outcome
    metrics: Metrics


@dataclass(frozen=True)
class Experiment:
    """The data and the protocol of a probe.

    Args:
        train: The training rows.
        dev: The splits for evaluation, by name.
        objective: What to learn.
        measure: Computes the metrics (percent) of predictions.
        main_metric: The metric by which settings are chosen.
        create_head: Creates a head from fields of `HeadConfig`.
        held_out: Share of the training rows on which the training settings are chosen. With 0, nothing is chosen and
            the best epoch on the first dev split is reported.
        optimize: Creates the optimizer.
        device: Where heads are trained.
        top_layers: The top layers of the encoder, of which a copy is trained with each head; None: heads alone.
    """

    train: Split
    dev: Mapping[str, Split]
    objective: Objective
    measure: Measure
    main_metric: str
    create_head: Callable[[Mapping[str, object]], nn.Module]
    held_out: float = 0.1
    optimize: Optimize = adamw
    device: torch.device | str = "cpu"
    top_layers: nn.Module | None = None

    def choose(self, settings: Sequence[ProbeSettings], seed: int) -> list[Choice]:
        """Choose the training settings of each head: those with the best metric on the held-out rows after training."""
        if not self.held_out:
            return [Choice(setting.training[0]) for setting in settings]
        kept, held = hold_out(self.train.targets.numpy(), self.held_out, self.objective.kind)
        tried = [(setting, training) for setting in settings for training in setting.training]
        candidates = [Candidate(self._creates(setting), training) for setting, training in tried]
        outcomes = self._train(candidates, self.train.subset(kept), seed)
        results = [self._test(outcome, {"held-out": self.train.subset(held)}) for outcome in outcomes]
        found: dict[int, Choice] = {}
        for (setting, training), result in zip(tried, results, strict=True):
            best = found.setdefault(id(setting), Choice(training, failed=result.outcome.failed))
            score = None if result.outcome.failed else result.metrics["held-out"][self.main_metric]
            if score is not None and (best.score is None or score > best.score):
                found[id(setting)] = Choice(training, score)
        return [found[id(setting)] for setting in settings]

    def train_seeds(
        self, settings: Sequence[ProbeSettings], choices: Sequence[Choice], seeds: Sequence[int]
    ) -> Iterator[tuple[int, list[SeedResult]]]:
        """Train all heads on all training rows and evaluate them, one seed after the other."""
        candidates = [
            Candidate(self._creates(setting), choice.settings)
            for setting, choice in zip(settings, choices, strict=True)
        ]
        for seed in seeds:
            outcomes = self._train(candidates, self.train, seed, {} if self.held_out else self.dev)
            yield seed, [self._test(outcome, self.dev) for outcome in outcomes]

    def _train(
        self, candidates: Sequence[Candidate], train: Split, seed: int, watch: Mapping[str, Split] | None = None
    ) -> list[Outcome]:
        return train_heads(
            candidates,
            train,
            self.objective,
            seed,
            watch=watch,
            measure=self.measure,
            main_metric=self.main_metric,
            optimize=self.optimize,
            device=self.device,
        )

    def _test(self, outcome: Outcome, splits: Mapping[str, Split]) -> SeedResult:
        if outcome.failed:
            return SeedResult(outcome, {})
        if outcome.history:
            return SeedResult(outcome, outcome.history[outcome.best_epoch - 1])
        metrics = {}
        for name, split in splits.items():
            (logits,) = predict([outcome.head], split.states)
            if not logits.isfinite().all():
                return SeedResult(replace(outcome, failed=NOT_FINITE), {})
            outcome.predictions[name] = self.objective.decide(logits)
            metrics[name] = self.measure(outcome.predictions[name], split.targets.numpy())
        return SeedResult(outcome, metrics)

    def _creates(self, setting: ProbeSettings) -> Callable[[], LayerHead]:
        mixed = len(self.train.states.layers) if setting.layer == MIXED else 0
        layer = setting.layer if isinstance(setting.layer, int) else 0
        return lambda: LayerHead(
            self.create_head(setting.head_settings), layer, mixed, copy.deepcopy(self.top_layers), setting.pair
        )
