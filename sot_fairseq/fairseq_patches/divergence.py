"""Non-finite values in a training: report where they arose, and count skipped steps."""

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
from sot_base.finite import first_not_finite
from sot_fairseq.fairseq_patches.restart import newest_checkpoint

__all__ = ["DivergenceError", "NonFiniteFinder", "check_weights", "report_divergence"]


class DivergenceError(UsageError):
    """A training with non-finite values."""


def report_divergence() -> None:
    """Let fairseq's trainer say where a training diverged, and tell the task of every step it skips.

    The trainer repeats a step with gradients that are not finite under fairseq's own ``NanDetector``, which fails by
    itself (``StopIteration``) on every encoder that returns a dictionary, RoBERTa's among them. An update with finite
    gradients may leave weights that are not: they are looked at before they are measured or saved.
    """
    trainer = fairseq_trainer.Trainer
    stock = {name: getattr(trainer, name) for name in ("train_step", "begin_epoch", "begin_valid_epoch")}
    if getattr(stock["train_step"], "reports_divergence", False):
        return
    fairseq_trainer.NanDetector = NonFiniteFinder

    def begin_epoch(self: Any, epoch: int) -> None:
        self.epoch = epoch
        stock["begin_epoch"](self, epoch)

    def begin_valid_epoch(self: Any, epoch: int) -> None:
        check_weights(self)
        stock["begin_valid_epoch"](self, epoch)

    def train_step(self: Any, samples: Any, raise_oom: bool = False) -> Any:
        if getattr(self, "within_step", False) or not hasattr(self.task, "count_step"):
            return stock["train_step"](self, samples, raise_oom)  # with --amp a step calls this method again to retry
        updates, self.within_step = self.get_num_updates(), True
        try:
            output = stock["train_step"](self, samples, raise_oom)
        except (DivergenceError, FloatingPointError) as error:
            raise DivergenceError(_message(str(error).split(". ")[0], self, updates + 1)) from error
        finally:
            self.within_step = False
            self.task.count_step(done=self.get_num_updates() > updates)
        if self.task.skipped_steps:
            with metrics.aggregate("train"):
                metrics.log_scalar("skipped", self.task.skipped_steps, weight=0, priority=650, round=0)
        return output

    train_step.reports_divergence = True  # type: ignore[attr-defined]
    for function in (begin_epoch, begin_valid_epoch, train_step):
        setattr(trainer, function.__name__, function)


def check_weights(trainer: Any) -> None:
    """Refuse a model that is not finite, in the memory of a training, before it is measured or saved.

    Raises:
        DivergenceError: naming the first module with such a weight.
    """
    model = trainer.get_model()
    weight = first_not_finite(model.named_parameters())
    if weight is None:
        return
    module = weight.rpartition(".")[0]
    problem = _problem(model.get_parameter(weight).detach())
    found = f"{problem} in the weights of {module or 'the model'} ({type(model.get_submodule(module)).__name__})"
    raise DivergenceError(_message(found, trainer, trainer.get_num_updates()))


def _message(found: str, trainer: Any, update: int) -> str:
    last = newest_checkpoint(trainer.cfg.checkpoint.save_dir)
    kept = "no checkpoint was written yet" if last is None else f"the last good checkpoint is {last}"
    epoch = getattr(trainer, "epoch", 1)
    return (
        f"the training diverged, {found}: epoch {epoch}, update {update}, lr {trainer.get_lr():.4g}; "
        f"lower --lr, warm up for longer or give --clip-norm; {kept}"
    )


class NonFiniteFinder:
    """Watch a model within a ``with`` block, which ends with an error that names the first module that is not finite.

    In the forward pass that is the first module, innermost first, whose output holds NaN or infinity; in the backward
    pass the first whose input's gradient does.

    Args:
        model: The model.

    Raises:
        DivergenceError: on leaving the block, if something was found.
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
            raise DivergenceError(self.found) from error


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
