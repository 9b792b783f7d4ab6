"""What a training does about values that are not finite: it names the module, and it counts the steps it skips."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from fairseq import trainer as fairseq_trainer
from fairseq.logging import metrics
from torch import nn

from sot_base.errors import UsageError

__all__ = ["NonFiniteFinder", "report_non_finite_values"]

ADVICE = "lower --lr, warm up for longer or give --clip-norm; the checkpoints so far are kept"


def report_non_finite_values() -> None:
    """Let fairseq's trainer name the first module that is not finite, and tell the task of every step it skips.

    The trainer repeats a step with gradients that are not finite under fairseq's own ``NanDetector``, which fails by
    itself (``StopIteration``) on every encoder that returns a dictionary, RoBERTa's among them.
    """
    fairseq_trainer.NanDetector = NonFiniteFinder
    stock = fairseq_trainer.Trainer.train_step
    if getattr(stock, "counts_skipped_steps", False):
        return

    def train_step(self: Any, samples: Any, raise_oom: bool = False) -> Any:
        if getattr(self, "within_step", False) or not hasattr(self.task, "count_step"):
            return stock(self, samples, raise_oom)  # with --amp a step calls this method again to retry
        updates, self.within_step = self.get_num_updates(), True
        try:
            output = stock(self, samples, raise_oom)
        finally:
            self.within_step = False
            self.task.count_step(done=self.get_num_updates() > updates)
        if self.task.skipped_steps:
            with metrics.aggregate("train"):
                metrics.log_scalar("skipped", self.task.skipped_steps, weight=0, priority=650, round=0)
        return output

    train_step.counts_skipped_steps = True  # type: ignore[attr-defined]
    fairseq_trainer.Trainer.train_step = train_step


class NonFiniteFinder:
    """Watch a model within a ``with`` block, which ends with an error that names the first module that is not finite.

    In the forward pass that is the first module, innermost first, whose output holds NaN or infinity; in the backward
    pass the first whose input's gradient does.

    Args:
        model: The model.

    Raises:
        UsageError: on leaving the block, if something was found.
    """

    def __init__(self, model: nn.Module) -> None:
        self.found: str | None = None
        self.handles = []
        self.warnings = warnings.catch_warnings()
        for name, module in model.named_modules():
            self.handles.append(module.register_forward_hook(self._hook(name, "output")))
            self.handles.append(module.register_full_backward_hook(self._hook(name, "gradient")))

    def _hook(self, name: str, what: str) -> Callable[..., None]:
        def look(module: nn.Module, first: Any, second: Any) -> None:
            values = second if what == "output" else first  # a forward hook gets input, output; a backward hook
            problem = _problem(values)  # gets the gradients of the input and of the output
            if problem and self.found is None:
                self.found = f"{problem} in the {what} of {name or 'the model'} ({type(module).__name__})"

        return look

    def __enter__(self) -> NonFiniteFinder:
        self.warnings.__enter__()
        warnings.filterwarnings("ignore", ".*backward hook")  # of modules that return dictionaries or take no gradient
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self.handles:
            handle.remove()
        self.warnings.__exit__(kind, error, trace)
        if self.found:
            raise UsageError(f"the training diverged: {self.found}; {ADVICE}") from error


def _problem(values: Any) -> str | None:
    """``NaN`` or ``infinity`` if a tensor, or one in a structure of tensors, has it."""
    if isinstance(values, torch.Tensor):
        if not values.is_floating_point() or torch.isfinite(values).all():
            return None
        return "NaN" if torch.isnan(values).any() else "infinity"
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, (tuple, list)):
        return next((problem for problem in map(_problem, values) if problem), None)
    return None
